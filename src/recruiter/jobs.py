"""`recruiter.jobs`: lists, counts, changes, cancels, recovers and removes the jobs that a filter finds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Unpack

from recruiter.async_face import async_face
from recruiter.domain.duration import DurationLike
from recruiter.domain.job import Job, JobId
from recruiter.domain.names import check_remark
from recruiter.domain.search.filter import Conditions, Count, JobFilter, Page, filter_of
from recruiter.domain.text import shown
from recruiter.errors import InvalidFilter
from recruiter.steps.cancel import cancel_some, without_new_jobs
from recruiter.steps.change import change_some, to_now, to_priority, to_time
from recruiter.steps.clean import remove_some
from recruiter.steps.recover import checked_moment, recover_some
from recruiter.store.changes import JobChange
from recruiter.store.codec import Document
from recruiter.store.database import Store
from recruiter.store.fields import check_id
from recruiter.store.search.search import MINIMAL
from recruiter.views.find import identify, recognize

MAX_JOBS_LISTED = 1_000
MAX_JOBS_COUNTED = 100_000
_PAGE_JOBS = 500

Progress = Callable[[int], None]
"""Called after each batch with the number of jobs that are done."""


class Jobs:
    """`recruiter.jobs`. Every method takes a `JobFilter`, or its conditions as keywords: `state="failed",
    since="2h"`."""

    def __init__(self, store: Callable[[], Store], sent: Callable[[], None]) -> None:
        self._store = store
        self._sent = sent

    def list(
        self,
        filter: JobFilter | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        minimal: bool = False,
        **conditions: Unpack[Conditions],
    ) -> Page[Job]:
        """A page of jobs: running jobs, then waiting jobs in the order in which they will start, then ended jobs, the
        newest first. `after` is the `next` of the previous page. With `minimal`, arguments, result, log and history
        are not read and stay empty, and `executions` has only the last attempt, without its trace."""
        wanted = filter_of(filter, conditions)
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_JOBS_LISTED:
            raise InvalidFilter(f"limit is {shown(limit)}; a page has 1 to {MAX_JOBS_LISTED:,} jobs")
        store = self._store()
        fields = MINIMAL if minimal else None
        return store.search.jobs(wanted, store.clock.now(), limit=limit, after=after, fields=fields)

    alist = async_face(list)

    def iterate(
        self, filter: JobFilter | None = None, *, minimal: bool = False, **conditions: Unpack[Conditions]
    ) -> Iterator[Job]:
        """All of them, one after another, however many there are."""
        return self._iterate(filter_of(filter, conditions), minimal)

    def _iterate(self, wanted: JobFilter, minimal: bool) -> Iterator[Job]:
        after: str | None = None
        while True:
            page = self.list(wanted, limit=_PAGE_JOBS, after=after, minimal=minimal)
            yield from page
            after = page.next
            if after is None:
                return

    async def aiterate(self, filter: JobFilter | None = None, **conditions: Unpack[Conditions]) -> AsyncIterator[Job]:
        """Like `iterate`, for `async for`; whole jobs only."""
        after: str | None = None
        wanted = filter_of(filter, conditions)
        while True:
            page = await self.alist(wanted, limit=_PAGE_JOBS, after=after)
            for job in page:
                yield job
            after = page.next
            if after is None:
                return

    def count(
        self, filter: JobFilter | None = None, *, most: int | None = MAX_JOBS_COUNTED, **conditions: Unpack[Conditions]
    ) -> Count:
        """Counts the jobs, up to `most`. Without a suitable index it reads at most that many documents; `exact` is
        false if there may be more. `most=None` counts all of them."""
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most < 2**31):
            raise InvalidFilter(f"most is {shown(most)}; it must be a whole number of 1 or more, or None")
        store = self._store()
        return store.search.count(filter_of(filter, conditions), store.clock.now(), most)

    acount = async_face(count)

    def cancel(
        self,
        filter: JobFilter | None = None,
        *,
        by: str | None = None,
        reason: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Cancels jobs that have not ended, as `Recruiter.cancel` does with one; returns how many."""
        check_remark(by, reason)
        wanted = _meant(filter, conditions, everything).to_cancel()
        store = self._store()
        began = store.clock.now()
        return self._each(
            wanted,
            lambda ids: cancel_some(store, wanted, ids, began, by, reason),
            progress,
            also=lambda: without_new_jobs(began, store.clock.now()),
        )

    acancel = async_face(cancel)

    def reschedule(
        self,
        filter: JobFilter | None = None,
        *,
        at: datetime | None = None,
        in_: DurationLike | None = None,
        by: str | None = None,
        reason: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Gives waiting jobs another time, as `Recruiter.reschedule` does with one; returns how many. Jobs that a
        worker takes meanwhile, and jobs that cannot be changed, stay unchanged."""
        check_remark(by, reason)
        change = to_time(self._store().clock.now(), at, in_, by, reason)
        return self._change(_meant(filter, conditions, everything).to_change(), change, progress)

    areschedule = async_face(reschedule)

    def run_now(
        self,
        filter: JobFilter | None = None,
        *,
        by: str | None = None,
        reason: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Makes postponed jobs due, as `Recruiter.run_now` does with one; returns how many."""
        check_remark(by, reason)
        change = to_now(self._store().clock.now(), by, reason)
        return self._change(_meant(filter, conditions, everything).to_run(), change, progress)

    arun_now = async_face(run_now)

    def reprioritise(
        self,
        filter: JobFilter | None = None,
        *,
        priority: int | float,
        by: str | None = None,
        reason: str | None = None,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Gives waiting jobs another priority, as `Recruiter.reprioritise` does with one; returns how many."""
        check_remark(by, reason)
        change = to_priority(self._store().clock.now(), priority, by, reason)
        return self._change(_meant(filter, conditions, everything).to_change(), change, progress)

    areprioritise = async_face(reprioritise)

    def _change(self, wanted: JobFilter, change: JobChange, progress: Progress | None) -> int:
        """Changes all jobs of a filter, each once: a changed job that comes again on a later page is left out there."""
        store = self._store()
        once = [change.not_applied]
        try:
            return self._each(wanted, lambda ids: change_some(store, wanted, ids, change), progress, lambda: once)
        finally:
            self._sent()

    def recover(
        self,
        filter: JobFilter | None = None,
        *,
        schedule_at: datetime | None = None,
        again: bool = False,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Runs ended jobs once more, as `Recruiter.recover` does with one; returns how many.

        A filter without a state selects jobs that failed or were lost. Jobs that succeeded need both
        `state="succeeded"` and `again=True`. A job that has been recovered before is skipped, unless you give
        `recovered=True`; so you can call this again after an interruption.
        """
        wanted = _meant(filter, conditions, everything).to_recover(again=again)
        at = checked_moment(schedule_at)
        store = self._store()
        began = store.clock.now()
        try:
            return self._each(wanted, lambda ids: recover_some(store, wanted, ids, began, at), progress)
        finally:
            self._sent()

    arecover = async_face(recover)

    def remove(
        self,
        filter: JobFilter | None = None,
        *,
        everything: bool = False,
        progress: Progress | None = None,
        **conditions: Unpack[Conditions],
    ) -> int:
        """Removes ended jobs for good; returns how many. Waiting and running jobs are refused."""
        wanted = _meant(filter, conditions, everything).to_remove()
        store = self._store()
        began = store.clock.now()
        return self._each(wanted, lambda ids: remove_some(store, wanted, ids, began), progress)

    aremove = async_face(remove)

    def id_of(self, text: str) -> JobId:
        """The id of the job with this id as text: an ObjectId, a number, a UUID or a string. Raises JobNotFound."""
        return identify(self._store(), str(check_id(text)))

    aid_of = async_face(id_of)

    def recognize(self, filter: JobFilter | None = None, **conditions: Unpack[Conditions]) -> None:
        """Raises InvalidFilter for a task or group that is not known here, and names similar ones: a filter with a
        typing error finds nothing, which looks like good news."""
        recognize(self._store(), filter_of(filter, conditions))

    arecognize = async_face(recognize)

    def _each(
        self,
        wanted: JobFilter,
        act: Callable[[Sequence[JobId]], int],
        progress: Progress | None,
        also: Callable[[], Sequence[Document]] = tuple,
    ) -> int:
        """Calls `act` with all jobs of a filter, page by page; returns the sum. `also` gives further conditions."""
        store = self._store()
        now, after, done = store.clock.now(), None, 0
        while True:
            page = store.search.ids(wanted, now, limit=_PAGE_JOBS, after=after, also=also())
            done += act(page.jobs) if page.jobs else 0
            if progress is not None:
                progress(done)
            after = page.next
            if after is None:
                return done


def _meant(filter: JobFilter | None, conditions: Conditions, everything: bool) -> JobFilter:
    wanted = filter_of(filter, conditions)
    if wanted.is_empty != everything:
        hint = "give everything=True if you mean all jobs" if wanted.is_empty else "everything=True goes with no filter"
        raise InvalidFilter(f"the filter selects {wanted}; {hint}")
    return wanted
