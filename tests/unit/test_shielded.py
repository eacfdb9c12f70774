"""A job is not interrupted in the middle of a call to MongoDB: it hears of it when the call has returned."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context

import pytest

from recruiter import interruption
from recruiter.errors import JobCancelled, JobTimedOut, StoreError
from recruiter.interruption import Interruptible
from recruiter.store.errors import store_call
from tests.own_process import BY_SIGNAL
from tests.threads import JobThread


class Driver:
    """Stands for the driver: a call holds a lock that all threads share, without the care that an interruption asks."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = threading.Event()
        self.may_return = threading.Event()
        self.returned = False

    @store_call
    def call(self) -> str:
        self.lock.acquire()
        self.inside.set()
        while not self.may_return.is_set():
            time.sleep(0.001)
        self.lock.release()
        self.returned = True
        return "answer"


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.may_return.set()


def in_another(call: Callable[[], object]) -> Callable[[], None]:
    """The code of a job that runs a second one inside itself."""

    def code() -> None:
        with Interruptible():
            call()

    return code


@pytest.mark.parametrize("nested", [False, True], ids=["a job", "a job inside a job"])
def test_the_interruption_waits_for_the_call(driver: Driver, nested: bool) -> None:
    job = JobThread(in_another(driver.call) if nested else driver.call)
    assert driver.inside.wait(20)

    job.interruptible.interrupt(JobTimedOut("over"))
    time.sleep(0.02)  # in which it would arrive, at the next line of Python
    assert job.is_alive()
    driver.may_return.set()
    job.join(20)

    assert isinstance(job.raised, JobTimedOut)
    assert driver.returned
    assert not driver.lock.locked()


def test_it_is_raised_at_any_moment_and_the_lock_is_never_left_locked() -> None:
    driver = Driver()
    driver.may_return.set()

    def code() -> None:
        while True:
            driver.call()

    for number in range(100):
        job = JobThread(code)
        threading.Event().wait(number / 17_000)
        job.interruptible.interrupt(JobCancelled("ada"))
        job.join(20)

        assert isinstance(job.raised, JobCancelled)
        assert not driver.lock.locked()


def test_afterwards_it_is_interrupted_as_ever(driver: Driver) -> None:
    driver.may_return.set()
    going_on = threading.Event()

    def code() -> None:
        driver.call()
        going_on.set()
        while True:
            time.sleep(0.001)

    job = JobThread(code)
    assert going_on.wait(20)
    job.interruptible.interrupt(JobTimedOut("over"))
    job.join(20)

    assert isinstance(job.raised, JobTimedOut)


def test_an_error_of_the_call_gives_way_to_the_interruption(driver: Driver) -> None:
    @store_call
    def fail() -> None:
        driver.call()
        raise StoreError("no")

    job = JobThread(fail)
    assert driver.inside.wait(20)
    job.interruptible.interrupt(JobTimedOut("over"))
    driver.may_return.set()
    job.join(20)

    assert isinstance(job.raised, JobTimedOut)
    assert isinstance(job.raised.__context__, StoreError)


def test_a_thread_that_a_job_has_started_is_nobody_to_wait_for(driver: Driver) -> None:
    """Given a thread that has inherited the job's context, then its call does not shield the job."""

    def code() -> None:
        context = copy_context()
        threading.Thread(target=lambda: context.run(driver.call), daemon=True).start()
        while True:
            time.sleep(0.001)

    job = JobThread(code)
    assert driver.inside.wait(20)
    job.interruptible.interrupt(JobTimedOut("over"))
    job.join(20)

    assert isinstance(job.raised, JobTimedOut)
    assert not driver.returned


@BY_SIGNAL
class TestBySignal:
    @pytest.fixture(autouse=True)
    def handler(self) -> Iterator[None]:
        before = signal.getsignal(interruption.SIGNAL)
        interruption.obey_signals()
        yield
        signal.signal(interruption.SIGNAL, before)

    def test_it_waits_for_the_call_too(self, driver: Driver) -> None:
        interruptible = Interruptible(by_signal=True)

        def interrupt() -> None:
            assert driver.inside.wait(20)
            interruptible.interrupt(JobTimedOut("over"))
            time.sleep(0.02)
            driver.may_return.set()

        threading.Thread(target=interrupt).start()
        with pytest.raises(JobTimedOut), interruptible:
            driver.call()

        assert driver.returned
        assert not driver.lock.locked()
