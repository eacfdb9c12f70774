"""Commands that change something, for scripts; and words that people type who come from elsewhere."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recruiter import Recruiter
from tests.cli_here import here


@pytest.fixture
def shop(recruiter: Recruiter) -> Recruiter:
    @recruiter.task(group="mail")
    def send(to: str) -> None:
        if to == "nobody":
            raise ValueError("there is nobody")

    return recruiter


def changed(target: str, *arguments: str, code: int = 0) -> Any:
    """The answer of a command, which is one JSON document and nothing else."""
    given, said = here(target, *arguments, "--output", "json")
    assert given == code, said
    return json.loads(said)


class TestJobs:
    def test_a_command_on_ids_prints_what_became_of_each_job(self, shop: Recruiter, target: str) -> None:
        failed, postponed, third = (
            shop.job("send", {"to": "nobody"}).enqueue(),
            shop.job("send", {"to": "ada"}).schedule_in("1h").enqueue(),
            shop.job("send", {"to": "bob"}).schedule_in("1h").enqueue(),
        )
        shop.run("send")

        (recovered,) = changed(target, "job", "recover", str(failed.id))
        again = shop.find(recovered["recovered_as"])
        assert (recovered["id"], recovered["done"], again.recovered_from) == (str(failed.id), True, failed.id)
        (moved,) = changed(target, "job", "reschedule", str(postponed.id), "--in", "2h")
        assert moved["scheduled_at"].startswith(f"{shop.find(postponed.id).scheduled_at:%Y-%m-%dT%H:%M:%S}")
        assert changed(target, "job", "reprioritise", str(postponed.id), "--priority", "7")[0]["priority"] == 7
        assert changed(target, "job", "run", str(postponed.id))[0]["done"] is True
        assert changed(target, "job", "cancel", str(third.id)) == [{"id": str(third.id), "done": True}]
        assert changed(target, "job", "remove", str(failed.id)) == [{"id": str(failed.id), "done": True}]

    def test_one_that_cannot_be_done_is_named(self, target: str, shop: Recruiter) -> None:
        waiting = shop.job("send", {"to": "ada"}).enqueue()

        code, said = here(target, "job", "cancel", "nobody", str(waiting.id), "--output", "jsonl")

        assert code == 1
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert [(line["id"], line["done"]) for line in lines] == [("nobody", False), (str(waiting.id), True)]
        assert "no job" in lines[0]["error"]

    def test_a_command_on_a_filter_prints_the_count(self, target: str, shop: Recruiter) -> None:
        for _ in range(3):
            shop.job("send", {"to": "ada"}).enqueue()

        assert changed(target, "job", "cancel", "--task", "send", "--yes") == {"count": 3}
        # All jobs of this task are being cancelled; the task is still known.
        assert changed(target, "job", "recover", "--task", "send", "--yes") == {"count": 0}


def test_everything_else_that_is_changed(shop: Recruiter, target: str) -> None:
    shop.job("send", {"to": "ada"}).in_group("mail").enqueue()
    assert changed(target, "group", "pause", "mail") == {"group": "mail", "paused": True}
    assert changed(target, "group", "resume", "mail") == {"group": "mail", "paused": False, "changed": True}
    assert changed(target, "group", "pause", "--all") == {"blocked": True}
    assert changed(target, "group", "resume", "--all") == {"blocked": False, "changed": True}
    assert changed(target, "group", "fair", "mail")["shared_by"] == "owner"
    assert changed(target, "limit", "set", "task:send", "2")["at_once"] == 2
    assert changed(target, "limit", "remove", "task:send")["removed"] == "task:send"
    assert changed(target, "prepare")["made"] == []


def test_commands_on_schedulers_print_the_change(shop: Recruiter, target: str) -> None:
    @shop.every("0 6 * * *", urn="report:daily")
    def report() -> None: ...

    shop.create_schedulers()

    assert changed(target, "scheduler", "pause", "report:daily") == {"urn": "report:daily", "paused": True}
    assert changed(target, "scheduler", "resume", "report:daily")["next_run"] is not None
    made = changed(target, "scheduler", "run", "report:daily")["id"]
    assert shop.find(made).urn == "report:daily"
    removed = changed(target, "scheduler", "remove", "report:daily", "--yes")
    assert removed == {"removed": "report:daily", "cancelled": 1}


def test_commands_on_flows_print_the_change(shop: Recruiter, target: str) -> None:
    @shop.task
    def write(to: str) -> None: ...

    flow = shop.flow("letters")
    flow.add(write, "ada")
    id = str(flow.start().id)

    assert changed(target, "flow", "pause", id) == {"id": id, "paused": True}
    assert changed(target, "flow", "resume", id) == {"id": id, "paused": False}
    assert changed(target, "flow", "cancel", id, "--yes") == {"id": id, "count": 1}
