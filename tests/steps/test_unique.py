"""Unique, debounced and throttled jobs: any number of producers, one job."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient

from recruiter import Recruiter, RetryManyTimes
from recruiter.doctor import examine
from recruiter.errors import InvalidJob
from recruiter.steps.clean import clean_unique_keys
from recruiter.store.database import Store
from recruiter.testing import Sandbox

T0 = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def resize(recruiter: Recruiter) -> Any:
    @recruiter.task
    def resize(picture: int, width: int = 64) -> str:
        return f"{picture} at {width}"

    return resize


class TestUnique:
    def test_one_that_failed_and_waits_for_its_retry_has_not_ended(self, recruiter: Recruiter) -> None:
        @recruiter.task(retry=RetryManyTimes(1, "1 hour"))
        def fail() -> None:
            raise ValueError("no")

        first = fail.job().unique().enqueue()
        recruiter.run(fail)

        assert not fail.job().unique().enqueue().created
        assert fail.job().unique(until="started").enqueue().created
        del first

    def test_in_the_callers_transaction(self, resize: Any, target: str, store: Store) -> None:
        with MongoClient[dict[str, Any]](target) as client, client.start_session() as session:
            session.start_transaction()
            resize.job(1).unique().enqueue(session=session)
            session.abort_transaction()
            with session.start_transaction():
                first = resize.job(1).unique().enqueue(session=session)
                second = resize.job(1).unique().enqueue(session=session)
                many = resize.enqueue_many([(1,), (2,)], unique="ended", session=session)

        assert [job.created for job in (first, second, *many)] == [True, False, False, True]
        assert store.scheduled.collection.count_documents({}) == 2

    def test_an_at_most_once_job_is_not_debounced(self, resize: Any) -> None:
        with pytest.raises(InvalidJob, match="at-most-once"):
            resize.job(1).at_most_once().debounce("10s").enqueue()


class TestTogether:
    def test_while_workers_run_them_no_change_is_missed(self, recruiter: Recruiter) -> None:
        """Given producers that change something and then ask for a job that reads it, unique until it is started: the
        last change is always seen."""
        changed = seen = 0

        @recruiter.task
        def index() -> None:
            nonlocal seen
            seen = changed

        stop = threading.Event()
        watcher = threading.Thread(target=recruiter.watch, args=(index,), kwargs={"stop": stop})
        watcher.start()
        try:
            for number in range(1, 60):
                changed = number
                index.job().unique(until="started").enqueue()
            deadline = time.monotonic() + 30
            while seen != 59 and time.monotonic() < deadline:
                time.sleep(0.01)
        finally:
            stop.set()
            watcher.join(timeout=30)

        assert seen == 59


class TestDebounce:
    def test_arguments_debounced_after_the_assignment_are_not_lost(self, recruiter: Recruiter, store: Store) -> None:
        """Given a job that a worker was given and has fetched, when its arguments are replaced before it starts, then
        the worker runs it with the new ones, or somebody else does."""
        ran: list[int] = []

        @recruiter.task
        def index(number: int) -> None:
            ran.append(number)

        fetch, again = store.scheduled.fetch, list[int]()

        def fetch_late(ids: Any) -> Any:
            found = fetch(ids)
            if not again:
                again.append(1)
                document = dict(store.scheduled.document(ids[0]) or {})
                store.scheduled.collection.update_one({"_id": document["_id"]}, {"$set": {"args": {"number": 2}}})
            return found

        index.job(1).debounce(0.001).enqueue()
        recruiter.store.scheduled.fetch = fetch_late  # type: ignore[method-assign]
        recruiter.run_all(index)

        assert ran == [2]

    def test_a_debounce_lasts_no_longer_than_at_most(self, resize: Any, sandbox: Sandbox) -> None:
        for number in range(30):
            resize.job(number).debounce("10s", at_most="1m").enqueue()
            sandbox.move_clock("5s")

        (job,) = sandbox.jobs(resize)
        assert job.scheduled_at == T0 + timedelta(minutes=1)


class TestKeys:
    def test_one_that_was_written_by_hand_and_makes_no_sense_is_written_anew(self, resize: Any, store: Store) -> None:
        first = resize.job(1).unique().enqueue()
        store.unique_keys.collection.update_one(
            {"job": first.id}, {"$set": {"job": ["no id"], "created_at": "yesterday"}}, bypass_document_validation=True
        )

        assert resize.job(1).unique().enqueue().created
        assert not resize.job(1).unique().enqueue().created

    def test_old_ones_of_jobs_that_are_gone_are_removed(
        self, recruiter: Recruiter, resize: Any, sandbox: Sandbox
    ) -> None:
        resize.job(1).unique().enqueue()
        sandbox.run_due()
        resize.job(2).unique().enqueue()
        keys = recruiter.store.unique_keys.collection
        assert keys.count_documents({}) == 2

        assert clean_unique_keys(recruiter.store, T0 + timedelta(hours=23)) == 0
        assert clean_unique_keys(recruiter.store, T0 + timedelta(hours=25)) == 2

        # that of the job that still waits is kept
        assert keys.count_documents({}) == 1
        assert not resize.job(2).unique().enqueue().created

    def test_what_cannot_be_read_is_found_by_doctor_and_removed_like_any_other(
        self, recruiter: Recruiter, resize: Any, sandbox: Sandbox
    ) -> None:
        """Given a sound key, one whose job is no id, one without a date and one that nobody can decode."""
        resize.job(1).unique().enqueue()
        sandbox.run_due()
        keys = recruiter.store.unique_keys.collection
        sound = {"job": "j", "created_at": T0, "scheduled_at": T0, "forget_at": T0}
        garbled = encode({"_id": "garbled", **sound, "job": "ZZZZ", "forget_at": T0}).replace(
            b"ZZZZ", b"\xff\xfe\xff\xfe"
        )
        bad = [{"_id": "no id", **sound, "job": [7]}, {"_id": "no date", **sound, "created_at": "yesterday"}]
        keys.insert_many([*bad, RawBSONDocument(garbled)], bypass_document_validation=True)

        found = [str(finding) for finding in examine(recruiter.store) if "unique_keys" in finding.text]

        assert len(found) == 2
        assert all(any(f"'{name}'" in text for text in found) for name in ("no id", "no date"))
        assert clean_unique_keys(recruiter.store, T0 + timedelta(hours=25)) == 4
        assert keys.count_documents({}) == 0


class TestThrottle:
    def test_one_at_once_and_one_at_the_end_of_the_period(self, resize: Any, sandbox: Sandbox) -> None:
        ran: list[str] = []
        for number in range(25):
            resize.job(number).throttle("10s").enqueue()
            ran += [report.result for report in sandbox.run_due()]
            sandbox.move_clock("1s")
        sandbox.move_clock("1m")
        ran += [report.result for report in sandbox.run_due()]

        assert ran == ["0 at 64", "10 at 64", "20 at 64", "24 at 64"]
