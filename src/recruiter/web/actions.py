"""The actions of the console: a question with the effect and the number of jobs, the action, and its outcome.

Every action goes through `ActionRunner.do`. It refuses actions that are not allowed, and records each action and its
user beforehand.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

from recruiter import errors
from recruiter.app import Recruiter
from recruiter.domain.duration import to_timedelta
from recruiter.domain.planning.limits import Limit
from recruiter.domain.search.filter import JobFilter
from recruiter.job_actions import JOB_ACTIONS, JobAction, Progress
from recruiter.web.access import User
from recruiter.web.formats import whole
from recruiter.web.reader import Reader
from recruiter.web.sentences import jobs, plural
from recruiter.web.serializers import limit_values
from recruiter.web.terms import table, text_of

MOST_IDS = 1_000
_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class RequestedAction:
    """An action that a user asks for."""

    verb: str  # A name in `VERBS`
    ids: tuple[str, ...] = ()  # The ids of the jobs; empty if `words` selects them
    words: Mapping[str, list[str]] = field(default_factory=dict)
    """The conditions of a filter that selects the jobs; empty if `ids` does."""
    name: str = ""  # A group, worker, schedule, or the subject of a limit
    reason: str | None = None
    at_once: str | None = None
    count: str | None = None
    per: str | None = None
    again: bool = False  # Whether jobs that succeeded are recovered too
    to: str | None = None  # The new time of jobs that are rescheduled, or their new priority


@dataclass(frozen=True, slots=True)
class Question:
    """The question before an action."""

    text: str
    button: str
    effect: str
    danger: bool = False  # Whether the action cannot be undone
    asks: str = ""  # The value that the action needs in `to`


class _Named(NamedTuple):
    """An action on something that has a name: a line of the table in actions.md."""

    thing: str
    button: str
    question: str
    effect: str
    done: str  # The sentence afterwards; empty if the action words its own
    undo: str
    asks: str  # The value that the action needs in `to`
    danger: str


NAMED = {verb: _Named(*cells) for verb, *cells in table(text_of("actions.md"))}
VERBS = (*JOB_ACTIONS, *NAMED)


def _run_schedule(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    made = recruiter.scheduler(request.name).run_now()
    return Outcome(f"A job of schedule {request.name} will run as soon as a worker is free.", link=str(made.id))


def _resume_group(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    was = recruiter.controls.resume_group(request.name)
    return Outcome(f"Group {request.name} {'is resumed' if was else 'was not paused'}.", undo="pause-group")


def _cancel_flow(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    cancelled = recruiter.flows.find(request.name).cancel(by=by, reason=request.reason)
    return Outcome(f"{plural(cancelled, 'step')} being cancelled.")


def _retry_flow(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    flow = recruiter.flows.find(request.name)
    lost, recovered = flow.report().counts.get("lost", 0), flow.retry()
    text = f"{plural(recovered, 'step')} recovered{'; the flow continues' if recovered else ''}."
    left = f" Lost steps may have done their work and stay unchanged: {lost}. Recover their jobs one by one."
    return Outcome(f"{text}{left if lost else ''}")


def _limit_set(recruiter: Recruiter, subject: str) -> Limit | None:
    """The limit that a person has set on it."""
    rules = recruiter.controls.rules()
    return next((limit for limit in rules.limits if limit.subject == subject and subject in rules.set_by), None)


def _limit_of(request: RequestedAction, before: Limit | None) -> Limit:
    """The requested limit; a resource that is floating stays so. Raises SettingsError."""
    number = whole(request.count or "")
    if request.count and number is None:
        raise errors.SettingsError(f"{request.count[:100]!r} is not a number of starts; write 100")
    is_floating = before is not None and before.floating
    return Limit.of(
        request.name, request.at_once or None, count=number, seconds=request.per or None, floating=is_floating
    )


def _set_limit(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    before = _limit_set(recruiter, request.name)
    limit = _limit_of(request, before)
    count, per = (limit.rate.count, limit.rate.window) if limit.rate else (None, None)
    recruiter.controls.set_limit(limit.subject, limit.at_once, count=count, per=per, floating=limit.floating, by=by)
    undo = "remove-limit" if before is None else "set-limit"
    return Outcome(f"{limit.subject} is limited to {limit}.", undo, undo_values=limit_values(before))


def _remove_limit(recruiter: Recruiter, request: RequestedAction, _: str) -> Outcome:
    before = _limit_set(recruiter, request.name)
    recruiter.controls.remove_limit(request.name)
    declared = recruiter.controls.rules().declared.get(request.name)
    text = "is no longer limited" if declared is None else f"has the limit of the application again: {declared}"
    undo = "set-limit" if before is not None and not before.floating else None
    return Outcome(f"{request.name} {text}.", undo, undo_values=limit_values(before))


def _send_signal(recruiter: Recruiter, request: RequestedAction, by: str) -> Outcome:
    name = (request.to or "").strip()
    recruiter.signal(recruiter.jobs.id_of(request.name), name, by=by)
    return Outcome(f"Job {request.name} was sent the signal {name!r}.", link=request.name)


def _ask_stack(recruiter: Recruiter, request: RequestedAction, _: str) -> None:
    if not recruiter.store.roster.ask_stack(recruiter.jobs.id_of(request.name)):
        raise errors.JobNotFound(f"no worker runs job {request.name} now")


_RUN: Mapping[str, Callable[[Recruiter, RequestedAction, str], Any]] = {
    "send-signal": _send_signal,
    "show-stack": _ask_stack,
    "pause-group": lambda recruiter, a, by: recruiter.controls.pause_group(a.name, by=by, reason=a.reason),
    "resume-group": _resume_group,
    "block-starts": lambda recruiter, a, by: recruiter.controls.block_starts(by=by, reason=a.reason),
    "allow-starts": lambda recruiter, _a, _by: recruiter.controls.allow_starts(),
    "drain-worker": lambda recruiter, a, by: recruiter.controls.drain_worker(a.name, by=by, reason=a.reason),
    "resume-worker": lambda recruiter, a, _by: recruiter.controls.resume_worker(a.name),
    "pause-schedule": lambda recruiter, a, by: recruiter.scheduler(a.name).pause(by=by, reason=a.reason),
    "resume-schedule": lambda recruiter, a, _by: recruiter.scheduler(a.name).resume(),
    "run-schedule": _run_schedule,
    "pause-flow": lambda recruiter, a, by: recruiter.flows.find(a.name).pause(by=by, reason=a.reason),
    "resume-flow": lambda recruiter, a, _by: recruiter.flows.find(a.name).resume(),
    "cancel-flow": _cancel_flow,
    "retry-flow": _retry_flow,
    "set-limit": _set_limit,
    "remove-limit": _remove_limit,
}
_REPEATED = " A job that succeeded does its work a second time."


def _options(request: RequestedAction, by: str) -> dict[str, Any]:
    """The options of an action on jobs. Raises SettingsError for an invalid time or priority."""
    options: dict[str, Any] = {"by": by, "reason": request.reason} if JOB_ACTIONS[request.verb].has_author else {}
    text = (request.to or "").strip()
    match request.verb:
        case "recover":
            return {"again": request.again}
        case "reprioritise":
            try:
                number = float(text)
            except ValueError:
                raise errors.SettingsError(f"{text[:100]!r} is no priority; write a number such as 5") from None
            return {**options, "priority": int(number) if number.is_integer() else number}
        case "reschedule":
            try:
                moment = datetime.fromisoformat(text)
                return {**options, "at": moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)}
            except ValueError:
                pass
            try:
                return {**options, "in_": to_timedelta(text)}
            except errors.InvalidDuration:
                raise errors.SettingsError(
                    f"{text[:100]!r} is no time; write 2030-12-01T22:18Z, or 2h for two hours from now"
                ) from None
    return options


class ActionRunner:
    """Asks for confirmation, runs actions, and records them."""

    def __init__(self, recruiter: Recruiter, reader: Reader, allowed: bool) -> None:
        self._recruiter = recruiter
        self._reader = reader
        self.allowed = allowed
        self._bulks = Bulks()

    def frozen(self, request: RequestedAction) -> RequestedAction:
        """The same request, with a filter that excludes later jobs, so that the question and the action concern the
        same jobs."""
        self._check(request)
        if not request.words:
            return request
        ended = request.verb in ("recover", "remove")
        return replace(request, words=self._reader.frozen(request.words, ended=ended))

    def question(self, request: RequestedAction) -> Question:
        """The effect of the action and the number of jobs. Changes nothing."""
        self._check(request)
        if request.verb in NAMED:
            named, limit = NAMED[request.verb], ""
            if request.verb == "set-limit":
                limit = str(_limit_of(request, _limit_set(self._recruiter, request.name)))
            text = named.question.format(name=request.name, limit=limit)
            return Question(text, named.button, named.effect, bool(named.danger), named.asks)
        action = JOB_ACTIONS[request.verb]
        if request.ids:
            which = f"job {request.ids[0]}" if len(request.ids) == 1 else jobs(len(request.ids))
        else:
            found = self._reader.count(self._chosen(request))
            which = jobs(found.number) if found.exact else f"at least {found.number:,} jobs"
        verb = action.verb.capitalize()
        effect = f"{action.effect}{_REPEATED if request.again else ''}"
        danger = action.danger or request.again
        button = f"{verb} {which if len(which) < 24 else 'it'}"
        return Question(f"{verb} {which}?", button, effect, danger, action.asks)

    def do(self, request: RequestedAction, user: User, address: str | None = None) -> Outcome:
        """Does the action and records its user; on many jobs it continues in a thread. Raises ReadOnly if actions are
        not allowed here, or not to this user."""
        if not self.allowed:
            raise errors.ReadOnly("this console is read-only; start it with --actions to allow actions")
        if not user.can_act:
            raise errors.ReadOnly(f"{user.name} may look, but not act; ask an operator")
        by = user.name
        self._check(request)
        if request.verb in NAMED or len(request.ids) == 1:
            return self._recorded(request, by, address, lambda: self._do(request, by))
        action = JOB_ACTIONS[request.verb]

        def act(progress: Progress) -> Outcome:
            return self._recorded(request, by, address, lambda: self._do_many(request, by, progress))

        return self._bulks.run(act, lambda number: f"{_did(action, number).text.removesuffix('.')} so far.")

    def progress(self, id: str) -> Outcome:
        """The progress of an action on many jobs. Raises JobNotFound."""
        return self._bulks.look(id)

    def close(self) -> None:
        """Stops actions on many jobs after the current batch."""
        self._bulks.close()

    def _recorded(self, request: RequestedAction, by: str, address: str | None, act: Callable[[], Outcome]) -> Outcome:
        reason = (request.reason or "").strip()[:_LONGEST_REASON] or None
        with self._reader.record(by, request.verb, self._subject(request), reason, address) as said:
            outcome = act()
            said.append(outcome.text)
            return outcome

    def _do(self, request: RequestedAction, by: str) -> Outcome:
        if request.verb in NAMED:
            named, outcome = NAMED[request.verb], _RUN[request.verb](self._recruiter, request, by)
            text = named.done.format(name=request.name)
            return Outcome(text, named.undo or None) if text else cast(Outcome, outcome)
        id = self._recruiter.jobs.id_of(request.ids[0])
        text, facts = JOB_ACTIONS[request.verb].one(self._recruiter, id, **_options(request, by))
        made = facts.get("recovered_as")
        return Outcome(f"The job {text}.", link=None if made is None else str(made))

    def _do_many(self, request: RequestedAction, by: str, progress: Progress) -> Outcome:
        action, options = JOB_ACTIONS[request.verb], _options(request, by)
        if not request.ids:
            filter = self._reader.filter_of(request.words)
            began = self._recruiter.clock.now()
            outcome = _did(action, action.many(self._recruiter, filter, progress, **options))
            return replace(outcome, made_since=began) if request.verb == "recover" else outcome
        done, refusals = 0, list[str]()
        for text in request.ids:
            try:
                action.one(self._recruiter, self._recruiter.jobs.id_of(text), **options)
                done += 1
            except errors.RecruiterError as error:
                refusals.append(str(error))
            progress(done)
        told = _did(action, done)
        return Outcome(f"{told.text} {len(refusals)} refused: {refusals[0]}." if refusals else told.text)

    def _chosen(self, request: RequestedAction) -> JobFilter:
        return JOB_ACTIONS[request.verb].among(self._reader.filter_of(request.words), again=request.again)

    def _check(self, request: RequestedAction) -> None:
        if request.verb not in VERBS:
            raise errors.InvalidFilter(f"{request.verb[:100]!r} cannot be done; known: {', '.join(VERBS)}")
        if request.verb in JOB_ACTIONS:
            if bool(request.ids) == bool(request.words):
                raise errors.InvalidFilter(
                    f"select the jobs to {request.verb}: in the list, or by a filter such as task:resize"
                )
            if request.to and not JOB_ACTIONS[request.verb].asks:
                raise errors.InvalidFilter(f"{request.verb} takes no {request.to[:100]!r}")
            if len(request.ids) > MOST_IDS:
                raise errors.InvalidFilter(f"choose up to {MOST_IDS:,} jobs, or use a filter")
        elif NAMED[request.verb].thing and not request.name:
            raise errors.InvalidFilter(f"name the {NAMED[request.verb].thing.split()[0]} to {request.verb}")

    def _subject(self, request: RequestedAction) -> str:
        if request.verb in NAMED:
            values = {"at once": request.at_once, "count": request.count, "per": request.per}
            limit = ", ".join(f"{name} {value}" for name, value in values.items() if value)
            return f"{NAMED[request.verb].thing} {request.name} {limit}".strip() or "the fleet"
        if request.ids:
            shown = ", ".join(request.ids[:20])
            more = f" and {len(request.ids) - 20} more" if len(request.ids) > 20 else ""
            return f"{'job' if len(request.ids) == 1 else 'jobs'} {shown}{more}"
        return f"jobs: {self._chosen(request)}"


def _did(action: JobAction, number: int) -> Outcome:
    return Outcome(f"{jobs(number)} {'is' if number == 1 else 'are'} {action.done}.")


# -- actions on many jobs ------------------------------------------------------------------------------------------


MOST = 4  # Maximum number of actions on many jobs at the same time; each keeps MongoDB busy
KEPT = 100  # Maximum number of actions on many jobs whose outcomes are kept
PATIENCE = 1.5  # Seconds that an HTTP request waits for the end
_FAREWELL = 10.0


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    undo: str | None = None  # The verb of the action that undoes it, on the same name
    undo_values: Mapping[str, str] = field(default_factory=dict)  # The limit before, for `set-limit`
    link: str | None = None  # The id of a job that was created
    running: str | None = None  # The id of an action that still runs, for `progress`
    made_since: datetime | None = None  # The new jobs were created since then


@dataclass(slots=True, eq=False)
class _Bulk:
    told: Callable[[int], str]
    number: int = 0
    end: Future[Outcome] = field(default_factory=Future)

    def outcome_so_far(self, id: str) -> Outcome:
        if not self.end.done():
            return Outcome(f"{self.told(self.number)} It continues.", running=id)
        error = self.end.exception()
        return self.end.result() if error is None else Outcome(f"{self.told(self.number)} Then it stopped: {error}.")


class Bulks:
    """The actions on many jobs of one console."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self._patience = patience
        self._closed = False
        self._lock = threading.Lock()
        self._all: dict[str, _Bulk] = {}

    def run(self, act: Callable[[Progress], Outcome], told: Callable[[int], str]) -> Outcome:
        """The outcome, or a message about the progress so far. Raises the error of `act`, and TooManyViewers."""
        bulk, id = _Bulk(told), secrets.token_urlsafe(9)
        with self._lock:
            if sum(not each.end.done() for each in self._all.values()) >= MOST:
                raise errors.TooManyViewers(f"{MOST} actions on many jobs are running; wait until an action has ended")
            while len(self._all) >= KEPT:
                oldest = next(key for key, each in self._all.items() if each.end.done())
                del self._all[oldest]
            self._all[id] = bulk
        threading.Thread(target=self._run, args=(bulk, act), name="recruiter web action", daemon=True).start()
        if wait([bulk.end], self._patience).done and (error := bulk.end.exception()) is not None:
            raise error
        return bulk.outcome_so_far(id)

    def look(self, id: str) -> Outcome:
        """The progress or the outcome of the action. Raises JobNotFound."""
        bulk = self._all.get(id)
        if bulk is None:
            raise errors.JobNotFound("this action is no longer known here; the page Problems lists past actions")
        return bulk.outcome_so_far(id)

    def close(self) -> None:
        self._closed = True
        wait([bulk.end for bulk in list(self._all.values())], _FAREWELL)

    def _run(self, bulk: _Bulk, act: Callable[[Progress], Outcome]) -> None:
        def progress(number: int) -> None:
            bulk.number = number
            if self._closed:
                raise errors.RecruiterError("the console was stopped; do it again for the rest")

        try:
            bulk.end.set_result(act(progress))
        except errors.RecruiterError as error:
            bulk.end.set_exception(error)
        except Exception as error:
            bulk.end.set_exception(errors.RecruiterError(f"a bug in Recruiter: {type(error).__name__}: {error}"))
