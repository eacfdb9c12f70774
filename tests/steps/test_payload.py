"""Arguments and results through a codec of the application: encrypted, compressed, and clear where it is said."""

from __future__ import annotations

import os
import zlib
from typing import Any

import pytest

from recruiter import PayloadSealed, Recruiter, SettingsError, current_job
from recruiter.crypto import AesGcm, Zlib
from recruiter.store.database import Store
from recruiter.testing import Sandbox

pytest.importorskip("cryptography")

OLD, NEW = os.urandom(32), os.urandom(32)
SECRET = "4111 1111 1111 1111"


def charge(order: int, card: str) -> str:
    assert current_job.args == {"order": order, "card": card}
    return f"{order} paid with {card}"


@pytest.fixture
def recruiter(target: str, store: Store) -> Any:
    with Recruiter(target, codec=AesGcm({"old": OLD, "new": NEW}, "new"), clear=["order"]) as recruiter:
        yield recruiter


def everything_stored(store: Store) -> str:
    """As text, with whatever is binary left as it is."""
    return repr([list(store.database[name].find({})) for name in store.database.list_collection_names()])


class TestSealed:
    def test_a_result_of_a_jobs_own_transaction_is_sealed(self, recruiter: Recruiter, store: Store) -> None:
        @recruiter.task
        def order(card: str) -> str:
            with current_job.transaction():
                current_job.set_result(f"paid with {card}")
            return ""

        job = order.enqueue(SECRET)
        recruiter.run(order)

        assert job.result(timeout=60) == f"paid with {SECRET}"
        assert SECRET not in everything_stored(store)

    def test_assertions_of_tests_see_through_it(self, recruiter: Recruiter, target: str) -> None:
        task = recruiter.task(charge)
        sandbox = Sandbox(recruiter, target)
        task.enqueue(7, SECRET)

        sandbox.assert_enqueued(task, card=SECRET)


class TestKeys:
    def test_after_a_rotation_old_payloads_are_opened(self, recruiter: Recruiter, target: str) -> None:
        before = Recruiter(target, codec=AesGcm({"old": OLD}, "old"))
        job = before.task(charge).enqueue(7, SECRET)

        recruiter.run(recruiter.task(charge))

        assert recruiter.handle(job.id).result(timeout=60) == f"7 paid with {SECRET}"
        with pytest.raises(PayloadSealed, match="the key 'new', which this process does not have"):
            before.handle(job.id).result(timeout=60)
        before.close()

    def test_a_result_that_cannot_be_opened_names_its_job_and_the_option(
        self, recruiter: Recruiter, target: str
    ) -> None:
        task = recruiter.task(charge)
        job = task.enqueue(7, SECRET)
        recruiter.run(task)

        with Recruiter(target) as other, pytest.raises(PayloadSealed) as raised:
            other.handle(job.id).result(timeout=60)

        assert str(job.id) in str(raised.value)
        assert "Recruiter(codec=…)" in str(raised.value)

    @pytest.mark.parametrize(
        ("keys", "current"),
        [({}, "a"), ({"a": b"short"}, "a"), ({"a": "no base64!"}, "a"), ({"a": OLD}, "b"), ({"": OLD}, "")],
    )
    def test_the_keys_of_a_codec_are_checked(self, keys: dict[str, Any], current: str) -> None:
        with pytest.raises(SettingsError):
            AesGcm(keys, current)


class TestOthers:
    def test_payloads_are_compressed(self, target: str, store: Store) -> None:
        with Recruiter(target, codec=Zlib()) as recruiter:
            task = recruiter.task(charge)
            job = task.enqueue(7, "x" * 100_000)
            stored = store.scheduled.document(job.id)
            assert stored is not None
            assert len(stored["args"]["payload"]) < 1_000
            recruiter.run(task)
            assert job.result(timeout=60) == "7 paid with " + "x" * 100_000

    def test_one_of_the_application(self, target: str) -> None:
        class Reversed:
            name = "reversed"

            def encode(self, payload: bytes, context: bytes) -> bytes:
                return zlib.compress(payload[::-1] + context)

            def decode(self, payload: bytes, context: bytes) -> bytes:
                return zlib.decompress(payload).removesuffix(context)[::-1]

        with Recruiter(target, codec=Reversed()) as recruiter:
            task = recruiter.task(charge)
            job = task.enqueue(7, SECRET)
            recruiter.run(task)
            assert job.result(timeout=60) == f"7 paid with {SECRET}"
