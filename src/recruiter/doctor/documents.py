"""Documents that cannot be read, of every collection: which they are, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from recruiter.doctor.thresholds import Thresholds
from recruiter.domain.finding import Finding, note, problem
from recruiter.domain.unreadable import Unreadable
from recruiter.errors import StoreUnreachable
from recruiter.store.database import ServerFacts, Store

_TODO = {
    "leases": "The next leader writes it anew; a document beside the lease can be removed",
    "roster": "The leader retires it after a while, and frees what it holds; a worker that lives joins again",
    "schedulers": "It makes no jobs. Create it again, or remove it: recruiter scheduler remove URN",
    "limits": "It is not in force. Set it again, or remove it: recruiter limit remove SUBJECT",
    "processes": "Nothing depends on it, and it goes by itself after an hour; or remove it in mongosh",
    "archived": "It cannot be shown or recovered. Correct it, or remove it in mongosh",
    "scheduled": "No process reads it. Unset its lane in mongosh, then the leader adopts it or sets it aside",
    "statistics": "It is not counted. Remove it in mongosh",
    "creations": "Nothing depends on its date. Correct it, or remove it in mongosh if its id may be used again",
    "actions": "It is not shown, and goes by itself after 90 days; or remove it in mongosh",
}


def _documents(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    most, counted = thresholds.unreadable_told, thresholds.unreadable_counted
    since = store.clock.now() - thresholds.unreadable_since
    looks: dict[str, Callable[[], Sequence[Unreadable]]] = {
        "leases": store.leases.unreadable,
        "roster": store.roster.unreadable,
        "schedulers": lambda: store.schedulers.all().unreadable,
        "limits": lambda: store.limits.read().unreadable,
        "processes": lambda: store.processes.entries().unreadable,
        "archived": lambda: store.archived.unreadable(since, counted),
        "scheduled": lambda: store.scheduled.neither_job_nor_foreign(counted, thresholds.counting),
        "statistics": lambda: store.statistics.unreadable(counted),
        "actions": lambda: store.actions.latest(counted).unreadable,
        "creations": lambda: store.creations.unreadable(counted, thresholds.counting),
    }
    for name, look in looks.items():
        try:
            yield from _told(name, look(), most, counted)
        except StoreUnreachable as error:
            yield note("documents", f"collection {name} could not be checked in time ({error})", "Run the doctor again")


def _told(collection: str, unreadable: Sequence[Unreadable], most: int, counted: int) -> Iterator[Finding]:
    for document in unreadable[:most]:
        yield problem("documents", str(document), _TODO[collection])
    if len(unreadable) > most:
        least = "at least " if len(unreadable) >= counted else ""
        more = f"{least}{len(unreadable) - most:,} more documents of {collection} cannot be read"
        yield problem("documents", more, "recruiter doctor --all names each of them")


CHECKS = (_documents,)
