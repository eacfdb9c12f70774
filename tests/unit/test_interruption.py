"""Reaching user code from outside: it is interrupted while it runs, and nothing else is."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from recruiter import interruption
from recruiter.errors import JobCancelled, JobTimedOut
from recruiter.interruption import Interruptible
from tests.own_process import BY_SIGNAL


def elsewhere(call: object) -> None:
    """In another thread, to its end."""
    thread = threading.Thread(target=call)  # type: ignore[arg-type]
    thread.start()
    thread.join()


class TestInALoop:
    def test_what_comes_after_it_is_not(self) -> None:
        """Given a cancellation that has come when the code did not wait any more, then finalizers go on."""
        interrupted: list[bool] = []

        async def main() -> str:
            interruptible = Interruptible(on_interrupted=lambda: interrupted.append(True))

            async def code() -> str:
                elsewhere(lambda: interruptible.interrupt(JobCancelled("ada")))
                return "result"

            result = str(await interruptible.awaiting(code()))
            await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)
            return result

        assert asyncio.run(main()) == "result"
        assert interrupted == []


class TestInAThread:
    def test_a_second_interruption_after_the_end_does_nothing(self) -> None:
        interruptible = Interruptible()

        def code() -> None:
            with interruptible:
                elsewhere(lambda: interruptible.interrupt(JobTimedOut("over")))
                for _ in range(1000):
                    time.sleep(0.001)

        with pytest.raises(JobTimedOut):
            code()

        elsewhere(lambda: interruptible.interrupt(JobCancelled("ada")))
        for _ in range(300):
            str(object())
        assert isinstance(interruptible.error, JobTimedOut)


@BY_SIGNAL
class TestBySignal:
    @pytest.fixture(autouse=True)
    def handler(self) -> Iterator[None]:
        before = signal.getsignal(interruption.SIGNAL)
        yield
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {interruption.SIGNAL})
        signal.signal(interruption.SIGNAL, before)

    def test_it_is_obeyed_whatever_an_earlier_job_has_left_behind(self) -> None:
        signal.signal(interruption.SIGNAL, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_BLOCK, {interruption.SIGNAL})
        interruption.obey_signals()
        interruptible = Interruptible(by_signal=True)

        def code() -> None:
            with interruptible:
                threading.Timer(0.05, lambda: interruptible.interrupt(JobTimedOut("over"))).start()
                time.sleep(20)

        with pytest.raises(JobTimedOut):
            code()


class TestInsideAnother:
    def test_what_the_outer_one_was_interrupted_with_is_passed_on(self) -> None:
        outer, inner = Interruptible(), Interruptible()

        def both() -> None:
            with outer:
                with inner:
                    outer.error = JobTimedOut("over")  # as if the inner one had caught it
                interruption.pass_on()

        with pytest.raises(JobTimedOut):
            both()

    def test_an_interruption_is_not_passed_on_when_the_outer_job_is_over(self) -> None:
        """A thread that it has left behind may still run jobs."""
        outer = Interruptible()
        with outer:
            pass
        outer.error = JobTimedOut("over")

        interruption.pass_on()
