"""Actions on many jobs: they go on beside the request, can be watched, and stop with the console."""

from __future__ import annotations

import re
import threading
from html import unescape

import pytest

from recruiter import Recruiter
from recruiter.errors import InvalidFilter, JobNotFound, RecruiterError, TooManyViewers
from recruiter.job_actions import Progress
from recruiter.web.actions import MOST, Bulks, Outcome
from tests.conftest import eventually
from tests.web.conftest import Consoles


def so_far(number: int) -> str:
    return f"{number} so far."


class Gated:
    """An action that goes on when it is let."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.number = 0

    def __call__(self, progress: Progress) -> Outcome:
        progress(7)
        self.gate.wait(30)
        progress(9)
        return Outcome("all of them")


class TestBulks:
    def test_what_ends_soon_is_answered_at_once(self) -> None:
        assert Bulks(patience=20).run(lambda _: Outcome("done"), so_far) == Outcome("done")

    def test_what_takes_long_goes_on_and_can_be_watched(self) -> None:
        act, bulks = Gated(), Bulks(patience=0.05)
        told = bulks.run(act, so_far)
        assert told.text == "7 so far. It continues."
        assert told.running is not None
        assert bulks.look(told.running) == told
        act.gate.set()
        assert eventually(lambda: bulks.look(told.running or "").text == "all of them")
        assert bulks.look(told.running).running is None

    def test_what_is_refused_soon_is_raised_and_later_is_told(self) -> None:
        def refuse(_: Progress) -> Outcome:
            raise InvalidFilter("no such task")

        with pytest.raises(InvalidFilter, match="no such task"):
            Bulks(patience=20).run(refuse, so_far)
        gate, bulks = threading.Event(), Bulks(patience=0.05)

        def fail(progress: Progress) -> Outcome:
            progress(5)
            gate.wait(30)
            raise RecruiterError("MongoDB is gone")

        told = bulks.run(fail, so_far)
        gate.set()
        assert eventually(lambda: bulks.look(told.running or "").text == "5 so far. Then it stopped: MongoDB is gone.")

    def test_only_some_at_once(self) -> None:
        act, bulks = Gated(), Bulks(patience=0.01)
        for _ in range(MOST):
            bulks.run(act, so_far)
        with pytest.raises(TooManyViewers, match="are running"):
            bulks.run(act, so_far)
        act.gate.set()
        assert eventually(lambda: _accepts(bulks))

    def test_they_stop_with_the_console_and_say_so(self) -> None:
        act, bulks = Gated(), Bulks(patience=0.05)
        told = bulks.run(act, so_far)
        threading.Timer(0.1, act.gate.set).start()
        bulks.close()
        assert "the console was stopped" in bulks.look(told.running or "").text

    def test_one_that_nobody_knows(self) -> None:
        with pytest.raises(JobNotFound):
            Bulks().look("nobody")


def _accepts(bulks: Bulks) -> bool:
    try:
        return bulks.run(lambda _: Outcome("done"), so_far).text != ""
    except TooManyViewers:
        return False


def test_a_large_action_is_answered_soon_and_watched_to_its_end(
    recruiter: Recruiter, console: Consoles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given 1,200 waiting jobs and a console that waits for nobody, when all are cancelled, then the answer says that
    it goes on, the page asks again by itself, and the end says how many, also in the record of actions."""
    monkeypatch.setattr(Bulks.__init__, "__defaults__", (0.0,))

    @recruiter.task
    def add(a: int) -> int:
        return a

    add.enqueue_many([(number,) for number in range(1_200)])
    client = console(actions=True)
    page = client.post("do", data={"what": "verb=cancel&task=add"}, headers={"hx-request": "true"})
    assert 'hx-trigger="load delay:1s"' in page.text
    (progress,) = re.findall(r'hx-get="([^"]+)"', page.text)
    ended = eventually(lambda: text if "It continues" not in (text := client.get(unescape(progress)).text) else "")
    assert "1,200 jobs are being cancelled." in ended
    assert "hx-trigger" not in ended
    (deed,) = [each for each in client.get("api/actions").json() if each["verb"] == "cancel"]
    assert (deed["by"], deed["outcome"]) == ("a local user", "1,200 jobs are being cancelled.")
    assert client.get("api/actions/progress", params={"id": "nobody"}).status_code == 404
