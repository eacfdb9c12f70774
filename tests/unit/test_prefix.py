"""The prefix of collections: what it may be, and who says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recruiter import Recruiter
from recruiter.application import load_application
from recruiter.cli.options import TargetOptions, settings_from, target_for
from recruiter.errors import InvalidName, SettingsError
from recruiter.settings import Settings
from recruiter.store.connection import Target


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and an environment without settings."""
    monkeypatch.delenv("RECRUITER_TARGET", raising=False)
    monkeypatch.delenv("RECRUITER_PREFIX", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestWhatItMayBe:
    @pytest.mark.parametrize(
        "prefix",
        [
            *("$jobs", "a$", "a b", ".jobs", "a..b", "1a", "a.1b", "jobs-", "é.", "a\0", "a/b", "a\n", "a" * 65),
            *("system.", "system", "a.system.", "a.system.b."),
        ],
    )
    def test_a_bad_prefix_is_refused_everywhere(self, prefix: str) -> None:
        with pytest.raises(InvalidName, match=r"prefix of collections.*'recruiter\.'"):
            Recruiter("nowhere/shop", prefix=prefix)
        with pytest.raises(InvalidName, match="prefix of collections"):
            Target.parse("nowhere/shop", prefix)
        with pytest.raises(SettingsError, match=r"prefix of collections.*--prefix, RECRUITER_PREFIX"):
            Settings.load(prefix=prefix)


class TestWhoSaysIt:
    def test_a_command_uses_the_prefix_of_the_application_unless_it_has_its_own(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = folder / f"{folder.name.replace('-', '_')}.py"
        path.write_text(
            "from recruiter import Recruiter\nrecruiter = Recruiter('nowhere/shop', prefix='app_')\n"
            "@recruiter.task\ndef add() -> None: ...\n"
        )
        own = load_application(f"{path}:recruiter").target

        assert target_for(settings_from(TargetOptions()), own).prefix == "app_"
        assert target_for(settings_from(TargetOptions(target="elsewhere/shop")), own).prefix == "app_"
        assert target_for(settings_from(TargetOptions(prefix="")), own) == Target("mongodb://nowhere/shop", "shop", "")
        monkeypatch.setenv("RECRUITER_PREFIX", "env_")
        assert target_for(settings_from(TargetOptions()), own).prefix == "env_"
