"""Resources and limits across a fleet: never crossed, nobody starved; a job that kills workers is found out."""

from __future__ import annotations

from pathlib import Path

from recruiter.store.database import Store
from tests.applications import limited
from tests.conftest import Process, Starter, eventually

RUNS = limited

APPLICATION = str(Path(limited.__file__))


def test_a_job_that_kills_its_whole_worker_is_set_aside_after_three_that_it_had_alone_and_harms_nobody(
    start: Starter, store: Store
) -> None:
    # given somebody who starts a worker whenever one has died, as a service manager does
    quick = {"RECRUITER_HEARTBEAT": "300ms", "RECRUITER_CONSIDERED_DEAD_AFTER": "1500ms"}
    start("start", "recruiter", "--bootstrap", APPLICATION, **quick)
    workers: list[Process] = []

    def keep_working() -> bool:
        if not workers or workers[-1].popen.poll() is not None:
            workers.append(start("start", "worker", "--bootstrap", APPLICATION, **quick))
        return True

    # when the poison comes, with others before and after it
    before = [limited.innocent.enqueue(number) for number in range(3)]
    poison = limited.poison.enqueue()
    after = [limited.innocent.enqueue(number) for number in range(3, 6)]
    ended = eventually(lambda: store.archived.get(poison.id) if keep_working() else None, within=60)
    assert ended is not None
    eventually(lambda: keep_working() and all(store.archived.get(job.id) for job in before + after), within=30)

    # then it is set aside after three deaths that were certainly its own, and the others have lost no attempt
    assert (ended.why, ended.crashes) == ("crashed-too-many-times", 3)
    assert len(workers) <= 5
    others = [store.archived.get(job.id) for job in before + after]
    assert [(job.done, job.attempts, job.crashes) for job in others if job] == [(True, 1, 0)] * 6

    # and it can be brought back
    again = limited.recruiter.recover(poison.id)
    assert limited.recruiter.find(again.id).recovered_from == poison.id
    limited.recruiter.cancel(again.id)
