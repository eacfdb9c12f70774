"""Every page in every state that jobs, flows, groups and schedules can be in.

A template that asks for something that is not there is an error (`StrictUndefined`), but only while it is rendered."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from recruiter import FlowHandle, Recruiter
from recruiter.domain.text import mask
from recruiter.errors import SettingsError
from recruiter.web import figures
from recruiter.web.access import BasicAuth
from recruiter.web.actions import NAMED, ON_JOBS
from recruiter.web.pages import JOB_TABS, PAGES
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
    recruiter.controls.keep_idle("w1")


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


def test_head_answers_like_get_without_a_body(console: Consoles) -> None:
    client = console()

    answers = [client.head(place) for place in ("", "jobs", "static/console.css")]

    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b"")] * 3


def test_a_group_stays_when_it_is_idle_and_the_page_names_its_window(console: Consoles, recruiter: Recruiter) -> None:
    """Given a group whose only job ended long ago."""

    @recruiter.task(group="mail")
    def send() -> None: ...

    send.job().here().execute()
    recruiter.store.database.statistics.delete_many({})
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


def test_the_message_about_users_shows_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECRUITER_WEB_USERS", "ada")

    with pytest.raises(SettingsError) as refused:
        BasicAuth.from_environment()

    assert mask(str(refused.value)).endswith("NAME:WORD,NAME:WORD")


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (figures.duration(0.0), "< 0.1 ms"),
        (figures.duration(0.0004), "0.4 ms"),
        (figures.size(25_877_000_000), "24.1 GiB"),
        (figures.size(512 * 2**20), "512 MiB"),
    ],
)
def test_figures(told: str, text: str) -> None:
    assert told == text


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
    return [f"confirm?verb={verb}&name=mail" for verb in NAMED] + [
        f"confirm?verb={verb}&task=resize" for verb in ON_JOBS
    ]


def _status(client: httpx.Client, place: str) -> int:
    return client.get(place).status_code
