"""`recruiter import`: copies waiting jobs and schedules from another scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from recruiter.app import Recruiter
from recruiter.cli import options as given
from recruiter.cli.options import PATIENCE_SECONDS, Flag, application_recruiter
from recruiter.cli.output import Output, say, say_json, show
from recruiter.domain.migration import SOURCES, Moved, MovedJob, MovedScheduler, NotMoved
from recruiter.domain.text import plural
from recruiter.errors import JobExists, RecruiterError, SettingsError, StoreError
from recruiter.store.connection import Target
from recruiter.store.database import foreign_documents

Source = Literal["agenda", "recruiter-php", "apscheduler", "job-scheduler-worker", "virtool"]

_BEFORE = "it was imported before"


@dataclass(frozen=True)
class _Line:
    """A line of the report, about one document."""

    id: str
    what: str
    task: str | None
    told: str


def import_(
    source: Source,
    origin: str,
    /,
    *,
    dry_run: Flag = False,
    rename: Annotated[list[str] | None, Parameter(negative=())] = None,
    collection: Annotated[list[str] | None, Parameter(negative=())] = None,
    common: given.ApplicationOptions = given.ApplicationOptions(),
    output: Output = "table",
) -> int:
    """`recruiter import`.

    Args:
        source: The program to import from: Agenda, Recruiter for PHP, APScheduler 3, MongoDB Job Scheduler Worker or
            Virtool.
        origin: Where its documents are: mongodb://host/database.
        dry_run: Show what would be imported, and store nothing.
        rename: The task NEW for jobs that are called OLD there, as OLD=NEW; may be repeated.
        collection: The collection to read, if it is not the usual one; may be repeated.
    """
    translate, usual = SOURCES[source]
    renamed, target = _renamed(rename or []), Target.parse(origin)
    with application_recruiter(common) as recruiter:
        recruiter.patience = PATIENCE_SECONDS
        recruiter.prepares = not dry_run
        ours = set(recruiter.store.collections()) if target.uri == recruiter.target.uri else set[str]()
        if ours.intersection(collection or usual):
            raise SettingsError(
                "the jobs to import are in the collections of --target and --prefix themselves; import into others"
            )
        lines = []
        for name in collection or usual:
            for document in foreign_documents(target, name):
                lines.append(_import_one(recruiter, translate(document, renamed), dry_run))
    return _report(lines, collection or usual, target, dry_run, output)


def _renamed(given: list[str]) -> dict[str, str]:
    pairs = [text.rpartition("=") for text in given]
    if any(not old or not new for old, _, new in pairs):
        raise SettingsError("--rename is OLD=NEW, as in 'send welcome=send_welcome'")
    return {old: new for old, _, new in pairs}


def _import_one(recruiter: Recruiter, moved: Moved, dry_run: bool) -> _Line:
    """Stores one translated document, unless `dry_run`; returns its line of the report."""
    if isinstance(moved, NotMoved):
        return _Line(moved.id, "left", None, moved.reason)
    what = "job" if isinstance(moved, MovedJob) else "scheduler"
    notes = list(moved.notes)
    try:
        if isinstance(moved, MovedJob):
            _store_job(recruiter, moved, dry_run)
        else:
            known = recruiter.store.schedulers.get(moved.urn) is not None
            _store_scheduler(recruiter, moved, dry_run, known)
            notes += ["paused, as it was"] if moved.paused else []
            notes += [_BEFORE] if known else []
    except JobExists:
        return _Line(moved.id, "left", moved.task, _BEFORE)
    except StoreError:  # MongoDB is at fault, not this document
        raise
    except RecruiterError as error:
        return _Line(moved.id, "left", moved.task, str(error))
    return _Line(moved.id, what, moved.task, "; ".join(notes))


def _store_job(recruiter: Recruiter, moved: MovedJob, dry_run: bool) -> None:
    builder = recruiter.job(moved.task, moved.args)._given(**moved.options).with_id(moved.id).with_urn(moved.id)
    builder = builder if moved.at is None else builder.schedule_at(moved.at)
    job = replace(builder.build(), method=moved.method)
    if not dry_run:
        (stored,) = recruiter.produce(lambda here: here.enqueue([job], own_ids=True))
        if isinstance(stored, RecruiterError):
            raise stored


def _store_scheduler(recruiter: Recruiter, moved: MovedScheduler, dry_run: bool, known: bool) -> None:
    builder = recruiter.job(moved.task, moved.args)._given(**moved.options)
    repeated = builder.repeat_with_policy(moved.policy).with_urn(moved.urn)
    repeated = repeated.unique() if moved.unique else repeated
    if dry_run:
        return
    handle = repeated.create()
    if moved.paused and not known:
        handle.pause(reason="it was paused where it was imported from")


def _report(lines: list[_Line], names: Sequence[str], target: Target, dry_run: bool, output: Output) -> int:
    counts = Counter(line.what for line in lines)
    before = sum(line.told.endswith(_BEFORE) for line in lines)
    where = f"{' or '.join(names)} of database {target.database}"
    rows: Iterator[dict[str, Any]] = (vars(line) for line in lines)
    if output != "table":
        say_json({"dry_run": dry_run, "counts": counts, "documents": list(rows)}, output)
        return 0
    show(list(rows), ["id", "what", "task", "told"], output, empty=f"There is no document to import in {where}.")
    counted = [plural(counts["job"], "job"), plural(counts["scheduler"], "scheduler")]
    verb = "would be imported" if dry_run else "imported"
    known = f"; {before:,} of these {len(lines):,} had been imported before" if before else ""
    say(f"{' and '.join(counted)} {verb} from {where}, {plural(counts['left'], 'document')} left{known}")
    return 0
