"""Doctor: checks everything, changes nothing, and reports problems with their remedies.

    server      the MongoDB server, its replica set, oplog and disk
    schema      collections, indexes, validators
    fleet       the leader, the workers, and their clocks
    jobs        waiting jobs that cannot run, pauses, archived documents
    schedulers  repeatable jobs that are broken or late
    documents   unreadable documents, in every collection

A question that this user may not ask becomes a note, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from recruiter.doctor import fleet, jobs, server
from recruiter.doctor.findings import Code, Finding, note, problem
from recruiter.doctor.findings import Thresholds as Thresholds
from recruiter.domain.text import MAX_REASON_CHARACTERS, head
from recruiter.errors import StoreError, StoreRefused, StoreUnreachable
from recruiter.store.database import ServerFacts, Store

Check = Callable[[Store, ServerFacts, Thresholds], Iterable[Finding]]


_CHECKS: Mapping[str, tuple[Check, ...]] = {
    "server": server.CHECKS,
    "schema": (server.check_schema,),
    "fleet": fleet.CHECKS,
    "jobs": jobs.CHECKS,
    "schedulers": (jobs.check_schedulers,),
    "documents": (jobs.check_documents,),
}


def examine(store: Store, thresholds: Thresholds | None = None) -> list[Finding]:
    """All findings. Raises StoreError only when no server answers, or this user may not read the lease."""
    thresholds = thresholds or Thresholds()
    try:
        facts = store.check()
    except StoreUnreachable as unreachable:
        return [replace(finding, about="server") for finding in server.without_primary(store, unreachable)]
    store.leases.read()
    findings: list[Finding] = []
    for about, checks in _CHECKS.items():
        for check in checks:
            findings += [replace(finding, about=about) for finding in _run(check, store, facts, thresholds)]
        if any(finding.code is Code.NOT_PREPARED for finding in findings):
            break  # without collections there is nothing else to check
    return findings


def _run(check: Check, store: Store, facts: ServerFacts, thresholds: Thresholds) -> Iterable[Finding]:
    """The findings of a check. If it fails, that is its finding, so that the other checks run."""
    try:
        return list(check(store, facts, thresholds))
    except StoreRefused as refused:
        return [note(Code.CHECK_FAILED, f"a check could not run. {refused}", "All other checks ran")]
    except StoreUnreachable:
        raise
    except StoreError as error:  # an index is missing, or a document is unreadable
        text = head(" ".join(str(error).split()), MAX_REASON_CHARACTERS)
        todo = "Repair missing indexes first (recruiter prepare), then run the doctor again"
        return [problem(Code.CHECK_FAILED, f"a check could not run. {text}", todo)]
