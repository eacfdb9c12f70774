"""Every command over documents whose every text is an attack: on the terminal, on the markup, on the lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.cli_here import here

NAME = "\x1b[2J\x9b31m\x7f[red]loud\u202ekcab\r\u2028\nforged line"
"""Without a slash: it is a part of a lane."""
TEXT = f"{NAME}\x1b]0;owned\x07[/red]\u2066[link=https://evil.example]here[/link]\n  forged line"
NOW = datetime.now(UTC)

_SEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def put(collection: Any, document: dict[str, Any]) -> None:
    collection.with_options().insert_one(document, bypass_document_validation=True)


@pytest.fixture(scope="module")
def looked_at(server: EmbeddedServer) -> Iterator[str]:
    """The address of one that no command changes."""
    with closing(Store(Target.parse(server.uri).in_database(f"test_{ObjectId()}"))) as store:
        store.prepare()
        attack(store)
        yield store.target.uri
        store.drop()


@pytest.fixture
def attacked(store: Store) -> str:
    """The address of one for a command that changes something."""
    attack(store)
    return store.target.uri


def attack(store: Store) -> None:
    """Jobs, an ended job, a worker, a process, a leader, a scheduler, a limit, a pause and statistics."""
    when = {"created_at": NOW, "scheduled_at": NOW}
    who = {"at": NOW, "by": TEXT, "reason": TEXT}
    attempt = {"started_at": NOW, "ended_at": NOW, "worker": TEXT, "class": TEXT, "message": TEXT, "trace": TEXT}
    attempt |= {"notes": [TEXT]}
    job = {
        "task": NAME,
        "group": NAME,
        "args": {"a": TEXT, TEXT.replace(".", ""): 1},
        "tags": [TEXT, NAME],
        "username": TEXT,
        "urn": TEXT,
        "key": TEXT,
        "attempts": 1,
        "last_execution": attempt,
        **when,
        "status": [{"state": "running", "stage": TEXT, "progress": 0.5, "date": NOW}],
        "stage": TEXT,
        "log": [{"at": NOW, "text": TEXT}],
        "retry_policy": {"class": TEXT, "parameters": {"n": TEXT}},
    }
    lane = f"{NAME}/{NAME}"
    put(store.scheduled.collection, {"_id": f"waiting{TEXT}", "lane": lane, **job})
    put(store.scheduled.collection, {"_id": f"running{TEXT}", "lane": lane, **job, "locked_by": TEXT, "locked_at": NOW})
    put(store.scheduled.collection, {"_id": f"foreign{TEXT}", "task": TEXT, "locked_by": TEXT, "locked_at": NOW})
    ended = {"done": False, "why": TEXT, "reason": TEXT, "archived_at": NOW, "result": TEXT, "cancel": who}
    put(store.archived.collection, {"_id": f"ended{TEXT}", **job, **ended, "latency": 0.1, "execution_time": 0.1})
    worker = {
        "_id": NAME,
        "host": TEXT,
        "pid": 1,
        "groups": [NAME],
        "tasks": [NAME],
        "slots": 1,
        "prefetch": 1,
        "ready": True,
        "draining": True,
        "term": 1,
        "beats": 1,
        "settled": 1,
        "joined_at": NOW,
        "seen_at": NOW,
        "running": [{"job": f"running{TEXT}", "task": NAME, "since": NOW}],
        "assigned": [f"running{TEXT}"],
        "drained": who,
        "resources": "proc=4",
        "clock_offset": 0.0,
    }
    put(store.roster.collection, worker)
    long_ago = NOW - timedelta(minutes=5)
    process = {"_id": TEXT, "role": "recruiter", "host": TEXT, "pid": 1, "since": NOW, "seen_at": NOW}
    put(store.processes.collection, {**process, "clock_offset": 60.0})
    lease = {"_id": "leader", "term": 1, "holder": TEXT, "beats": 1, "host": TEXT, "pid": 1, "renewed_at": NOW}
    put(store.leases.collection, lease)
    scheduler = {
        "_id": TEXT,
        "job": {**job, "attempts": 0},
        "schedule": {"class": TEXT, "parameters": {"x": TEXT}},
        "overlap": "skip",
        "late": "skip",
        "window": 60,
        "created_at": NOW,
        "handled": NOW,
        "next_at": long_ago,
        "paused": who,
        "broken": TEXT,
        "made": 1,
        "skipped": 1,
    }
    put(store.schedulers.collection, scheduler)
    put(store.limits.collection, {"_id": f"task:{NAME}", "at_once": 1, "by": TEXT, "at": NOW})
    put(store.limits.collection, {"_id": f"paused:group:{NAME}", **who})
    minute = NOW.replace(second=0, microsecond=0) - timedelta(minutes=1)
    counts = {"states": {"failed": 1}, "latency": {}, "execution_time": {}}
    put(store.statistics.collection, {"_id": {"at": minute, "group": NAME, "task": NAME}, **counts})


COMMANDS = [
    ["job", "list"],
    ["job", "list", "--state", "failed"],
    ["job", "list", "--group", NAME],
    ["job", "list", "--tag", TEXT],
    ["job", "list", "--owner", TEXT],
    ["job", "count", "--owner", TEXT],
    *(["job", "show", f"{state}{TEXT}"] for state in ("waiting", "running", "foreign", "ended")),
    ["job", "show", "\udcff\udcfe"],
    ["job", "cancel", f"waiting{TEXT}", f"no such{TEXT}", "--by", TEXT, "--reason", TEXT],
    ["job", "cancel", "--owner", TEXT, "--yes"],
    ["job", "recover", f"ended{TEXT}"],
    ["job", "recover", "--owner", TEXT, "--yes"],
    ["job", "remove", f"ended{TEXT}", TEXT],
    ["job", "remove", "--error", TEXT, "--yes"],
    ["worker", "list"],
    ["worker", "drain", NAME, "--reason", TEXT],
    ["worker", "resume", NAME],
    ["worker", "resume", f"no such {TEXT}"],
    ["group", "list"],
    ["group", "pause", TEXT],
    ["group", "pause", NAME, "--reason", TEXT],
    ["group", "resume", NAME],
    ["limit", "list"],
    ["limit", "resources"],
    ["limit", "set", TEXT, "1"],
    ["limit", "set", f"task:{NAME}", "1"],
    ["limit", "remove", f"task:{NAME}"],
    ["scheduler", "list"],
    ["scheduler", "next", TEXT],
    ["scheduler", "pause", TEXT, "--reason", TEXT],
    ["scheduler", "resume", TEXT],
    ["scheduler", "run", TEXT],
    ["scheduler", "remove", TEXT, "--yes"],
    ["scheduler", "next", f"no such {TEXT}"],
    *(["analytics", "--by", by] for by in ("group", "task", "owner", "tag", "time")),
    ["analytics", "--group", NAME],
    ["top", "--once"],
    ["doctor"],
    ["health", "--role", "recruiter", "--host", TEXT],
    ["health", "--host", TEXT, "--role", "cleaner"],
    ["prepare"],
    ["job", TEXT],
    ["job", "list", f"--{TEXT}"],
    ["job", "list", "--since", TEXT],
    ["job", "list", "--limit", TEXT],
    ["doctor", "--config", TEXT],
    ["doctor", "--target", f"mongodb://{TEXT}"],
    ["start", "worker", "--bootstrap", TEXT],
    ["start", "worker", "--grace", TEXT],
]


def of_json(commands: list[list[str]]) -> list[list[str]]:
    printed = ("list", "show", "next", "resources", "count")
    with_json = [c for c in commands if c[0] in ("doctor", "analytics") or (len(c) > 1 and c[1] in printed)]
    return [[*command, "--output", output] for command in with_json for output in ("json", "jsonl")]


def named(command: list[str]) -> str:
    """Without the texts themselves: pytest prints them."""
    return "-".join(word for word in command if word.isascii() and word.isprintable())


CHANGES = {"cancel", "recover", "remove", "drain", "resume", "pause", "set", "run"}
CHANGING = [command for command in COMMANDS if command[0] in ("prepare", "start") or CHANGES & {*command[1:2]}]
LOOKING = [command for command in COMMANDS if command not in CHANGING]


@pytest.mark.parametrize("command", [*LOOKING, *of_json(LOOKING)], ids=named)
def test_no_text_reaches_the_terminal_as_it_is(looked_at: str, command: list[str]) -> None:
    says_nothing_as_it_is(looked_at, command)


@pytest.mark.parametrize("command", CHANGING, ids=named)
def test_nor_does_one_of_what_is_changed(attacked: str, command: list[str]) -> None:
    says_nothing_as_it_is(attacked, command)


def says_nothing_as_it_is(target: str, command: list[str]) -> None:
    code, said = here(target, *command)

    assert "Traceback" not in said or "--bootstrap" in command  # that one is of the application
    assert code in (0, 1, 2, 3, 4)
    assert said.strip() or code == 0
    assert _SEEN.search(said) is None, said
    assert "\nforged line" not in said


@pytest.mark.parametrize("command", LOOKING, ids=named)
def test_on_a_terminal_nothing_but_our_own_colours(looked_at: str, command: list[str]) -> None:
    has_no_colours_but_ours(looked_at, command)


@pytest.mark.parametrize("command", [command for command in CHANGING if "--yes" not in command], ids=named)
def test_nor_where_something_is_changed(attacked: str, command: list[str]) -> None:
    has_no_colours_but_ours(attacked, command)


def has_no_colours_but_ours(target: str, command: list[str]) -> None:
    _, said = here(target, *command, FORCE_COLOR="1", COLUMNS="400")

    plain = _COLOURS.sub("", said)
    assert _SEEN.search(plain) is None, said
    assert plain.count("loud") == plain.count("[red]loud")


@pytest.mark.parametrize("command", of_json([["job", "list"], ["job", "show", f"ended{TEXT}"], ["worker", "list"]]))
def test_json_means_what_is_stored(looked_at: str, command: list[str]) -> None:
    _, said = here(looked_at, *command)

    texts = json.dumps([json.loads(line) for line in said.splitlines()] if "jsonl" in command else json.loads(said))
    assert json.dumps(TEXT)[1:-1] in texts
