"""What a worker says about a job that has left a child."""

from __future__ import annotations

import pytest

from recruiter.events import Event, Events
from recruiter.log.lines import SENTENCES
from recruiter.processes.worker.held_jobs import HeldJob
from recruiter.processes.worker.job_events import JobEvents
from recruiter.store import outcomes
from recruiter.store.codec import encode, job_document
from tests.bench import Bench
from tests.samples import NOW, a_job


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ("job.suspected", "a job of its process held up the others, it is not known which; it runs alone now"),
        ("job.misplaced", "has a task that this worker does not know"),
    ],
)
def test_why_a_job_waits_again(bench: Bench, event: str, said: str) -> None:
    events, heard = Events(), list[Event]()
    events.listen(heard.append)
    job = a_job()
    document = job_document(job)
    outcome = outcomes.suspected(document) if event == "job.suspected" else outcomes.misplaced(document, NOW)

    JobEvents(events, bench.clock, tell_all=False).ended(HeldJob(job.id, encode(document)), outcome, "w1")

    assert [(each.name, each.fields["job"]) for each in heard] == [(event, job.id)]
    assert said in SENTENCES[event][1]
