"""Sealed payloads: bound to their job, refused when they are moved, and never in clear in a message or a collection."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Binary, encode
from pymongo.collection import Collection

from recruiter import Every, JobFailed, Recruiter, RetryManyTimes, SettingsError, State, current_job
from recruiter.doctor import Thresholds, examine
from recruiter.doctor.findings import Code
from recruiter.errors import PayloadSealed
from recruiter.testing import Sandbox

pytest.importorskip("cryptography")

from recruiter.crypto import AesGcm

KEY, OTHER = os.urandom(32), os.urandom(32)
SECRET = "4111 1111 1111 1111"
T0 = datetime(2030, 1, 1, tzinfo=UTC)

Waiting = Collection[dict[str, Any]]


def with_key(target: str, key: bytes = KEY, **options: Any) -> Recruiter:
    return Recruiter(target, codec=AesGcm({"2030": key}, "2030"), **options)


@pytest.fixture
def recruiter(target: str, store: Any) -> Iterator[Recruiter]:
    with with_key(target) as recruiter:
        yield recruiter


def everything(recruiter: Recruiter) -> str:
    database = recruiter.store.database
    return repr([list(database[name].find({})) for name in database.list_collection_names()])


def codes(recruiter: Recruiter) -> set[Code]:
    return {finding.code for finding in examine(recruiter.store, Thresholds())}


@pytest.fixture
def charge(recruiter: Recruiter) -> Any:
    @recruiter.task
    def charge(order: int, card: str) -> str:
        return f"{order} paid with {card}"

    return charge


class TestBound:
    """A sealed value opens only in the job, and under the name, for which it was sealed."""

    def test_arguments_of_another_job_are_refused(self, recruiter: Recruiter, charge: Any, scheduled: Waiting) -> None:
        mine, theirs = charge.enqueue(1, SECRET), charge.enqueue(2, "theirs")
        moved = scheduled.find_one({"_id": theirs.id}) or {}
        scheduled.update_one({"_id": mine.id}, {"$set": {"args": moved["args"]}})

        recruiter.run_all(charge)

        assert theirs.result(timeout=60) == "2 paid with theirs"
        assert recruiter.find(mine.id).state is State.WAITING

    def test_a_result_of_another_job_is_refused(self, recruiter: Recruiter, charge: Any) -> None:
        mine, theirs = charge.enqueue(1, SECRET), charge.enqueue(2, "theirs")
        recruiter.run_all(charge)
        archived = recruiter.store.archived.collection
        moved = archived.find_one({"_id": theirs.id}) or {}
        archived.update_one({"_id": mine.id}, {"$set": {"result": moved["result"]}})

        with pytest.raises(Exception, match="it was changed, or moved"):
            mine.result(timeout=60)

    def test_checkpoints_and_signals_belong_to_their_job_and_name(
        self, recruiter: Recruiter, target: str, scheduled: Waiting
    ) -> None:
        sandbox = Sandbox(recruiter, target, now=T0)

        @recruiter.task
        def order(number: int) -> str:
            def charged() -> int:
                return current_job.once("charge", int, number)

            charged()
            return f"{current_job.wait_for('approved')} {charged()}"

        jobs = [order.enqueue(number) for number in (1, 2)]
        sandbox.run_due()
        for job in jobs:
            recruiter.signal(job.id, "approved", "yes")
        moved = scheduled.find_one({"_id": jobs[1].id}) or {}
        stored = scheduled.find_one({"_id": jobs[0].id}) or {}
        scheduled.update_one({"_id": jobs[0].id}, {"$set": {"signals": moved["signals"]}})
        sandbox.run_due()
        assert jobs[1].result(timeout=60) == "yes 2"
        with pytest.raises(JobFailed, match="it was changed, or moved"):
            jobs[0].result(timeout=60)
        assert stored["checkpoints"][0]["result"] != moved["checkpoints"][0]["result"]

    def test_all_of_it_opens_after_a_recovery(self, recruiter: Recruiter, target: str) -> None:
        sandbox, works = Sandbox(recruiter, target, now=T0), list[bool]()

        @recruiter.task
        def order(card: str) -> str:
            receipt = current_job.once("charge", lambda: f"receipt {card}")
            answer = current_job.wait_for("approved")
            if not works:
                raise ConnectionError("the mail server is away")
            return f"{receipt}, {answer}, {current_job.wait_for('sent')}"

        job = order.enqueue(SECRET)
        recruiter.signal(job.id, "approved", "yes")
        sandbox.run_due()
        works.append(True)
        again = recruiter.recover(job.id)
        recruiter.signal(again.id, "sent", SECRET)
        sandbox.run_due()

        assert again.result(timeout=60) == f"receipt {SECRET}, yes, {SECRET}"
        assert SECRET not in everything(recruiter)

    def test_a_debounced_job_opens_the_arguments_of_the_last_call(
        self, recruiter: Recruiter, charge: Any, target: str
    ) -> None:
        sandbox = Sandbox(recruiter, target, now=T0)
        first = charge.job(1, SECRET).debounce("10s").enqueue()
        second = charge.job(2, SECRET).debounce("10s").enqueue()
        sandbox.move_clock("10s")
        sandbox.run_due()

        assert first.id == second.id
        assert second.result(timeout=60) == f"2 paid with {SECRET}"

    def test_occurrences_of_a_scheduler_open(self, recruiter: Recruiter, charge: Any, target: str) -> None:
        sandbox = Sandbox(recruiter, target, now=T0)
        charge.job(1, SECRET).repeat_with_policy(Every("1 hour")).with_urn("hourly").create()
        extra = recruiter.scheduler("hourly").run_now()
        sandbox.run_due()

        assert extra.result(timeout=60) == f"1 paid with {SECRET}"

    def test_many_jobs_and_jobs_made_once_open(self, recruiter: Recruiter, charge: Any) -> None:
        handles = charge.enqueue_many([(number, SECRET) for number in range(3)])
        handles.append(charge.job(7, SECRET).create())
        handles.append(charge.job(8, SECRET).unique().enqueue())
        handles.append(charge.job(9, SECRET).here().execute())
        recruiter.run_all(charge)

        assert [handle.result(timeout=60)[:1] for handle in handles] == ["0", "1", "2", "7", "8", "9"]

    def test_a_flow_whose_step_was_recovered_passes_its_result_on(self, recruiter: Recruiter) -> None:
        works: list[bool] = []

        @recruiter.task
        def card(number: str) -> str:
            if not works:
                raise ConnectionError("away")
            return number

        flow = recruiter.flow("pay")
        first = flow.add(card, SECRET)
        last = flow.add(card, first.result)
        handle = flow.start()
        recruiter.run_all(card)
        works.append(True)
        handle.retry()
        recruiter.run_all(card)

        assert handle.job(last).result(timeout=60) == SECRET


class TestKeys:
    def test_a_worker_without_the_key_hands_the_job_back(self, recruiter: Recruiter, charge: Any, target: str) -> None:
        """No attempt is counted, and a worker with the key runs it."""
        sandbox = Sandbox(recruiter, target, now=T0)
        job = charge.job(7, SECRET).retry_with_policy(RetryManyTimes(1, 0)).enqueue()
        for other in (Recruiter(target), with_key(target, OTHER)):
            with other:
                other.store.clock = recruiter.clock
                other.task(name="charge")(lambda order, card: f"{order} {card}")
                (report,) = other.flush_jobs_synchronously(due_only=True)
                assert (report.done, report.error) == (False, None)
                assert other.find(job.id).attempts == 0
                assert "could not open it, and no attempt was counted" in other.explain(job.id)
                sandbox.move_clock("1 minute")
        sandbox.run_due()

        assert job.result(timeout=60) == f"7 paid with {SECRET}"

    def test_the_doctor_finds_an_unopened_job(self, recruiter: Recruiter, charge: Any, target: str) -> None:
        charge.enqueue(7, SECRET)
        assert Code.NOT_OPENED not in codes(recruiter)
        with with_key(target, OTHER) as other:
            other.task(name="charge")(lambda order, card: f"{order} {card}")
            other.flush_jobs_synchronously(due_only=True)

        assert Code.NOT_OPENED in codes(recruiter)

    def test_a_signal_that_the_job_could_not_open_is_refused(self, recruiter: Recruiter, target: str) -> None:
        """Given a job that waits, when a process with another key sends the signal, then the call says so, and the
        signal of the right process is received."""
        sandbox = Sandbox(recruiter, target, now=T0)

        @recruiter.task
        def order(number: int) -> str:
            return f"{number} {current_job.wait_for('approved')}"

        job = order.enqueue(1)
        sandbox.run_due()
        with with_key(target, OTHER) as other, pytest.raises(PayloadSealed, match="could not open it"):
            other.signal(job.id, "approved", "forged")
        recruiter.signal(job.id, "approved", "yes")
        sandbox.run_due()

        assert job.result() == "1 yes"

    def test_payloads_of_the_previous_release_open(self, recruiter: Recruiter, charge: Any, scheduled: Waiting) -> None:
        """They were bound to their task alone."""
        codec = AesGcm({"2030": KEY}, "2030")
        payload = codec.encode(encode({"value": {"order": 7, "card": SECRET}}), b"recruiter/args/charge")
        args = {"__recruiter__": "sealed", "codec": "aes-gcm", "payload": Binary(payload)}
        scheduled.insert_one({"_id": "old", "task": "charge", "args": args})
        recruiter.flush_jobs_synchronously()

        assert recruiter.handle("old").result(timeout=60) == f"7 paid with {SECRET}"


class TestSealedOnly:
    def test_arguments_in_clear_are_refused(self, target: str, scheduled: Waiting) -> None:
        with with_key(target, sealed_only=True) as recruiter:
            ran: list[int] = []

            @recruiter.task
            def charge(order: int = 0) -> None:
                ran.append(order)

            charge.enqueue(1)
            charge.enqueue()
            scheduled.insert_one({"_id": "forged", "task": "charge", "args": {"order": 1000}})
            scheduled.insert_one({"_id": "forged, too", "task": "charge", "args": {}})
            recruiter.flush_jobs_synchronously()

            assert ran == [1, 0]
            with pytest.raises(JobFailed, match="not sealed"):
                recruiter.handle("forged").result(timeout=60)
            assert recruiter.find("forged, too").state is State.FAILED

    def test_it_needs_a_codec(self, target: str) -> None:
        with pytest.raises(SettingsError, match="codec"):
            Recruiter(target, sealed_only=True)


class TestMessages:
    def test_no_argument_is_in_a_message_a_log_or_a_collection(
        self, recruiter: Recruiter, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        job = recruiter.job("pay", {"amount": SECRET}).enqueue()  # the producer does not know the type

        @recruiter.task
        def pay(amount: int) -> int:
            return amount

        recruiter.run_all(pay)

        with pytest.raises(JobFailed, match="amount: expected int, got str") as raised:
            job.result(timeout=60)
        assert SECRET not in f"{raised.value} {caplog.text} {everything(recruiter)}"

    def test_no_result_or_checkpoint_that_cannot_be_stored_is_in_a_message(self, recruiter: Recruiter) -> None:
        class Card:
            def __repr__(self) -> str:
                return f"Card({SECRET})"

        @recruiter.task
        def keep() -> None:
            current_job.once("card", Card)

        @recruiter.task
        def give() -> Any:
            return {"card": SECRET, "object": Card()}

        for task in (keep, give):
            job = task.enqueue()
            recruiter.run_all(task)
            with pytest.raises(JobFailed, match="UnsupportedValue") as raised:
                job.result(timeout=60)
            assert SECRET not in f"{raised.value} {everything(recruiter)}"
