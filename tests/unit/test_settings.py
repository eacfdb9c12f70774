"""Settings: defaults < file < environment < arguments; unknown keys and values that do not fit are refused."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import pytest

from recruiter.errors import SettingsError
from recruiter.settings import Settings, TargetSettings


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and an environment that say nothing."""
    for name in list(os.environ):
        if name.upper().startswith("RECRUITER_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestOrder:
    def test_each_beats_the_one_before(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "recruiter.toml").write_text(
            'lease_time = "6s"\ngrace = "6s"\nheartbeat = "2s"\ntarget = "file/db"\n'
        )
        monkeypatch.setenv("RECRUITER_LEASE_TIME", "7s")
        monkeypatch.setenv("RECRUITER_GRACE", "7s")

        settings = Settings.load(lease_time="8s")

        assert settings.lease_time == timedelta(seconds=8), "argument"
        assert settings.grace == timedelta(seconds=7), "environment"
        assert settings.heartbeat == timedelta(seconds=2), "file"
        assert settings.backoff_to == timedelta(seconds=10), "default"
        assert TargetSettings().target == "file/db"


class TestValues:
    def test_groups_from_the_environment_and_the_file(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "recruiter.toml").write_text('work_on = ["a", "b"]\n')
        assert Settings.load().work_on == ("a", "b")

        monkeypatch.setenv("RECRUITER_WORK_ON", "mail,images")
        assert Settings.load().work_on == ("mail", "images")


class TestRefusals:
    def test_an_unknown_key_in_the_file(self, folder: Path) -> None:
        (folder / "recruiter.toml").write_text('lease_tiem = "5s"\n')

        with pytest.raises(SettingsError, match=r"unknown setting 'lease_tiem' in recruiter\.toml"):
            Settings.load()

    def test_a_file_that_is_not_toml(self, folder: Path) -> None:
        (folder / "recruiter.toml").write_text("processes: 5\n")

        with pytest.raises(SettingsError, match=r"recruiter\.toml"):
            Settings.load()

    def test_a_named_file_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RECRUITER_CONFIG", "/nowhere/r.toml")

        with pytest.raises(
            SettingsError, match=r"RECRUITER_CONFIG names '/nowhere/r\.toml', but there is no such file"
        ):
            Settings.load()

    def test_a_password_is_not_shown(self, folder: Path) -> None:
        (folder / "recruiter.toml").write_text('target = ["mongodb://ada:hunter2@h/db"]\n')

        with pytest.raises(SettingsError, match="target") as refused:
            Settings.load()

        assert "hunter2" not in str(refused.value)
