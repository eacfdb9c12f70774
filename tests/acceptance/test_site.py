"""The documentation site builds without a warning, needs nothing from elsewhere, and has all that the code offers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from cyclopts import App

import recruiter
from recruiter.cli.main import app
from recruiter.settings import Settings
from tests.acceptance.docs.pages import DOCS, PAGES, ROOT


def build(*arguments: Path | str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs" / "_site" / "build.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("docs") / "site"
    built = build(site)
    assert (built.returncode, built.stdout) == (0, ""), built.stderr
    assert "WARNING" not in built.stderr
    return site


def words(html: str) -> str:
    """What a reader sees."""
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", "", text)).split())


def test_every_page_is_there_and_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in PAGES:
        path = page.name.replace(".md", ".html")
        assert (site / path).is_file()
        assert f'<a class="reference internal" href="{path}"' in home or page.name == "index.md", path


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"""<(?:script|link|img|iframe)\b[^>]*?(?:src|href)=["'](https?:)?//|@import|url\(["']?https?:"""
    )
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        assert not loads.search(file.read_text()), file


def test_every_exported_name_leads_to_its_signature_and_docstring(site: Path) -> None:
    index = (site / "reference" / "api.html").read_text()
    for name in recruiter.__all__:
        code = rf'(?:<span[^>]*>)?<code[^>]*><span class="pre">{name}</span>'
        link = re.search(rf'href="(api/[^"#]+\.html)(?:#([^"]+))?">{code}', index)
        assert link, name
        page = (site / "reference" / link[1]).read_text()
        assert f"from recruiter import {name}" in words(page), name
        assert not link[2] or f'id="{link[2]}"' in page, name


@pytest.mark.parametrize(
    "told",
    [
        "enqueue_many(",
        "await aenqueue_many(…)",
        "schedule_in(delay: DurationLike) -> Self",
        "RetryManyTimes(n: int, seconds: InitVar[DurationLike])",
        "Raises JobNotFound when it has ended, or never was.",
        "assert_nothing_enqueued()",
    ],
)
def test_members_of_classes_are_there_too(site: Path, told: str) -> None:
    assert any(told in words(page.read_text()) for page in (site / "reference" / "api").glob("*.html"))


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    for name in app:
        if not name.startswith("-"):
            yield (*path, name), app[name]
            yield from commands(app[name], (*path, name))


def test_every_command_is_there_with_its_options(site: Path) -> None:
    page = (site / "reference" / "cli.html").read_text()
    everything = list(commands(app))
    assert len(everything) > 20
    for path, command in everything:
        _, found, after = page.partition(f'<section id="{"-".join(("recruiter", *path))}">')
        assert found, path
        told = words(after.partition("<section")[0])
        assert " ".join(words(command.help).replace("`", "").split()[:5]) in told
        for shared in re.findall(r'href="#([\w-]+)"', after.partition("<section")[0]):
            told += words(page.partition(f'<section id="{shared}">')[2].partition("<section")[0])
        options = command.assemble_argument_collection() if command.default_command else ()
        for option in (option.name for option in options if option.name != "*"):
            assert option in told or option.upper() in told, (path, option)


def test_every_setting_is_there(site: Path) -> None:
    told = words((site / "reference" / "settings.html").read_text())
    for name in Settings.model_fields:
        option = f"--{name.replace('_', '-')}, " if name != "server_timeout" else ""  # not of a command, but of all
        assert f"{option}RECRUITER_{name.upper()}." in told


def test_what_leads_nowhere_fails_and_a_page_that_nobody_has_listed_is_included(tmp_path: Path) -> None:
    # given a page in no table of the home page, with a link and an anchor that lead nowhere, beside a few others
    docs = tmp_path / "docs"
    new = docs / "how-to" / "new.md"
    for name in ("index.md", "reference/api.md", "how-to/retries.md"):
        (docs / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(DOCS / name, docs / name)
    new.write_text("# New\n\n[one](nowhere.md), [two](retries.md#nowhere), [three](retries.md#your-own-policy)\n")

    # when it is checked
    built = build("--check", tmp_path / "site", docs)

    # then these two are told, and nothing else is wrong with the page
    assert built.returncode == 1
    complaints = [line for line in built.stderr.splitlines() if "WARNING" in line and "how-to/new.md" in line]
    assert len(complaints) == 2
    assert "nowhere.md" in complaints[0]
    assert "local id not found in doc 'how-to/retries': 'nowhere'" in complaints[1]
    assert "how-to/new.md\n" in (tmp_path / "site-pages" / "index.md").read_text()
