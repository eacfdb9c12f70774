"""What can be done here: each action says what it will do and to how many, does it, and says what came of it.

All of them go through `ActionRunner.do`, which refuses where actions are not allowed, and records who did what before
it is done.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TypedDict

from recruiter.app import Recruiter
from recruiter.domain.duration import to_timedelta
from recruiter.domain.search.filter import JobFilter
from recruiter.errors import (
    InvalidDuration,
    InvalidFilter,
    JobNotFound,
    ReadOnly,
    RecruiterError,
    SettingsError,
    TooManyViewers,
)
from recruiter.web.reader import Reader
from recruiter.web.schemas import Amount
from recruiter.web.sentences import jobs, plural

MOST_IDS = 1_000
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class RequestedAction:
    """An action that a user asks for."""

    verb: str
    """One of `VERBS`."""
    ids: tuple[str, ...] = ()
    """Jobs by their ids; or:"""
    words: Mapping[str, list[str]] = field(default_factory=dict)
    """jobs by a filter."""
    name: str = ""
    """A group, worker, schedule, or the subject of a limit."""
    reason: str | None = None
    at_once: str | None = None
    count: str | None = None
    per: str | None = None
    again: bool = False
    """Recover also jobs that succeeded."""
    to: str | None = None
    """The new time of jobs that are rescheduled, or their new priority."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done."""

    text: str
    button: str
    effect: str
    danger: bool = False
    """There is no way back."""
    asks: str = ""
    """What else must be given, to be written in `to`."""


@dataclass(frozen=True, slots=True)
class _Named:
    """An action on something that has a name."""

    thing: str
    button: str
    effect: str
    run: Callable[[Recruiter, RequestedAction, str], Outcome]
    danger: bool = False


@dataclass(frozen=True, slots=True)
class _OnJobs:
    """An action on jobs."""

    verb: str
    done: str
    effect: str
    among: Callable[[JobFilter, RequestedAction], JobFilter]
    one: Callable[[Recruiter, RequestedAction, str, str], Outcome]
    many: Callable[[Recruiter, RequestedAction, JobFilter, str, Progress], int]
    danger: bool = False
    asks: str = ""


def _cancel_one(recruiter: Recruiter, request: RequestedAction, id: str, by: str) -> Outcome:
    recruiter.cancel(recruiter.jobs.id_of(id), by=by, reason=request.reason)
    return Outcome("The job is being cancelled; the page shows when it has ended.")


def _run_one(recruiter: Recruiter, request: RequestedAction, id: str, by: str) -> Outcome:
    recruiter.run_now(recruiter.jobs.id_of(id), by=by, reason=request.reason)
    return Outcome("The job is due now.")


def _reschedule_one(recruiter: Recruiter, request: RequestedAction, id: str, by: str) -> Outcome:
    recruiter.reschedule(recruiter.jobs.id_of(id), **_time_of(request), by=by, reason=request.reason)
    return Outcome("The job has its new time.")


def _reprioritise_one(recruiter: Recruiter, request: RequestedAction, id: str, by: str) -> Outcome:
    recruiter.reprioritise(recruiter.jobs.id_of(id), _priority_of(request), by=by, reason=request.reason)
    return Outcome("The job has its new priority.")


def _time_of(request: RequestedAction) -> _Time:
    """A date, or how long from now. Raises SettingsError."""
    text = (request.to or "").strip()
    try:
        moment = datetime.fromisoformat(text)
        return {"at": moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)}
    except ValueError:
        pass
    try:
        return {"in_": to_timedelta(text)}
    except InvalidDuration:
        raise SettingsError(
            f"{text[:100]!r} is no time; write 2030-12-01T22:18Z, or 2h for two hours from now"
        ) from None


def _priority_of(request: RequestedAction) -> float:
    try:
        number = float(request.to or "")
    except ValueError:
        raise SettingsError(f"{(request.to or '')[:100]!r} is no priority; write a number such as 5") from None
    return int(number) if number.is_integer() else number


class _Time(TypedDict, total=False):
    """The new time of a job, as `reschedule` takes it."""

    at: datetime
    in_: timedelta


def _recover_one(recruiter: Recruiter, request: RequestedAction, id: str, by: str) -> Outcome:
    del by
    made = recruiter.recover(recruiter.jobs.id_of(id), again=request.again)
    return Outcome("The job runs once more, as a new one.", link=str(made.id))


def _remove_one(recruiter: Recruiter, _: RequestedAction, id: str, by: str) -> Outcome:
    del by
    recruiter.remove(recruiter.jobs.id_of(id))
    return Outcome("The job is removed.")


ON_JOBS = {
    "cancel": _OnJobs(
        "cancel",
        "being cancelled",
        "Waiting jobs never run; running jobs are asked to stop, and are ended if they do not.",
        lambda filter, _: filter.to_cancel(),
        _cancel_one,
        lambda recruiter, request, filter, by, progress: recruiter.jobs.cancel(
            filter, by=by, reason=request.reason, progress=progress
        ),
    ),
    "run": _OnJobs(
        "run",
        "due now",
        "Postponed jobs become due, also those that wait for their retry; they get their turn by their priority.",
        lambda filter, _: filter.to_run(),
        _run_one,
        lambda recruiter, request, filter, by, progress: recruiter.jobs.run_now(
            filter, by=by, reason=request.reason, progress=progress
        ),
    ),
    "reschedule": _OnJobs(
        "reschedule",
        "rescheduled",
        "Waiting jobs get another time; jobs that a worker holds stay as they are.",
        lambda filter, _: filter.to_change(),
        _reschedule_one,
        lambda recruiter, request, filter, by, progress: recruiter.jobs.reschedule(
            filter, **_time_of(request), by=by, reason=request.reason, progress=progress
        ),
        asks="new time: 2h (from now), or 2030-12-01T22:18Z",
    ),
    "reprioritise": _OnJobs(
        "reprioritise",
        "reprioritised",
        "Waiting jobs get another priority; a higher one goes first inside its group.",
        lambda filter, _: filter.to_change(),
        _reprioritise_one,
        lambda recruiter, request, filter, by, progress: recruiter.jobs.reprioritise(
            filter, priority=_priority_of(request), by=by, reason=request.reason, progress=progress
        ),
        asks="new priority",
    ),
    "recover": _OnJobs(
        "recover",
        "recovered",
        "Each runs once more, as a new job; the old ones stay as they are.",
        lambda filter, request: filter.to_recover(again=request.again),
        _recover_one,
        lambda recruiter, request, filter, _by, progress: recruiter.jobs.recover(
            filter, again=request.again, progress=progress
        ),
    ),
    "remove": _OnJobs(
        "remove",
        "removed",
        "They are gone for good, with their results, attempts and logs.",
        lambda filter, _: filter.to_remove(),
        _remove_one,
        lambda recruiter, _, filter, _by, progress: recruiter.jobs.remove(filter, progress=progress),
        danger=True,
    ),
}


_REPEATED = " A job that succeeded does its work a second time."


def _pause_group(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    recruiter.controls.pause_group(request.name, by=by, reason=request.reason)
    return Outcome(f"Group {request.name} is paused.", undo="resume-group")


def _resume_group(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    was = recruiter.controls.resume_group(request.name)
    return Outcome(
        f"Group {request.name} is resumed." if was else f"Group {request.name} was not paused.", undo="pause-group"
    )


def _block(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    recruiter.controls.block_starts(by=by, reason=request.reason)
    return Outcome("No job starts anywhere from now on.", undo="allow-starts")


def _allow(recruiter: Recruiter, _: RequestedAction, by: str) -> Outcome:
    del by
    recruiter.controls.allow_starts()
    return Outcome("Jobs start again.", undo="block-starts")


def _drain_worker(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    recruiter.controls.drain_worker(request.name, by=by, reason=request.reason)
    return Outcome(f"{request.name} is given no more jobs.", undo="resume-worker")


def _resume_worker(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    recruiter.controls.resume_worker(request.name)
    return Outcome(f"{request.name} is given jobs again.", undo="drain-worker")


def _pause_schedule(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    recruiter.scheduler(request.name).pause(by=by, reason=request.reason)
    return Outcome(f"{request.name} is paused.", undo="resume-schedule")


def _resume_schedule(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    recruiter.scheduler(request.name).resume()
    return Outcome(f"{request.name} goes on.", undo="pause-schedule")


def _run_schedule(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    made = recruiter.scheduler(request.name).run_now()
    return Outcome(f"A job like those of {request.name} will run as soon as a worker is free.", link=str(made.id))


def _pause_flow(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    recruiter.flows.find(request.name).pause(by=by, reason=request.reason)
    return Outcome("The flow is paused: its running steps go on, and no other starts.")


def _resume_flow(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    recruiter.flows.find(request.name).resume()
    return Outcome("The flow goes on.")


def _cancel_flow(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    cancelled = recruiter.flows.find(request.name).cancel(by=by, reason=request.reason)
    return Outcome(f"{plural(cancelled, 'step')} being cancelled.")


def _retry_flow(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    flow = recruiter.flows.find(request.name)
    lost, recovered = flow.report().counts.get("lost", 0), flow.retry()
    told = f"{plural(recovered, 'step')} recovered{'; the flow goes on' if recovered else ''}."
    left = f" Lost steps may have done their work and stay as they are: {lost}. Recover their jobs one by one."
    return Outcome(f"{told}{left if lost else ''}")


def _set_limit(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    if request.count and not request.count.isdigit():
        raise SettingsError(f"{request.count[:100]!r} is not a number of starts; write 100")
    number = int(request.count) if request.count else None
    limit = recruiter.controls.set_limit(
        request.name, request.at_once or None, count=number, per=request.per or None, by=by
    )
    told = [f"{limit.at_once:g} at once" if limit.at_once is not None else "", str(limit.rate) if limit.rate else ""]
    return Outcome(f"{limit.subject} is limited to {' and '.join(filter(None, told))}.", undo="remove-limit")


def _remove_limit(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    recruiter.controls.remove_limit(request.name)
    return Outcome(f"{request.name} is not limited any more.")


NAMED = {
    "pause-group": _Named("group", "Pause", "None of its jobs starts from now on; running jobs go on.", _pause_group),
    "resume-group": _Named("group", "Resume", "Its jobs start again.", _resume_group),
    "block-starts": _Named("", "Block all starts", "No job starts anywhere; running jobs go on.", _block),
    "allow-starts": _Named("", "Allow starts", "Jobs start again, in every group that is not paused.", _allow),
    "drain-worker": _Named("worker", "Drain", "It finishes the jobs it holds and gets no new ones.", _drain_worker),
    "resume-worker": _Named("worker", "Resume", "It is given jobs again.", _resume_worker),
    "pause-schedule": _Named("schedule", "Pause", "It makes no jobs; runs of this time are skipped.", _pause_schedule),
    "resume-schedule": _Named("schedule", "Resume", "It goes on with its next run.", _resume_schedule),
    "run-schedule": _Named("schedule", "Run now", "It makes one more job now, beside its schedule.", _run_schedule),
    "pause-flow": _Named("flow", "Pause", "No other step of it starts until it is resumed.", _pause_flow),
    "resume-flow": _Named("flow", "Resume", "Its steps start again.", _resume_flow),
    "cancel-flow": _Named("flow", "Cancel", "Every step that has not ended is cancelled.", _cancel_flow, danger=True),
    "retry-flow": _Named("flow", "Retry", "Steps that failed or were cancelled run again.", _retry_flow),
    "set-limit": _Named("limit on", "Set the limit", "It takes effect within a second on waiting jobs.", _set_limit),
    "remove-limit": _Named("limit on", "Remove the limit", "Jobs run if a slot is free.", _remove_limit, danger=True),
}  # fmt: skip
VERBS = (*ON_JOBS, *NAMED)


class ActionRunner:
    """Asks, does, and writes down."""

    def __init__(self, recruiter: Recruiter, reader: Reader, allowed: bool) -> None:
        self._recruiter = recruiter
        self._reader = reader
        self.allowed = allowed
        self._bulks = Bulks()

    def question(self, request: RequestedAction) -> Question:
        """What it would do, and to how many. Changes nothing."""
        self._check(request)
        if request.verb in NAMED:
            named = NAMED[request.verb]
            text = f"{named.button} {named.thing} {request.name}?" if named.thing else f"{named.button}?"
            return Question(" ".join(text.split()), named.button, named.effect, named.danger)
        action = ON_JOBS[request.verb]
        if request.ids:
            which = f"job {request.ids[0]}" if len(request.ids) == 1 else jobs(len(request.ids))
        else:
            found = self._reader.count(self._chosen(request))
            which = _told(found)
        verb = action.verb.capitalize()
        effect = f"{action.effect}{_REPEATED if request.again else ''}"
        danger = action.danger or request.again
        button = f"{verb} {which if len(which) < 24 else 'it'}"
        return Question(f"{verb} {which}?", button, effect, danger, action.asks)

    def do(self, request: RequestedAction, by: str, address: str | None = None) -> Outcome:
        """Does it, and writes down who did; to many jobs it goes on beside. Raises ReadOnly where actions are not
        allowed."""
        if not self.allowed:
            raise ReadOnly("this console is read-only; start it with --actions to allow actions")
        self._check(request)
        if request.verb in NAMED or len(request.ids) == 1:
            return self._recorded(request, by, address, lambda: self._do(request, by))
        action = ON_JOBS[request.verb]

        def act(progress: Progress) -> Outcome:
            return self._recorded(request, by, address, lambda: self._do_many(request, by, progress))

        return self._bulks.run(act, lambda number: f"{_did(action, number).text.removesuffix('.')} so far.")

    def progress(self, id: str) -> Outcome:
        """How far an action on many jobs is. Raises JobNotFound."""
        return self._bulks.look(id)

    def close(self) -> None:
        """Stops actions on many jobs, and waits for what they write."""
        self._bulks.close()

    def _recorded(self, request: RequestedAction, by: str, address: str | None, act: Callable[[], Outcome]) -> Outcome:
        reason = (request.reason or "").strip()[:_LONGEST_REASON] or None
        with self._reader.record(by, request.verb, self._subject(request), reason, address) as said:
            outcome = act()
            said.append(outcome.text)
            return outcome

    def _do(self, request: RequestedAction, by: str) -> Outcome:
        if request.verb in NAMED:
            return NAMED[request.verb].run(self._recruiter, request, by)
        return ON_JOBS[request.verb].one(self._recruiter, request, request.ids[0], by)

    def _do_many(self, request: RequestedAction, by: str, progress: Progress) -> Outcome:
        action = ON_JOBS[request.verb]
        if not request.ids:
            return _did(
                action, action.many(self._recruiter, request, self._chosen(request, narrow=False), by, progress)
            )
        done, refusals = 0, list[str]()
        for id in request.ids:
            try:
                action.one(self._recruiter, request, id, by)
                done += 1
            except RecruiterError as error:
                refusals.append(str(error))
            progress(done)
        told = _did(action, done)
        return Outcome(f"{told.text} {len(refusals)} refused: {refusals[0]}." if refusals else told.text)

    def _chosen(self, request: RequestedAction, *, narrow: bool = True) -> JobFilter:
        filter = self._reader.filter_of(request.words)
        return ON_JOBS[request.verb].among(filter, request) if narrow else filter

    def _check(self, request: RequestedAction) -> None:
        if request.verb not in VERBS:
            raise InvalidFilter(f"{request.verb[:100]!r} cannot be done; known: {', '.join(VERBS)}")
        if request.verb in ON_JOBS:
            if bool(request.ids) == bool(request.words):
                raise InvalidFilter(
                    f"select the jobs to {request.verb}: in the list, or by a filter such as task:resize"
                )
            if request.to and not ON_JOBS[request.verb].asks:
                raise InvalidFilter(f"{request.verb} takes no {request.to[:100]!r}")
            if len(request.ids) > MOST_IDS:
                raise InvalidFilter(f"choose up to {MOST_IDS:,} jobs, or use a filter")
        elif NAMED[request.verb].thing and not request.name:
            raise InvalidFilter(f"name the {NAMED[request.verb].thing.split()[0]} to {request.verb}")

    def _subject(self, request: RequestedAction) -> str:
        if request.verb in NAMED:
            limit = ", ".join(f"{name} {value}" for name, value in _limit_of(request).items() if value)
            return f"{NAMED[request.verb].thing} {request.name} {limit}".strip() or "the fleet"
        if request.ids:
            shown = ", ".join(request.ids[:20])
            more = f" and {len(request.ids) - 20} more" if len(request.ids) > 20 else ""
            return f"{'job' if len(request.ids) == 1 else 'jobs'} {shown}{more}"
        return f"jobs: {self._chosen(request)}"


def _limit_of(request: RequestedAction) -> dict[str, str | None]:
    return {"at once": request.at_once, "count": request.count, "per": request.per}


def _told(found: Amount) -> str:
    return jobs(found.number) if found.exact else f"at least {found.number:,} jobs"


def _did(action: _OnJobs, number: int) -> Outcome:
    return Outcome(f"{jobs(number)} {'is' if number == 1 else 'are'} {action.done}.")


# -- actions on many jobs ------------------------------------------------------------------------------------------


MOST = 4
"""At once; each keeps MongoDB busy."""
KEPT = 100
"""Outcomes that can still be asked for."""
PATIENCE = 1.5
"""Seconds that an HTTP request waits for the end."""
_FAREWELL = 10.0

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    undo: str | None = None
    """The verb that takes it back, on the same name."""
    link: str | None = None
    """The id of a job that was made."""
    running: str | None = None
    """It goes on; ask for its progress by this."""


@dataclass(slots=True, eq=False)
class _Bulk:
    told: Callable[[int], str]
    number: int = 0
    outcome: Outcome | None = None
    error: RecruiterError | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def outcome_so_far(self, id: str) -> Outcome:
        if self.error is not None:
            return Outcome(f"{self.told(self.number)} Then it stopped: {self.error}.")
        if self.outcome is not None:
            return self.outcome
        return Outcome(f"{self.told(self.number)} It goes on.", running=id)


class Bulks:
    """Those of one console."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._closed = False
        self._lock = threading.Lock()
        self._all: dict[str, _Bulk] = {}

    def run(self, act: Callable[[Progress], Outcome], told: Callable[[int], str]) -> Outcome:
        """Its outcome, or how far it is after a moment: `told` says it of a number. Raises what `act` raises meanwhile,
        and TooManyViewers when too many are on their way."""
        bulk, id = _Bulk(told), secrets.token_urlsafe(9)
        with self._lock:
            if sum(1 for each in self._all.values() if not each.over.is_set()) >= MOST:
                raise TooManyViewers(f"{MOST} actions on many jobs are running; wait until one of them has ended")
            while len(self._all) >= KEPT:
                oldest = next(key for key, each in self._all.items() if each.over.is_set())
                del self._all[oldest]
            self._all[id] = bulk
        threading.Thread(target=self._run, args=(bulk, act), name="recruiter web action", daemon=True).start()
        if bulk.over.wait(self._patience) and bulk.error is not None:
            raise bulk.error
        return bulk.outcome_so_far(id)

    def look(self, id: str) -> Outcome:
        """How far it is, or what came of it. Raises JobNotFound."""
        bulk = self._all.get(id)
        if bulk is None:
            raise JobNotFound("this action is no longer known here; the page Problems lists past actions")
        return bulk.outcome_so_far(id)

    def close(self) -> None:
        """Stops what is on its way, after the batch that is being written."""
        self._closed = True
        for bulk in list(self._all.values()):
            bulk.over.wait(_FAREWELL)

    def _run(self, bulk: _Bulk, act: Callable[[Progress], Outcome]) -> None:
        def progress(number: int) -> None:
            bulk.number = number
            if self._closed:
                raise RecruiterError("the console was stopped; do it again for the rest")

        try:
            bulk.outcome = replace(act(progress), running=None)
        except RecruiterError as error:
            bulk.error = error
        except Exception as error:
            bulk.error = RecruiterError(f"a bug in Recruiter: {type(error).__name__}: {error}")
        finally:
            bulk.over.set()
