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

from collections.abc import Callable, Iterable, Iterator

from recruiter.doctor import fleet, jobs, server
from recruiter.doctor.findings import Code, Finding, note, problem
from recruiter.doctor.findings import Thresholds as Thresholds
from recruiter.domain.text import MAX_REASON_CHARACTERS, head
from recruiter.errors import StoreError, StoreRefused, StoreUnreachable
from recruiter.store.database import ServerFacts, Store

Check = Callable[[Store, ServerFacts, Thresholds], Iterable[Finding]]


def examine(store: Store, thresholds: Thresholds | None = None) -> list[Finding]:
    """All findings. Raises StoreError only when no server answers, or this user may not read the lease."""
    thresholds = thresholds or Thresholds()
    try:
        facts = store.check()
    except StoreUnreachable as unreachable:
        return list(server.without_primary(store, unreachable))
    store.leases.read()
    findings = [*_ask("server", server.CHECKS, store, facts, thresholds)]
    findings += _ask("schema", server.SCHEMA_CHECKS, store, facts, thresholds)
    if server.NOBODY in findings:
        return findings
    findings += _ask("fleet", fleet.CHECKS, store, facts, thresholds)
    findings += _ask("jobs", jobs.CHECKS, store, facts, thresholds)
    findings += _ask("schedulers", jobs.SCHEDULER_CHECKS, store, facts, thresholds)
    return [*findings, *_ask("documents", jobs.DOCUMENT_CHECKS, store, facts, thresholds)]


def _ask(
    about: str, checks: Iterable[Check], store: Store, facts: ServerFacts, thresholds: Thresholds
) -> Iterator[Finding]:
    for check in checks:
        try:
            yield from list(check(store, facts, thresholds))
        except StoreRefused as refused:
            yield note(about, Code.CHECK_FAILED, f"a check could not run. {refused}", "All other checks ran")
        except StoreUnreachable:
            raise
        except StoreError as error:  # an index is missing, or a document is unreadable
            text = " ".join(str(error).split())
            todo = "Repair missing indexes first (recruiter prepare), then run the doctor again"
            yield problem(about, Code.CHECK_FAILED, f"a check could not run. {head(text, MAX_REASON_CHARACTERS)}", todo)
