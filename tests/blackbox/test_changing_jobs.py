"""Reschedule, run now and reprioritise, with real processes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from recruiter import JobNotFound, JobNotWaiting, Recruiter, RetryManyTimes
from recruiter.domain.job import JobId
from tests.conftest import Process, eventually

Fleet = Callable[..., Process]

APPLICATION = """
import pathlib, time
from recruiter import Recruiter, RetryManyTimes, current_job
recruiter = Recruiter()

@recruiter.task
def note(folder: str, number: int) -> None:
    with (pathlib.Path(folder) / str(number)).open("a") as file:
        file.write("ran\\n")

@recruiter.task(retry=RetryManyTimes(3, 3600))
def fails_first(folder: str) -> str:
    if current_job.attempt == 1:
        raise ConnectionError("not yet")
    return "done"

@recruiter.task
def reminds(folder: str) -> str:
    current_job.once("first", lambda: None)
    current_job.sleep("3 days")
    return "awake"

@recruiter.task
def approves() -> str:
    return current_job.wait_for("approved", timeout="1 day")
"""


@pytest.mark.parametrize("way", ["one by one", "by a filter"])
def test_a_job_whose_reschedule_was_acknowledged_does_not_run_before(
    recruiter: Recruiter, fleet: Fleet, start: Fleet, bootstrap: str, tmp_path: Path, way: str
) -> None:
    """Given 150 due jobs and two workers that run them, when all are put off by an hour at the same time, then exactly
    those run whose reschedule was refused, once; and run now brings the others back, once."""
    fleet(bootstrap, "--processes", "2")
    start("start", "worker", "--bootstrap", bootstrap).says("joined the roster")
    folder = tmp_path / "ran"
    folder.mkdir()
    made: dict[int, JobId] = {}

    def produce() -> None:
        for number in range(150):
            made[number] = recruiter.job("note", [str(folder), number]).enqueue().id

    producer = threading.Thread(target=produce)
    producer.start()
    acknowledged: set[int] = set()
    done = 0
    if way == "one by one":
        for number in range(150):
            eventually(partial(made.__contains__, number))
            try:
                recruiter.reschedule(made[number], in_="1 hour")
                acknowledged.add(number)
            except (JobNotWaiting, JobNotFound):
                pass
    else:
        while producer.is_alive():
            done += recruiter.jobs.reschedule(task="note", in_="1 hour", state="queued")
    producer.join()

    def ran() -> dict[int, int]:
        return {int(file.name): len(file.read_text().splitlines()) for file in folder.iterdir()}

    eventually(lambda: recruiter.jobs.count(state=["queued", "running"]).number == 0)
    put_off = {made_of(made, job.id) for job in recruiter.jobs.iterate(state="postponed")}
    if way == "one by one":
        assert put_off == acknowledged
    else:
        assert len(put_off) == done
    assert set(ran()) == set(range(150)) - put_off
    assert recruiter.jobs.run_now(task="note") == len(put_off)
    eventually(lambda: ran() == dict.fromkeys(range(150), 1))
    eventually(lambda: recruiter.jobs.count(state="succeeded").number == 150)


def made_of(made: dict[int, JobId], id: JobId) -> int:
    return next(number for number, known in made.items() if known == id)


def test_whatever_people_do_at_the_same_time_each_job_ends_once(
    recruiter: Recruiter, fleet: Fleet, bootstrap: str, tmp_path: Path
) -> None:
    """Given jobs that a fleet runs, when people put them off, run them now, reprioritise them, pause their group and
    cancel some of them, all at the same time, then each job ends once, and each that was not cancelled runs once."""
    fleet(bootstrap, "--processes", "2")
    folder = tmp_path / "ran"
    folder.mkdir()
    made = [recruiter.job("note", [str(folder), number]).enqueue().id for number in range(120)]
    over, failures = threading.Event(), list[BaseException]()

    def again_and_again(seed: int, *acts: Callable[[JobId], object]) -> None:
        chance = random.Random(seed)
        while not over.is_set():
            try:
                chance.choice(acts)(chance.choice(made))
            except (JobNotWaiting, JobNotFound):
                pass
            except BaseException as error:
                failures.append(error)

    def pause(_: JobId) -> None:
        recruiter.controls.pause_group("generic")
        recruiter.controls.resume_group("generic")

    people = (
        (lambda id: recruiter.reschedule(id, in_=0.2), lambda id: recruiter.reschedule(id, in_="1 hour")),
        (recruiter.run_now, lambda id: recruiter.reprioritise(id, hash(id) % 7)),
        (lambda _: recruiter.jobs.reschedule(task="note", in_=0.1), lambda _: recruiter.jobs.run_now(task="note")),
        (pause, lambda id: recruiter.cancel(id) if made.index(id) % 4 == 0 else None),
    )
    threads = [threading.Thread(target=again_and_again, args=(seed, *acts)) for seed, acts in enumerate(people)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(list(folder.iterdir())) > 60)
    over.set()
    for thread in threads:
        thread.join()

    assert failures == []
    recruiter.jobs.run_now(task="note")
    eventually(lambda: recruiter.jobs.count(state=["waiting", "running"]).number == 0)
    runs = {int(file.name): len(file.read_text().splitlines()) for file in folder.iterdir()}
    assert set(runs.values()) == {1}
    for number, id in enumerate(made):
        job = recruiter.find(id)
        assert job.done if number in runs else job.why == "cancelled"
        assert number in runs or number % 4 == 0


def test_run_now_on_a_job_that_waits_for_its_retry(
    recruiter: Recruiter, fleet: Fleet, bootstrap: str, tmp_path: Path
) -> None:
    """Given a job that failed and will be tried again in an hour, when a person runs it now, then it succeeds in its
    second attempt."""
    fleet(bootstrap)
    id = recruiter.job("fails_first", [str(tmp_path)]).retry_with_policy(RetryManyTimes(3, 3600)).enqueue().id
    eventually(lambda: recruiter.find(id).attempts == 1 and recruiter.find(id).locked_by is None)

    eventually(lambda: accepted(lambda: recruiter.run_now(id, by="ada", reason="the bank answers again")))

    eventually(lambda: recruiter.find(id).done)
    job = recruiter.find(id)
    assert (job.attempts, [entry.what for entry in job.history]) == (2, ["run-now"])


def accepted(call: Callable[[], None]) -> bool:
    """False while its worker has not let the job go."""
    try:
        call()
    except JobNotWaiting:
        return False
    return True


def test_run_now_ends_a_sleep(recruiter: Recruiter, fleet: Fleet, bootstrap: str, tmp_path: Path) -> None:
    """Given a job that sleeps for three days, when a person runs it now, then its sleep is over."""
    fleet(bootstrap)
    id = recruiter.job("reminds", [str(tmp_path)]).enqueue().id
    eventually(lambda: recruiter.find(id).snoozes == 1)

    eventually(lambda: accepted(lambda: recruiter.reschedule(id, in_="5 days")))
    assert recruiter.find(id).scheduled_at > recruiter.clock.now() + timedelta(days=4)
    recruiter.run_now(id)

    eventually(lambda: recruiter.find(id).done)
    assert recruiter.find(id).result == "awake"


def test_a_job_that_waits_for_a_signal_is_refused_until_it_comes(
    recruiter: Recruiter, fleet: Fleet, bootstrap: str
) -> None:
    fleet(bootstrap)
    id = recruiter.job("approves").enqueue().id
    eventually(lambda: recruiter.find(id).waits_for is not None)

    def refused() -> bool:
        with pytest.raises(JobNotWaiting) as refusal:
            recruiter.run_now(id)
        return "waits for the signal 'approved'" in str(refusal.value)

    eventually(refused)
    with pytest.raises(JobNotWaiting):
        recruiter.reschedule(id, in_="1h")
    recruiter.reprioritise(id, 5)
    recruiter.signal(id, "approved", "yes")

    eventually(lambda: recruiter.find(id).done)
    assert recruiter.find(id).result == "yes"


def test_a_debounced_job_keeps_a_later_time_and_can_be_run_now(
    recruiter: Recruiter, fleet: Fleet, bootstrap: str, tmp_path: Path
) -> None:
    """Given a debounced job that a person has put off, when a producer debounces it again, then it is not due sooner;
    and when a person runs it now, then it runs once with the last arguments."""
    fleet(bootstrap)
    job = recruiter.job("note", [str(tmp_path), 1]).debounce("1 minute", key="report").enqueue()
    recruiter.reschedule(job.id, in_="1 day")

    again = recruiter.job("note", [str(tmp_path), 2]).debounce("1 minute", key="report").enqueue()

    assert again.id == job.id
    assert recruiter.find(job.id).scheduled_at > recruiter.clock.now() + timedelta(hours=23)
    recruiter.run_now(job.id)
    eventually(lambda: recruiter.find(job.id).done)
    assert (tmp_path / "2").read_text() == "ran\n"
    assert not (tmp_path / "1").exists()
