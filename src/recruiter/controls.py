"""Controls for operators of a running fleet: limits, pauses, and drained workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from recruiter.async_face import async_face
from recruiter.domain.duration import DurationLike
from recruiter.domain.names import check_name, check_remark, check_text
from recruiter.domain.planning.fair import FairShare
from recruiter.domain.planning.limits import Limit
from recruiter.domain.planning.needs import AmountLike
from recruiter.domain.planning.rules import FLEET, Rules
from recruiter.domain.schedule.scheduler import Pause
from recruiter.errors import LimitNotFound, WorkerNotFound
from recruiter.store.database import Store
from recruiter.views.resources import ResourceUse, resources


class Controls:
    """`recruiter.controls`. Everything takes effect within a second or so, and on jobs that are not running yet."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store

    def limits(self) -> list[Limit]:
        """All limits."""
        return list(self.rules().limits)

    def rules(self) -> Rules:
        """All limits, pauses and shared groups."""
        return self._store().limits.read()

    arules = async_face(rules)

    def set_limit(
        self,
        subject: str,
        at_once: AmountLike | None = None,
        *,
        count: int | None = None,
        per: DurationLike | None = None,
        floating: bool = False,
        by: str | None = None,
    ) -> Limit:
        """Sets how many jobs of `task:NAME`, `group:NAME` or each `key:KIND` may run concurrently, or how much of
        `resource:NAME` may be in use in the whole fleet; or how many may start (`count`) in a period (`per`); or
        both."""
        check_remark(by, None)
        limit = Limit.of(subject, at_once, count=count, seconds=per, floating=floating)
        self._store().limits.set(limit, by, self._now())
        return limit

    aset_limit = async_face(set_limit)

    def remove_limit(self, subject: str) -> None:
        """Removes the limit that was set on this subject. If the application declares one, that is in force again.
        Raises LimitNotFound."""
        subject = check_text("the subject of a limit", subject)
        if self._store().limits.remove(subject):
            return
        if subject in self.rules().declared:
            raise LimitNotFound(
                f"the limit on {subject!r} is declared in the application: change it there, or set another one instead"
            )
        raise LimitNotFound(f"there is no limit on {subject!r}; `recruiter limit list` shows those there are")

    aremove_limit = async_face(remove_limit)

    def pause_group(self, group: str, *, by: str | None = None, reason: str | None = None) -> None:
        """Pauses a group: none of its jobs starts until it is resumed. Running jobs continue. Workers learn it with
        their next heartbeat (a second), and hand back the jobs that they hold and have not started."""
        check_remark(by, reason)
        self._pause(f"group:{check_name('group', group)}", by, reason)

    apause_group = async_face(pause_group)

    def resume_group(self, group: str) -> bool:
        """Resumes a group: its jobs start again. False if it was not paused."""
        return self._resume(f"group:{check_name('group', group)}")

    aresume_group = async_face(resume_group)

    def share_group(
        self, group: str, by: str = "owner", *, weights: Mapping[str, float] | None = None, set_by: str | None = None
    ) -> FairShare:
        """Shares a group fairly: its jobs take turns by their `owner` or `key`, so that the backlog of one tenant does
        not hold up another. A tenant with weight 3 gets three turns where others get one. Raises SettingsError."""
        check_remark(set_by, None)
        share = FairShare.of(by, weights)
        self._store().limits.share(check_name("group", group), share, set_by, self._now())
        return share

    ashare_group = async_face(share_group)

    def unshare_group(self, group: str) -> bool:
        """Stops sharing a group: its jobs run by priority and time again. False if it was not shared."""
        return self._store().limits.unshare(check_name("group", group))

    aunshare_group = async_face(unshare_group)

    def block_starts(self, *, by: str | None = None, reason: str | None = None) -> None:
        """Blocks all starts: no job starts anywhere until starts are allowed again. Running jobs continue. Workers
        learn it with their next heartbeat (a second), and hand back the jobs that they hold and have not started."""
        check_remark(by, reason)
        self._pause(FLEET, by, reason)

    ablock_starts = async_face(block_starts)

    def allow_starts(self) -> bool:
        """Allows starts again everywhere. False if they were not blocked."""
        return self._resume(FLEET)

    aallow_starts = async_face(allow_starts)

    def drain_worker(self, worker: str, *, by: str | None = None, reason: str | None = None) -> None:
        """Drains a worker: it finishes the jobs it holds and gets no new ones. Raises WorkerNotFound."""
        check_remark(by, reason)
        self._drain(worker, {"at": self._now(), "by": by, "reason": reason})

    adrain_worker = async_face(drain_worker)

    def resume_worker(self, worker: str) -> None:
        """Resumes a worker: it gets jobs again. Raises WorkerNotFound."""
        self._drain(worker, None)

    aresume_worker = async_face(resume_worker)

    def resources(self) -> list[ResourceUse]:
        """The capacity and the use of each resource, on each host and in the fleet."""
        return resources(self._store())

    aresources = async_face(resources)

    def _pause(self, subject: str, by: str | None, reason: str | None) -> None:
        """Pauses `group:NAME`, or everything as `fleet`. One heartbeat after this has returned, no job of it starts.

        The leader reads the pauses about once a second and assigns no paused job. Workers hold jobs that were assigned
        before: so the roster document of each worker gets a mark. The worker sees the mark with its next heartbeat,
        reads the pauses, and hands back the paused jobs that have not started.
        """
        store = self._store()
        store.limits.pause(subject, Pause(self._now(), by, reason))
        store.roster.tell_of_pauses()

    def _resume(self, subject: str) -> bool:
        """False if it was not paused."""
        store = self._store()
        was_paused = store.limits.resume(subject)
        store.roster.tell_of_pauses()
        return was_paused

    def _drain(self, worker: str, why: dict[str, object] | None) -> None:
        worker = check_text("a worker", worker)
        if not self._store().roster.set_drained(worker, why):
            raise WorkerNotFound(f"no worker {worker!r} is on the roster")

    def _now(self) -> datetime:
        return self._store().clock.now()
