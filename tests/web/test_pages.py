"""Every page in every state that jobs, flows, groups and schedules can be in.

A template that asks for something that is not there is an error (`StrictUndefined`), but only while it is rendered."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from recruiter import FlowHandle, Recruiter
from recruiter.doctor.findings import Code, note, ok, problem
from recruiter.domain.statistics import Depth
from recruiter.job_actions import JOB_ACTIONS
from recruiter.web import reader
from recruiter.web.actions import NAMED
from recruiter.web.pages import JOB_TABS, PAGES
from recruiter.web.terms import TERMS
from tests.flows import Stage
from tests.web.conftest import Consoles


def two_steps(recruiter: Recruiter) -> FlowHandle:
    @recruiter.task
    def resize(width: int) -> None: ...

    flow = recruiter.flow("thumbnails", owner="ada")
    flow.add(resize, 2, after=flow.add(resize, 1))
    return flow.start()


def empty(recruiter: Recruiter) -> None: ...


def waiting(recruiter: Recruiter) -> None:
    """The first step is due; the second one waits for it."""
    two_steps(recruiter)


def running(recruiter: Recruiter) -> None:
    two_steps(recruiter)
    stage = Stage(recruiter)
    stage.give(*stage.ready())


def succeeded(recruiter: Recruiter) -> None:
    two_steps(recruiter)
    stage = Stage(recruiter)
    for _ in range(2):
        stage.run(*stage.ready())
        stage.settle_down()


def failed(recruiter: Recruiter) -> None:
    two_steps(recruiter)
    stage = Stage(recruiter)
    stage.run(*stage.ready(), fails=stage.ready())
    stage.settle_down()


def cancelled(recruiter: Recruiter) -> None:
    two_steps(recruiter).cancel(by="ada")
    Stage(recruiter).settle_down()


def paused(recruiter: Recruiter) -> None:
    """All that can be paused or limited, without a reason."""
    two_steps(recruiter).pause()

    @recruiter.every("1 hour")
    def tidy() -> None: ...

    recruiter.create_schedulers()
    recruiter.scheduler("tidy").pause()
    recruiter.controls.pause_group("mail")
    recruiter.controls.block_starts()
    recruiter.controls.set_limit("task:resize", 1)
    Stage(recruiter)
    recruiter.controls.drain_worker("w1")


STATES: dict[str, Callable[[Recruiter], None]] = {
    each.__name__: each for each in (empty, waiting, running, succeeded, failed, cancelled, paused)
}


@pytest.mark.parametrize("state", STATES)
def test_every_page_is_shown_in_every_state(console: Consoles, recruiter: Recruiter, state: str) -> None:
    STATES[state](recruiter)
    client = console(actions=True)

    places = [*_lists(), *_jobs(recruiter), *_flows(recruiter), *_questions()]

    assert {place.partition("?")[0] for place in places} >= set(PAGES) - {"overview"} - (
        {"job", "flow"} if state == "empty" else set()
    )
    assert [place for place in places if _status(client, place) != 200] == []


def test_every_figure_leads_to_what_it_means(console: Consoles, recruiter: Recruiter) -> None:
    """Given pages full of figures, then each says what it means on hover, and the link leads to a definition."""
    paused(recruiter)
    client = console(actions=True)
    defined = set(re.findall(r'<div id="([^"]+)"><dt>', client.get("help").text))

    asked: dict[str, str] = {}
    for place in [*_lists(), *_jobs(recruiter), *_flows(recruiter)]:
        for link in re.findall(r'<a class="term"[^>]*>', client.get(place).text):
            asked |= dict(re.findall(r'href="help#([^"]+)" title="([^"]+)"', link))
            assert "title=" in link, place

    assert set(asked) <= defined == set(TERMS)
    shown_elsewhere = {"pace", "about", "silent", "drained", "clock", "usage", "trend", "skipped"}
    shown_elsewhere |= {"total", "took", "attempts"}  # on hover of a header that sorts
    assert set(TERMS) - set(asked) <= shown_elsewhere
    assert all(len(meaning) > 20 for meaning in asked.values())


@pytest.mark.parametrize("key", TERMS)
def test_a_definition_names_a_page_and_a_command_that_exist(key: str) -> None:
    docs = Path(__file__).parents[2] / "docs"
    commands = (docs / "reference" / "cli.md").read_text()

    assert (docs / TERMS[key].docs).is_file()
    assert " ".join(TERMS[key].command.split()[:3]).partition(" --")[0] in commands


def test_no_problems_is_a_friendly_page(console: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = [ok("it answers"), note(Code.ONE_MEMBER, "one member", "use three")]
    monkeypatch.setattr(reader, "examine", lambda _store: fine)

    page = console().get("problems").text

    assert "Nothing needs you." in page
    assert "1 check passed" in page
    assert "one member" in page


def test_one_problem_is_not(console: Consoles, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = [problem(Code.NO_WORKER, "none runs", "Start one: recruiter start worker")]
    monkeypatch.setattr(reader, "examine", lambda _store: bad)

    page = console().get("problems").text

    assert "Nothing needs you." not in page
    assert "<code>recruiter start worker</code>" in page


def test_a_page_of_another_size_keeps_its_size(console: Consoles, recruiter: Recruiter) -> None:
    two_steps(recruiter)

    page = console().get("jobs?limit=1").text

    assert re.search(r'rel="next" href="jobs\?after=[^"]*limit=1"', page)
    assert re.search(r'class="opens mono" href="jobs\?limit=1[^"]*open=', page)


def test_how_much_comes_in_is_worked_out(console: Consoles, recruiter: Recruiter) -> None:
    """Given a group that had no jobs five minutes ago and has one now, then a fifth of a job came a minute."""
    two_steps(recruiter)
    store = recruiter.store
    unknown = console().get("groups").text
    store.queues.sample(Depth(store.clock.now() - timedelta(minutes=5), 0, 0, 4))
    known = console().get("groups").text

    assert 'data-label="in">–' in unknown
    assert re.search(r'data-label="in">≈ <span class="n" title="0\.20', known)


def test_head_answers_like_get_without_a_body(console: Consoles) -> None:
    client = console()

    answers = [client.head(place) for place in ("", "jobs", "static/console.css")]

    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 3


def test_a_group_stays_when_it_is_idle_and_the_page_names_its_window(console: Consoles, recruiter: Recruiter) -> None:
    """Given a group whose only job ended long ago."""

    @recruiter.task(group="mail")
    def send() -> None: ...

    send.job().here().execute()
    recruiter.store.statistics.collection.delete_many({})
    page = console().get("groups").text

    assert ">mail</a>" in page
    assert "in the last 5 minutes" in page


def test_a_minute_that_has_just_begun_is_not_scaled_up(console: Consoles, recruiter: Recruiter) -> None:
    del recruiter
    page = console().get("").text

    spans = [float(span) for span in re.findall(r'data-s="([\d.]+)"', page)]
    assert spans
    assert min(spans) >= 60


def test_the_attempt_that_runs_is_counted(console: Consoles, recruiter: Recruiter) -> None:
    running(recruiter)
    (job,) = recruiter.jobs.list(state="running")

    page = console().get("job", params={"id": str(job.id)}).text

    assert "0 ended, 1 runs" in page


def _lists() -> list[str]:
    named = [name for name in PAGES if name not in ("overview", "job", "flow")]
    return ["", *named, *(f"counts?state={state}" for state in ("running", "failed")), "jobs?task=nobody-knows-it"]


def _jobs(recruiter: Recruiter) -> list[str]:
    ids = [str(job.id) for job in recruiter.jobs.list()]
    return [f"job?id={id}{tab}" for id in ids for tab in ("", *(f"&tab={tab}" for tab in JOB_TABS))] + [
        f"jobs?open={id}" for id in ids
    ]


def _flows(recruiter: Recruiter) -> list[str]:
    return [f"flow?id={flow.id}" for flow in recruiter.flows.latest()]


def _questions() -> list[str]:
    """What is asked before something is done."""
    return [f"confirm?verb={verb}&name=task:mail&at_once=1" for verb in NAMED] + [
        f"confirm?verb={verb}&task=resize" for verb in JOB_ACTIONS
    ]


def _status(client: httpx.Client, place: str) -> int:
    return client.get(place).status_code
