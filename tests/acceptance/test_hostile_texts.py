"""Every command over documents whose every text is an attack: on the terminal, on the markup, on the lines."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

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


def attack(store: Store) -> None:
    """Jobs, an ended job, a worker, a process, a leader, a scheduler, a limit, a pause and statistics."""
    when = {"created_at": NOW, "scheduled_at": NOW}
    who = {"at": NOW, "by": TEXT, "reason": TEXT}
    attempt = {"started_at": NOW, "ended_at": NOW, "worker": TEXT, "class": TEXT, "message": TEXT, "trace": TEXT}
    attempt |= {"notes": [TEXT]}
    job = {
        "task": NAME,
        "group": NAME,
        "priority": 0,
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


LOOKING = [
    ["job", "list", "--tag", TEXT],
    *(["job", "show", f"{state}{TEXT}"] for state in ("waiting", "running", "foreign", "ended")),
    ["job", "show", "\udcff\udcfe"],
    *(["worker", "list"], ["group", "list"], ["limit", "list"], ["limit", "resources"], ["scheduler", "list"]),
    *(["scheduler", "next", TEXT], ["scheduler", "next", f"no such {TEXT}"]),
    *(["analytics", "--by", by] for by in ("group", "owner", "time")),
    *(["top", "--once"], ["doctor"], ["health", "--role", "recruiter", "--host", TEXT]),
    *(["job", TEXT], ["job", "list", f"--{TEXT}"], ["job", "list", "--since", TEXT], ["doctor", "--config", TEXT]),
    ["doctor", "--target", f"mongodb://{TEXT}"],
]
CHANGING = [
    ["job", "cancel", f"waiting{TEXT}", f"no such{TEXT}", "--by", TEXT, "--reason", TEXT],
    *(["job", "recover", f"ended{TEXT}"], ["job", "remove", "--error", TEXT, "--yes"]),
    *(["worker", "drain", NAME, "--reason", TEXT], ["worker", "resume", f"no such {TEXT}"]),
    *(["group", "pause", TEXT], ["group", "pause", NAME, "--reason", TEXT]),
    *(["limit", "set", TEXT, "1"], ["limit", "remove", f"task:{NAME}"]),
    *(["scheduler", "pause", TEXT, "--reason", TEXT], ["scheduler", "remove", TEXT, "--yes"]),
    ["start", "worker", "--bootstrap", TEXT],
]
JSON = [["job", "list"], ["job", "show", f"ended{TEXT}"], ["worker", "list"]]


def test_no_text_reaches_the_terminal_as_it_is(store: Store) -> None:
    attack(store)
    for command in [*LOOKING, *CHANGING]:
        code, said = here(store.target.uri, *command)

        assert "Traceback" not in said or "--bootstrap" in command  # that one is of the application
        assert code in (0, 1, 2, 3, 4)
        assert said.strip() or code == 0
        assert _SEEN.search(said) is None, said
        assert "\nforged line" not in said


def test_a_terminal_receives_only_our_own_colours(store: Store) -> None:
    attack(store)
    for command in [*LOOKING, *(command for command in CHANGING if "--yes" not in command)]:
        _, said = here(store.target.uri, *command, FORCE_COLOR="1", COLUMNS="400")

        plain = _COLOURS.sub("", said)
        assert _SEEN.search(plain) is None, said
        assert plain.count("loud") == plain.count("[red]loud")


def test_json_means_what_is_stored(store: Store) -> None:
    attack(store)
    for command in JSON:
        _, said = here(store.target.uri, *command, "--output", "json")
        assert json.dumps(TEXT)[1:-1] in json.dumps(json.loads(said))
        _, said = here(store.target.uri, *command, "--output", "jsonl")
        assert json.dumps(TEXT)[1:-1] in json.dumps([json.loads(line) for line in said.splitlines()])
