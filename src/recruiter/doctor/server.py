"""The MongoDB server: its version, its replica set, its oplog, its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recruiter.doctor.thresholds import Thresholds
from recruiter.domain import mongodb_versions as versions
from recruiter.domain.duration import humanize
from recruiter.domain.finding import Finding, Level, note, ok, problem
from recruiter.errors import StoreError, StoreUnreachable
from recruiter.store.database import ServerFacts, Store
from recruiter.store.server import Disk, Member, Oplog

_GIB = 2**30
_LEFT = 2.0
"""Seconds for those that are left to be found."""
_WORKING = ("PRIMARY", "SECONDARY", "ARBITER")
_LOOPBACK = ("127.", "localhost:", "[::1]:")


def _version(store: Store, facts: ServerFacts, _: Thresholds) -> Iterator[Finding]:
    kind = f"replica set {facts.replica_set}" if facts.replica_set else "a sharded cluster"
    yield ok("server", f"MongoDB {facts.version} at {facts.address}, {kind}, database {store.target.database}")
    yield from judge_version(facts.version, facts.address)


def judge_version(version: str, address: str) -> Iterator[Finding]:
    parsed = versions.parse(version)
    if parsed is None:
        return
    if parsed < versions.OLDEST:
        yield problem("server", f"MongoDB {version} is older than Recruiter supports", "Upgrade to 6.0 or newer")
    holes = versions.holes_in(parsed)
    if holes:
        told = "; ".join(f"{hole.told} ({hole.cve}, fixed in {hole.mended_in(parsed)})" for hole in holes)
        text = (
            f"MongoDB {version} has known vulnerabilities. Anybody who reaches its port can, without a password: {told}"
        )
        todo = f"Upgrade to {versions.safe_version(parsed)} or newer"
        # Nobody else reaches a set whose members know each other by a loopback address.
        here = address.startswith(_LOOPBACK)
        yield Finding(Level.NOTE if here else Level.PROBLEM, "server", text, todo)


def without_primary(store: Store, unreachable: StoreUnreachable) -> Iterator[Finding]:
    """The facts of the members that are left; raises the error before if there is none."""
    try:
        members = store.server.members(_LEFT)
    except StoreError:
        raise unreachable from None
    up = sum(member.healthy for member in members)
    text = f"the replica set has no primary: no job starts, none is accepted ({up} of {len(members)} members are up)"
    yield problem("server", text, "Start the members that are down; a primary needs a majority of them")
    yield from judge_members(members, Thresholds())


def _members(store: Store, facts: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None:
        yield from judge_members(store.server.members(), thresholds)


def judge_members(members: Sequence[Member], thresholds: Thresholds) -> Iterator[Finding]:
    well = True
    for member in members:
        finding = _judge_member(member, thresholds)
        if finding is not None:
            well = False
            yield finding
    arbiters = [member.name for member in members if member.arbiter]
    if arbiters:
        yield note(
            "server",
            f"{', '.join(arbiters)} is an arbiter: it votes and keeps no data, so with one other member down nothing "
            "can be written to a majority, and jobs stop",
            "A third member with data is better",
        )
    if len(members) == 1:
        yield note(
            "server",
            "the replica set has one member: jobs survive a crash of it, not the loss of its disk; and while it is "
            "away, all wait",
            "For production use three",
        )
    elif well:
        yield ok("server", f"{len(members)} members are up, and as new as the primary")


def _judge_member(member: Member, thresholds: Thresholds) -> Finding | None:
    who = f"member {member.name} of the replica set"
    if not member.healthy:
        told = f" ({member.told})" if member.told else ""
        return problem("server", f"{who} is down{told}", "Start it, or take it out of the set: rs.remove()")
    if member.state not in _WORKING:
        return note("server", f"{who} is {member.state}", "Wait until it is SECONDARY; its log says how far it is")
    if member.behind is not None and member.behind > thresholds.behind:
        text = f"{who} is {humanize(member.behind)} behind the primary"
        return problem("server", text, "Look at its disk and network: writes to a majority may wait for it")
    return None


def _majority(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if store.server.majority_confirms(thresholds.majority):
        yield ok("server", "a majority of the members confirms writes")
    else:
        yield problem(
            "server",
            f"no majority of the members confirms writes within {thresholds.majority:g} s: no job is accepted or ended",
            "Start the members with data that are down, or free those that are slow",
        )


def _journal(store: Store, facts: ServerFacts, _: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None and not store.server.journal_by_default():
        yield note(
            "server",
            "writeConcernMajorityJournalDefault is false: others may lose what a majority has confirmed "
            "(Recruiter's own writes ask for the journal)",
            "Set it to true with rs.reconfig(), unless you know why not",
        )


def _oplog(store: Store, facts: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None:
        yield from judge_oplog(store.server.oplog(), thresholds)


def judge_oplog(oplog: Oplog, thresholds: Thresholds) -> Iterator[Finding]:
    if not oplog.persistent:
        yield problem(
            "server", "the storage engine keeps data in memory only: a restart loses all jobs", "Use wiredTiger"
        )
    window = humanize(oplog.window)
    if not oplog.rolls or oplog.window >= thresholds.short_oplog:
        yield ok("server", f"the oplog reaches back {window}")
        return
    level = Level.PROBLEM if oplog.window < thresholds.shortest_oplog else Level.NOTE
    text = (
        f"the oplog reaches back only {window}: a member that is away for longer must copy everything anew, and change "
        "streams that fall behind break (Recruiter's go on, a little later)"
    )
    todo = 'Make it larger: db.adminCommand({replSetResizeOplog: 1, size: 16384}), or with "minRetentionHours"'
    yield Finding(level, "server", text, todo)


def _disk(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    disk = store.server.disk()
    if disk is not None:
        yield judge_disk(disk, thresholds)


def judge_disk(disk: Disk, thresholds: Thresholds) -> Finding:
    share = disk.used / disk.total
    free = (disk.total - disk.used) / _GIB
    text = f"the disk of the data is {share:.0%} full, {free:,.1f} GiB are free"
    if share < thresholds.disk_filling:
        return ok("server", text)
    level = Level.PROBLEM if share >= thresholds.disk_full else Level.NOTE
    todo = "A full disk stops MongoDB. Make room: a larger disk, or finished jobs kept shorter (--clean-after)"
    return Finding(level, "server", text, todo)


CHECKS = (_version, _members, _majority, _journal, _oplog, _disk)
