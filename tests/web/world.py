"""A real fleet with real jobs for the web console to show: a database, processes, a console on a port of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recruiter import Recruiter
from recruiter.web import dashboard
from recruiter.web.server import served
from tests.applications import showcase
from tests.warm import warm

APPLICATION = Path(__file__).parents[1] / "applications" / "showcase.py"
RETRY_FOR = 30.0


@dataclass
class World:
    recruiter: Recruiter
    url: str
    folder: Path

    def enqueue(self, task: str, /, **data: Any) -> str:
        """A job of the showcase; returns its id as text."""
        return str(self.recruiter.job(task, data).enqueue().id)

    def until(self, fact: Callable[[], Any], within: float = RETRY_FOR) -> Any:
        deadline = time.monotonic() + within
        while not (answer := fact()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within:g} s; last answer: {answer!r}")
            time.sleep(0.02)
        return answer

    def state(self, id: str) -> str:
        return self.recruiter.find(self.recruiter.jobs.id_of(id)).state.value


@contextmanager
def fleet(uri: str, folder: Path, processes: int, application: Path) -> Iterator[None]:
    """A recruiter, a worker and a cleaner on this database, as a user would start them."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
    environment |= {"RECRUITER_TARGET": uri, "RECRUITER_LOG_LEVEL": "warning"}
    command = ["start", "all", "--bootstrap", str(application), "--processes", str(processes), "--grace", "1s"]
    started = warm().fork(command, environment, folder / "fleet.log")
    try:
        yield
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


@contextmanager
def world(
    uri: str,
    folder: Path,
    *,
    processes: int = 2,
    application: Path = APPLICATION,
    recruiter: Recruiter = showcase.recruiter,
    **console: Any,
) -> Iterator[World]:
    """All of it; the worker is there when this begins."""
    recruiter.point_at(uri)
    recruiter.store.prepare()
    app = dashboard(recruiter, access=lambda: "a local user", **console)
    with closing(recruiter), fleet(uri, folder, processes, application), served(app) as url:
        made = World(recruiter, url, folder)
        made.until(lambda: [entry for entry in recruiter.store.roster.entries() if entry.registration.ready], 60)
        made.until(lambda: len(recruiter.schedulers()) == 3)
        yield made


def fill(world: World, jobs: int = 300) -> dict[str, str]:
    """A shop on an ordinary day: a few hundred jobs that ended, some that wait, some that run; ids by what they are."""
    recruiter = world.recruiter
    names = ("Ada", "Grace", "Edsger", "Barbara", "Donald", "Radia")
    for number in range(jobs):
        recruiter.job("charge", {"order": number, "amount": 9.9 + number % 70, "card_token": "tok_1234"}).enqueue()
        if number % 3 == 0:
            name = names[number % len(names)]
            data = {"to": f"{name.lower()}@shop.example", "name": name, "password": "hunter2"}
            recruiter.job("send_welcome", data).tagged_as("eu", f"user:{number % 7}").owned_by("ada").enqueue()
        if number % 5 == 0:
            recruiter.job("resize", {"picture": f"cat-{number}.jpg", "width": 640}).enqueue()
    slow = recruiter.job("send_welcome", {"to": "bob@slow.example", "name": "Bob"})
    ids = {"retried": str(slow.enqueue().id)}
    world.until(lambda: not recruiter.jobs.count(state="queued").number, 90)
    recruiter.controls.pause_group("mail", by="ada", reason="the mail server is down")
    for number in range(41):  # due when the pause is in force
        letter = recruiter.job("send_newsletter", {"to": f"reader{number}@shop.example", "issue": 12})
        letter.schedule_in("2s").enqueue()
    recruiter.job("send_newsletter", {"to": "late@shop.example", "issue": 13}).schedule_in("3 hours").enqueue()
    recruiter.controls.set_limit("task:align", 1, by="ada")
    recruiter.controls.set_limit("group:billing", count=200, per="1m", by="ada")
    gate = str(world.folder / "gate")
    for name, sample in (("running", "mouse-7"), ("behind", "mouse-8")):
        job = recruiter.job("align", {"sample": sample, "gate": gate}).schedule_in("2s")
        ids[name] = str(job.with_priority(1 if name == "running" else 0).enqueue().id)
    recruiter.store.scheduled.collection.insert_one({"task": 42, "args": "nothing"})
    world.until(lambda: world.state(ids["running"]) == "running")
    return ids
