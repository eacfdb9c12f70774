"""Every example in the documentation runs, every command in it parses, and what it says of the code is so."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bson import ObjectId

from recruiter import Execution, Job, Why
from recruiter import errors as all_errors
from recruiter.cli.main import app
from recruiter.embedded import EmbeddedServer
from recruiter.errors import RecruiterError
from recruiter.store import codec, outcomes
from recruiter.store.connection import Target
from recruiter.store.database import Store
from recruiter.store.job_fields import JOB_FIELDS
from tests.acceptance.docs.pages import LANGUAGES, PAGES, Page, page
from tests.acceptance.docs.reference import anchors, links, named_tests, tree
from tests.acceptance.docs.running import Run
from tests.conftest import Starter

WITH_EXAMPLES = [page for page in PAGES if any(block.language == "python" for block in page.blocks)]

# -- examples and commands -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=[page.name for page in WITH_EXAMPLES])
def test_the_examples_come_out_as_they_are_written(
    page: Page,
    fleet: Starter,
    server: EmbeddedServer,
    target: str,
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given an empty MongoDB, the files of the page, and processes beside it if it needs them
    monkeypatch.setenv("RECRUITER_TARGET", target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    others = f"of_test_{ObjectId()}"

    def at_our_address(text: str) -> str:
        """Each database of a page is one of its own; `shop` is where the processes work."""
        return re.sub(r"mongodb://localhost:27017(?:/(\w+))?", ours, text)

    def ours(found: re.Match[str]) -> str:
        if found[1] == "shop":
            return target
        return Target.parse(server.uri).in_database(f"{found[1]}_{others}").uri if found[1] else server.uri

    run = Run(page, tmp_path, at_our_address, server.uri)
    files = run.write_files()
    if page.worker is not None:
        fleet(str(files[0]), *page.worker)

    # when its blocks run, then each line comes out as it says
    run.blocks()


@pytest.mark.parametrize(
    "example",
    [
        "1 + 1  # → 3",
        "print('hello')  # → goodbye",
        "1 / 0\n# raises ZeroDivisionError: division by one",
        "1 / 1\n# raises ZeroDivisionError: division by zero",
        "'a long text'\n# → 'a long\n#   story'",
        "if True:\n    1 + 1  # → 2",  # nobody would look
        "assert 1 + 1 == 3",
    ],
)
def test_an_example_that_comes_out_otherwise_fails(example: str, tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"# A page\n\n```python\n{example}\n```\n")
    with pytest.raises(AssertionError):
        Run(Page(path), tmp_path, str, "").blocks()


def test_the_tutorial_can_be_followed_with_a_new_python_after_every_change_of_its_file() -> None:
    """The worker must be restarted then, and so must `python`: what was imported before is gone."""
    defined: set[str] = set(dir(builtins))
    for block in page("tutorial.md").blocks:
        if block.language != "python":
            continue
        names = [node for node in ast.walk(ast.parse(block.text)) if isinstance(node, ast.Name | ast.alias)]
        known = {node.id for node in names if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        known |= {node.asname or node.name for node in names if isinstance(node, ast.alias)}
        if block.file:
            defined = set(dir(builtins))
        else:
            defined |= known
            used = {node.id for node in names if isinstance(node, ast.Name)}
            assert used <= defined, f"line {block.line}: where do these come from?"


def test_blocks_are_of_a_known_language() -> None:
    for each in PAGES:
        assert each.text.count("```") == 2 * len(each.blocks), each.name
        assert {block.language for block in each.blocks} <= LANGUAGES, each.name


def test_commands_parse() -> None:
    commands = {command: each.name for each in PAGES for _, command in each.commands()}
    for command, page_name in commands.items():
        try:
            app.parse_args(shlex.split(command, comments=True)[1:], exit_on_error=False, print_error=False)
        except Exception as error:
            raise AssertionError(f"{page_name}: {command}") from error


# -- links ---------------------------------------------------------------------------------------------------------


def test_links_lead_somewhere() -> None:
    for each in PAGES:
        for link, path, anchor in links(each):
            assert path.is_file(), (each.name, link)
            assert not anchor or anchor in anchors(path), (each.name, link)


def test_every_page_can_be_found_from_the_index() -> None:
    linked = {path for _, path, _ in links(page("index.md"))}
    assert {page.path.resolve() for page in PAGES} - linked == {page("index.md").path.resolve()}


# -- promises ------------------------------------------------------------------------------------------------------


def test_what_pages_say_is_shown_by_tests_that_exist() -> None:
    named = {test for page in PAGES for test in named_tests(page)}
    known = {file: file.read_text() if file.is_file() else "" for file, _ in named}

    assert len(named) > 50
    assert [f"{file}: {name}" for file, name in sorted(named) if f"def {name}(" not in known[file]] == []


# -- the reference: what is written by hand; test_site.py looks at what is generated ---------------------------------


@pytest.mark.parametrize("why", Why)
def test_every_word_for_how_a_job_ended_is_explained(why: Why) -> None:
    assert f"| `{why.name}` | `{why.value}` |" in page("reference/why.md").text


def test_every_error_is_explained_and_hangs_where_it_does_in_the_tree() -> None:
    errors = page("reference/errors.md")
    (drawing,) = (block.text for block in errors.blocks if block.language == "text")
    known = {value for value in vars(all_errors).values() if inspect.isclass(value)}
    known = {value for value in known if issubclass(value, RecruiterError)}
    assert tree(drawing) == {
        error.__name__: error.__bases__[0].__name__ if error is not RecruiterError else None for error in known
    }
    for error in known - {RecruiterError}:
        assert f"| `{error.__name__}` |" in errors.text, error


def test_every_stored_field_is_explained(store: Store) -> None:
    """Of a job to which everything has happened that can."""
    text = page("reference/documents.md").text
    now = datetime(2030, 1, 1, tzinfo=UTC)
    execution = Execution(now, now, "worker", True, "ValueError", "message", "trace", ("note",))
    job = Job("id", "task", {}, now, now.replace(year=2031), "ping", "group", 5, ("tag",), "urn", "ada", True, 5.0)
    document = codec.job_document(replace(job, retry_policy={"class": "RetryForever"}))
    document |= {"cancel": {"at": now}, "started_by": "worker", "started_at": now}
    tried = codec.attempt_fields(document | {"last_execution": {}}, execution)
    later = dict(outcomes.snoozed(document, now, now, "not yet").fields)
    ended = codec.archived_document(document, Why.LOST, now, {"reason": "told", "result": 5})
    set_aside = codec.decode(outcomes.unreadable("id", b"", now, "cannot be read").document)
    for field in JOB_FIELDS:
        assert f"`{field.name}`" in text, field.name
    for stored in (document, tried, later, ended, set_aside, codec.execution_document(execution)):
        for name in stored:
            assert f"`{name}`" in text, name
    for collection in store.database.list_collection_names():
        assert f"| `{collection.removeprefix(store.target.prefix)}` |" in text, collection
