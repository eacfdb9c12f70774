"""Collections, indexes and validators: as this version of Recruiter would make them, or not."""

from __future__ import annotations

from collections.abc import Iterator

from recruiter.doctor.thresholds import Thresholds
from recruiter.domain.finding import Finding, note, ok, problem
from recruiter.store.database import ServerFacts, Store
from recruiter.store.schema import Difference, Kind

NOBODY = problem(
    "schema",
    "this database has no collections of Recruiter: no process has run on it yet",
    "Start them: recruiter start all --bootstrap YOUR_APP",
)


def _schema(store: Store, _facts: ServerFacts, _thresholds: Thresholds) -> Iterator[Finding]:
    differences = store.differences()
    if [each.collection for each in differences if each.kind is Kind.NO_COLLECTION] == store.collections():
        yield NOBODY
        return
    for difference in differences:
        yield _judged_difference(difference)
    if not any(difference.kind is not Kind.EXTRA_INDEX for difference in differences):
        yield ok("schema", f"{len(store.collections())} collections have their indexes and validators")


def _judged_difference(difference: Difference) -> Finding:
    match difference.kind:
        case Kind.NO_COLLECTION | Kind.NO_INDEX:
            return problem("schema", f"{difference} is missing", "Make it: recruiter prepare")
        case Kind.OTHER_INDEX:
            drop = f'db.{difference.collection}.dropIndex("{difference.index}")'
            text = f"{difference} is not what this version of Recruiter needs"
            return problem("schema", text, f"Drop it in mongosh with {drop}, then make it anew: recruiter prepare")
        case Kind.OTHER_VALIDATOR:
            text = f"{difference} is of another version of Recruiter: it may accept documents that this one cannot read"
            todo = "Set it: recruiter prepare. If it comes back, processes of another version run beside this one"
            return problem("schema", text, todo)
        case Kind.EXTRA_INDEX:
            text = f"{difference} is not Recruiter's: it costs a little with every job"
            return note("schema", text, "Drop it if nobody needs it")


CHECKS = (_schema,)
