"""The log level and the sentence of each event.

A field that is a trace is written in lines of its own, below the sentence.
"""

from __future__ import annotations

import logging

SENTENCES: dict[str, tuple[int, str]] = {
    "process.started": (logging.INFO, "{program} started on {target}"),
    "process.stopping": (logging.INFO, "asked to stop"),
    "process.failed": (logging.ERROR, "{error}"),
    "fleet.member_ended": (
        logging.ERROR,
        "the {member} (pid {member_pid}) {how}. The other processes are stopped; start everything again",
    ),
    "leader.elected": (logging.INFO, "is the leader now, term {term}"),
    "leader.stept_back": (logging.INFO, "is no longer the leader"),
    "recruiter.standing_by": (logging.INFO, "stands by: another recruiter leads"),
    "cleaner.at_work": (logging.DEBUG, "keeps the archive small"),
    "session.ended": (
        logging.WARNING,
        "worker {worker} held a lock and was silent: its session was ended, so that its locks do not block others",
    ),
    "session.not_ended": (logging.WARNING, "{error}"),
    "worker.joined": (logging.INFO, "worker {worker} joined the roster with {slots:#slot}"),
    "worker.left": (logging.INFO, "worker {worker} left the roster"),
    "worker.lost": (
        logging.WARNING,
        "worker {worker} is no longer on the roster; ended {running:#running job}, joining again under a new id",
    ),
    "worker.retired": (
        logging.WARNING,
        "worker {worker} was silent and was retired; {released:#job} released, crashed: {crashed}",
    ),
    "worker.unreadable": (
        logging.WARNING,
        "worker {worker} could not be read on the roster ({unreadable}) and was retired; {released:#job} released, "
        "crashed: {crashed}",
    ),
    "child.started": (logging.DEBUG, "child {pid} is ready"),
    "child.died": (logging.WARNING, "child {pid} died: {how}; jobs it ran: {jobs}"),
    "child.broken": (logging.ERROR, "child {pid} cannot load the application"),
    "child.recycled": (logging.INFO, "child {pid} uses {memory} bytes and will be replaced"),
    "store.unreachable": (logging.WARNING, "{loop}: {error}; trying again"),
    "store.silent": (logging.WARNING, "MongoDB at {target} has not answered for a second; still waiting: {waiting}"),
    "store.back": (logging.INFO, "{loop}: MongoDB answers again"),
    "change_stream.back": (logging.INFO, "watches the change stream again"),
    "change_stream.failed": (logging.WARNING, "cannot watch the change stream and polls instead: {error}"),
    "loop.failed": (logging.ERROR, "{loop}: a bug in Recruiter; please report it"),
    "lane.unserved": (
        logging.WARNING,
        "jobs of task {task} in group {group} wait, and no worker serves them: "
        "start one that knows the task and works on the group",
    ),
    "lane.never_fits": (logging.ERROR, "jobs of task {task} in group {group} cannot run: each {reason}"),
    "job.dependency_failed": (logging.WARNING, "job {job} was archived and never ran: {reason}"),
    "flow.ended": (logging.INFO, "flow {flow_name} ({flow}) has ended: {state}"),
    "archive.cleaned": (logging.INFO, "removed {removed:#old job} from the archive"),
    "hook.failed": (logging.ERROR, "hook {hook} failed: {error}"),
    "listener.failed": (logging.WARNING, "listener {listener} failed on {event}: {error}; nothing else is affected"),
    "instrument.failed": (logging.WARNING, "instrument {instrument} failed: {error}; no job is affected"),
    "scheduler.repeated": (logging.DEBUG, "made {made:#job} for due occurrences, skipped {skipped}"),
    "scheduler.broken": (logging.ERROR, "scheduler {urn} cannot be repeated: {reason}"),
    "scheduler.overdue": (logging.ERROR, "scheduler {urn} {told}"),
    "progress.refused": (logging.WARNING, "the progress of running jobs cannot be written until they end: {error}"),
    "job.ended": (logging.DEBUG, "job {job}: {task} done in {seconds:.3f} s"),
    "job.failed": (logging.WARNING, "job {job} failed: {error}; next attempt at {next:%H:%M:%S}"),
    "job.failure.last": (logging.ERROR, "job {job}: {task} failed for good on {worker} ({why}): {error}"),
    "job.crashed": (logging.WARNING, "job {job} crashed: {how}"),
    "job.ended_by_force": (logging.WARNING, "the process of job {job} was ended: {error}"),
    "job.snoozed": (logging.INFO, "job {job} asked to run again at {next:%H:%M:%S}: {reason}"),
    "job.noted": (logging.WARNING, "job {job}: {note}; its outcome stays as it was"),
    "job.interrupted": (logging.WARNING, "job {job} interrupted and handed back: {why}"),
    "job.misplaced": (logging.WARNING, "job {job} has a task that this worker does not know; it was handed back"),
    "job.reduced": (logging.ERROR, "the outcome of job {job} could not be stored as it was: {error}"),
    "job.superseded": (
        logging.WARNING,
        "the result of job {job} was dropped: worker {worker} had been retired",
    ),
    "job.set_aside": (logging.WARNING, "document {job} was set aside: {reason}"),
    "job.taken_over": (logging.WARNING, "document {job} was locked by {holder} for too long; the lock was removed"),
    "job.cancelling": (logging.INFO, "job {job} is being cancelled by {by}: {reason}"),
    "job.cancelled": (logging.INFO, "job {job} cancelled"),
    "job.expired": (logging.INFO, "job {job} expired before it started"),
}
UNKNOWN = (logging.INFO, "")
