"""What a worker says about a job that has left a child."""

from __future__ import annotations

from recruiter.events import Event, Events
from recruiter.log.lines import SENTENCES
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.processes.worker.job_events import JobEvents
from recruiter.store import outcomes
from recruiter.store.codec import encode, job_document
from tests.bench import Bench
from tests.samples import NOW, a_job


def test_a_job_of_an_unknown_task_waits_again(bench: Bench) -> None:
    events, heard = Events(), list[Event]()
    events.listen(heard.append)
    job = a_job()
    document = job_document(job)
    outcome = outcomes.misplaced(document, NOW)

    JobEvents(events, bench.clock, tell_all=False).ended(HeldJob(job.id, encode(document)), outcome, "w1")

    assert [(each.name, each.fields["job"]) for each in heard] == [("job.misplaced", job.id)]
    assert "has a task that this worker does not know" in SENTENCES["job.misplaced"][1]
