"""Workers and children that die: every job ends, each is archived once, and only the guilty one pays."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from recruiter.domain.job import ArchivedJob
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Process, Starter, eventually
from tests.processes.conftest import Lead

JOBS = jobs.__file__
QUICK = ("--considered-dead-after", "3s")
QUICKLY = {"lease_time": 2.0, "dead_after": 3.0}


def start_worker(start: Starter, processes: int = 2, *options: str) -> Process:
    worker = start("start", "worker", "--bootstrap", JOBS, "--processes", str(processes), *QUICK, *options)
    worker.says("joined the roster")
    return worker


def archived(store: Store) -> list[ArchivedJob]:
    ids = [document["_id"] for document in store.archived.collection.find({}, {"_id": 1})]
    return list(store.archived.get_many(ids).values())


def ended(store: Store, count: int) -> bool:
    return store.archived.collection.count_documents({}) >= count


def test_a_worker_killed_in_the_middle_of_50_jobs_loses_none(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given a worker in the middle of 50 jobs
    lead(**QUICKLY)
    worker = start_worker(start)
    jobs.record.enqueue_many([(str(tmp_path), f"job-{number}", 0.05) for number in range(50)])
    eventually(lambda: ended(store, 10))

    # when it is killed, and another one is there
    worker.signal(signal.SIGKILL)
    assert not ended(store, 50)
    start_worker(start)

    # then all 50 end, each archived once, and the children have died with their supervisor
    eventually(lambda: ended(store, 50), within=40)
    everything = archived(store)
    assert len(everything) == 50
    assert all(job.done for job in everything)
    assert store.scheduled.collection.count_documents({}) == 0
    assert sorted(job.result for job in everything) == sorted(f"job-{number}" for number in range(50))


def test_children_die_with_their_supervisor(lead: Lead, start: Starter, tmp_path: Path) -> None:
    lead(**QUICKLY)
    worker = start_worker(start)
    jobs.record.enqueue(str(tmp_path), "long", 60.0)
    eventually(lambda: (tmp_path / "long").exists())
    family = worker.descendants()

    worker.signal(signal.SIGKILL)
    worker.wait()

    gone, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert len(gone) >= 3


def test_a_frozen_worker_finds_its_results_refused_and_rejoins_under_a_new_id(
    lead: Lead, start: Starter, store: Store, tmp_path: Path
) -> None:
    # given a worker that runs a job, and is frozen with all its children past its time
    lead(**QUICKLY)
    frozen = start_worker(start, 1)
    (first_id,) = [entry.id for entry in store.roster.entries()]
    gate = tmp_path / "gate"
    handle = jobs.wait_for_file.enqueue(str(gate))
    eventually(lambda: [run for entry in store.roster.entries() for run in entry.running])
    family = [psutil.Process(frozen.pid), *frozen.descendants()]
    for member in family:
        member.suspend()
    eventually(lambda: store.roster.entries() == [])

    # when another worker does the job, and the first one wakes up and finishes it too
    other = start_worker(start, 1)
    gate.touch()
    done = handle.wait(timeout=60)
    for member in family:
        member.resume()

    # then it has lost its registration, comes back under a new id, and the job was archived once
    frozen.says("no longer on the roster")
    eventually(lambda: len(store.roster.entries()) == 2)
    assert first_id not in [entry.id for entry in store.roster.entries()]
    assert len(archived(store)) == 1
    assert done.done
    assert done.last_execution is not None
    assert not (done.last_execution.worker or "").startswith(first_id)
    # the crash of the first attempt is in its history
    assert [execution.crashed for execution in done.executions] == [True, False]
    # and the one that came back works
    assert other.stop() == 0
    assert jobs.my_pid.enqueue().result(timeout=60) in frozen.children()


@pytest.mark.parametrize("killer", ["end_abruptly", "segfault", "kill_myself"])
def test_a_job_that_kills_its_process_fails_alone(lead: Lead, start: Starter, store: Store, killer: str) -> None:
    # given jobs around one that takes its process down
    lead(**QUICKLY)
    worker = start_worker(start)
    before = jobs.add.enqueue_many([(number, 1) for number in range(100)])
    guilty = jobs.end_abruptly.enqueue(7) if killer == "end_abruptly" else getattr(jobs, killer).enqueue()
    after = jobs.add.enqueue_many([(number, 1) for number in range(100)])

    # then it is tried three times and set aside, and every other job runs once, at the first attempt
    end = guilty.wait(timeout=60)
    assert not end.done
    assert end.why == "crashed-too-many-times"
    assert [execution.crashed for execution in end.executions] == [True, True, True]
    said = {"end_abruptly": "exited with code 7", "segfault": "SIGSEGV", "kill_myself": "SIGKILL"}[killer]
    assert end.last_execution is not None
    assert said in (end.last_execution.message or "")
    eventually(lambda: ended(store, 201))
    others = [job for job in archived(store) if job.id != guilty.id]
    assert len(others) == len(before) + len(after)
    assert all(job.done and len(job.executions) == 1 for job in others)
    assert worker.popen.poll() is None


def test_a_child_killed_from_outside_is_replaced_and_its_job_runs_again(
    lead: Lead, start: Starter, tmp_path: Path
) -> None:
    lead(**QUICKLY)
    worker = start_worker(start, 1)
    handle = jobs.record.enqueue(str(tmp_path), "job", 1.0)
    eventually(lambda: (tmp_path / "job").exists())
    (child,) = worker.children()

    psutil.Process(child).kill()

    end = handle.wait(timeout=60)
    assert end.done
    assert [execution.crashed for execution in end.executions] == [True, False]
    assert (tmp_path / "job").read_text().count("started") == 2


def test_a_job_that_holds_the_interpreter_is_not_declared_dead(start: Starter, store: Store) -> None:
    # given a job that lets no other thread of its process run, for longer than the dead-after time
    quick = {"RECRUITER_HEARTBEAT": "300ms", "RECRUITER_CONSIDERED_DEAD_AFTER": "1500ms"}
    start("start", "recruiter", "--bootstrap", JOBS, **quick)
    worker = start("start", "worker", "--bootstrap", JOBS, **quick)
    worker.says("joined the roster")
    (id_before,) = [entry.id for entry in store.roster.entries()]

    # when it runs
    end = jobs.hold_the_interpreter.enqueue(2.0).wait(timeout=60)

    # then nobody was declared dead, and it ended at the first attempt
    assert end.done
    assert end.result > 1.5
    assert len(end.executions) == 1
    assert [entry.id for entry in store.roster.entries()] == [id_before]
    assert worker.popen.poll() is None
