"""The weather: the fate of each call to the server, and of the process that makes it.

    lost         not applied; the caller gets an error
    unanswered   applied; the caller gets an error
    late         the caller gets an error; applied some time later
    twice        applied; the caller gets an error; applied once more later
    crash        the process dies, before the call is applied or after
    freeze       the process stands still, before the call is applied or after
    cut off      for a while every call of the process fails

An insert is never applied twice, and never late: the driver numbers it, and the server takes each number once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pymongo import _csot
from pymongo.errors import AutoReconnect, NetworkTimeout, PyMongoError

from tests.simulator.hub import Hub, ProcessDied, Threads
from tests.simulator.server import Locked

T = TypeVar("T")

_LATENCY = 0.004
_BETWEEN_TRIES, _LONGEST_BETWEEN_TRIES = 0.02, 0.3
_PATIENCE = 20.0
_WORST, _WORSE = ("roster.bulk_write", "commit"), 20
"""Calls at which a pause does most harm: the facts that were read before are old by then."""


@dataclass(frozen=True)
class Weather:
    """The probabilities of faults, per call."""

    trouble: float = 0.0
    """The call is lost, unanswered, late or twice."""
    crash: float = 0.0
    freeze: float = 0.0
    longest_freeze: float = 8.0
    cut: float = 0.0


CALM = Weather()


class ProcessNetwork:
    """Carries the calls of one process."""

    def __init__(
        self,
        hub: Hub,
        threads: Threads,
        weather: Callable[[], Weather],
        hit: Callable[[str], None],
        tell: Callable[[str], None] | None,
    ) -> None:
        self._hub = hub
        self._threads = threads
        self._weather = weather
        self._hit = hit
        """Called with the fault that hits the process."""
        self._tell = tell
        """Called with each call and its result; None if they are not printed."""
        self._cut_until = 0.0
        self.calls = 0

    def monotonic(self) -> float:
        return self._hub.now

    def wait(self) -> None:
        self._hub.sleep(self._hub.random.uniform(0.02, 0.2))

    def call(self, what: str, act: Callable[[], T], *, writes: bool = False, commits: bool = False) -> T:
        if self._threads.dead:
            raise ProcessDied
        self.calls += 1
        deadline = self._hub.now + (_csot.get_timeout() or _PATIENCE)
        self._hub.sleep(self._hub.random.random() * _LATENCY)
        weather = self._weather()
        if weather is CALM:
            return self._heard(what, self._applied(act, deadline))
        self._perhaps_cut_off(weather)
        self._perhaps_fail(weather, what)
        if not self._hub.chance(weather.trouble):
            answer = self._heard(what, self._applied(act, deadline))
        else:
            self._in_trouble(what, act, deadline, writes, commits)
        if self._hub.chance(0.3):
            self._hub.sleep(self._hub.random.random() * _LATENCY)
        self._perhaps_fail(weather, what)
        return answer

    def _heard(self, what: str, answer: T) -> T:
        if self._tell is not None:
            self._tell(f"{what} {str(answer)[:200]}")
        return answer

    def _in_trouble(self, what: str, act: Callable[[], T], deadline: float, writes: bool, commits: bool) -> None:
        can_be_late = commits or (writes and not what.endswith(".insert"))
        fates = ["lost", "unanswered", *(["late"] if can_be_late else []), *(["twice"] if can_be_late else [])]
        fate = self._hub.random.choice(fates)
        if self._tell is not None:
            self._tell(f"{what} {fate}")
        if fate in ("unanswered", "twice"):
            self._applied(act, deadline)
        if fate in ("late", "twice"):
            self._hub.start(lambda: self._later(act), after=self._hub.random.expovariate(1.0))
        self._hub.sleep(self._hub.random.random())
        raise _broken(commits)

    def _applied(self, act: Callable[[], T], deadline: float) -> T:
        pause = _BETWEEN_TRIES
        while True:
            try:
                return act()
            except Locked:
                if self._hub.now > deadline:
                    raise NetworkTimeout("timed out: waiting for a lock") from None
            self._hub.sleep(pause)
            pause = min(_LONGEST_BETWEEN_TRIES, 1.5 * pause)

    def _later(self, act: Callable[[], T]) -> None:
        for _ in range(100):
            try:
                act()
                return
            except PyMongoError:
                return
            except Locked:
                self._hub.sleep(_BETWEEN_TRIES)

    def _perhaps_cut_off(self, weather: Weather) -> None:
        if self._hub.chance(weather.cut):
            self._hit("cut off")
            self._cut_until = self._hub.now + self._hub.random.uniform(0.5, 2 * weather.longest_freeze)
        if self._cut_until > self._hub.now and weather is not CALM:
            self._hub.sleep(min(0.5, self._cut_until - self._hub.now))
            raise _broken(False)

    def _perhaps_fail(self, weather: Weather, what: str) -> None:
        freeze = weather.freeze * (_WORSE if what in _WORST else 1)
        if not weather.crash and not freeze:
            return
        luck = self._hub.random.random()
        if luck < weather.crash:
            self._hit(f"killed at {what}")
            self._threads.die()
        elif luck < weather.crash + freeze:
            self._hit(f"frozen at {what}")
            self._threads.freeze(self._hub.random.uniform(0.1, weather.longest_freeze))
            self._hub.sleep(0.0)


def _broken(commits: bool) -> AutoReconnect:
    error = AutoReconnect("connection closed")
    error._add_error_label("UnknownTransactionCommitResult" if commits else "TransientTransactionError")
    return error
