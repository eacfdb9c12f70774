"""Checks of MongoDB: the server, its replica set, and the schema (collections, indexes, validators)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recruiter.doctor.findings import Code, Finding, Level, Thresholds, note, ok, problem
from recruiter.domain.duration import brief, humanize
from recruiter.errors import StoreError, StoreUnreachable
from recruiter.store.database import ServerFacts, Store
from recruiter.store.ownership import SCHEMA
from recruiter.store.schema import Difference, Kind
from recruiter.store.server import Member, Oplog

_WORKING = ("PRIMARY", "SECONDARY", "ARBITER")


def _version(store: Store, facts: ServerFacts, _: Thresholds) -> Iterator[Finding]:
    kind = f"replica set {facts.replica_set}" if facts.replica_set else "a sharded cluster"
    yield ok(f"MongoDB {facts.version} at {facts.address}, {kind}, database {store.target.database}")


def without_primary(store: Store, unreachable: StoreUnreachable) -> Iterator[Finding]:
    """The findings while no primary answers, from the members that do. Raises `unreachable` if none does."""
    try:
        members = store.server.members(2.0)
    except StoreError:
        raise unreachable from None
    up = sum(member.healthy for member in members)
    text = f"the replica set has no primary: no job starts, none is accepted ({up} of {len(members)} members are up)"
    yield problem(Code.NO_PRIMARY, text, "Start the members that are down; a primary needs a majority of them")
    yield from judge_members(members, Thresholds())


def _members(store: Store, facts: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None:
        yield from judge_members(store.server.members(), thresholds)


def judge_members(members: Sequence[Member], thresholds: Thresholds) -> Iterator[Finding]:
    all_well = True
    for member in members:
        finding = _judge_member(member, thresholds)
        if finding is not None:
            all_well = False
            yield finding
    arbiters = [member.name for member in members if member.arbiter]
    if arbiters:
        yield note(
            Code.ARBITER,
            f"{', '.join(arbiters)} is an arbiter: it votes and keeps no data, so with one other member down nothing "
            "can be written to a majority, and jobs stop",
            "A third member with data is better",
        )
    if len(members) == 1:
        yield note(
            Code.ONE_MEMBER,
            "the replica set has one member: jobs survive its crash, but not the loss of its disk; while it is "
            "down, all jobs wait",
            "For production use three",
        )
    elif all_well:
        yield ok(f"{len(members)} members are up, and as new as the primary")


def _judge_member(member: Member, thresholds: Thresholds) -> Finding | None:
    who = f"member {member.name} of the replica set"
    if not member.healthy:
        reason = f" ({member.told})" if member.told else ""
        return problem(Code.MEMBER, f"{who} is down{reason}", "Start it, or take it out of the set: rs.remove()")
    if member.state not in _WORKING:
        return note(Code.MEMBER, f"{who} is {member.state}", "Wait until it is SECONDARY; its log shows the progress")
    if member.behind is not None and member.behind > thresholds.behind:
        text = f"{who} is {humanize(member.behind)} behind the primary"
        return problem(Code.MEMBER, text, "Look at its disk and network: writes to a majority may wait for it")
    return None


def _majority(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if store.server.majority_confirms(thresholds.majority):
        yield ok("a majority of the members confirms writes")
    else:
        yield problem(
            Code.NO_MAJORITY,
            f"no majority of the members confirms writes within {brief(thresholds.majority)}: "
            "no job is accepted or ended",
            "Start the members with data that are down, or relieve the slow ones",
        )


def _journal(store: Store, facts: ServerFacts, _: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None and not store.server.journal_by_default():
        yield note(
            Code.JOURNAL,
            "writeConcernMajorityJournalDefault is false: other programs may lose writes that a majority has confirmed "
            "(Recruiter's own writes ask for the journal)",
            "Set it to true with rs.reconfig(), unless you know why not",
        )


def _oplog(store: Store, facts: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    if facts.replica_set is not None:
        yield from judge_oplog(store.server.oplog(), thresholds)


def judge_oplog(oplog: Oplog, thresholds: Thresholds) -> Iterator[Finding]:
    if not oplog.persistent:
        text = "the storage engine keeps data in memory only: a restart loses all jobs"
        yield problem(Code.IN_MEMORY, text, "Use wiredTiger")
    window = humanize(oplog.window)
    if not oplog.rolls or oplog.window >= thresholds.short_oplog:
        yield ok(f"the oplog reaches back {window}")
        return
    level = Level.PROBLEM if oplog.window < thresholds.shortest_oplog else Level.NOTE
    text = (
        f"the oplog reaches back only {window}: a member that is away for longer must copy everything anew, and change "
        "streams that fall behind break (Recruiter's go on, a little later)"
    )
    todo = 'Make it larger: db.adminCommand({replSetResizeOplog: 1, size: 16384}), or with "minRetentionHours"'
    yield Finding(level, Code.SHORT_OPLOG, text, todo)


def _disk(store: Store, _: ServerFacts, thresholds: Thresholds) -> Iterator[Finding]:
    disk = store.server.disk()
    if disk is None:
        return
    share = disk.used / disk.total
    text = f"the disk of the data is {share:.0%} full, {(disk.total - disk.used) / 2**30:,.1f} GiB are free"
    if share < thresholds.disk_filling:
        yield ok(text)
    else:
        level = Level.PROBLEM if share >= thresholds.disk_full else Level.NOTE
        todo = "A full disk stops MongoDB. Use a larger disk, or keep ended jobs for a shorter time (--clean-after)"
        yield Finding(level, Code.DISK, text, todo)


CHECKS = (_version, _members, _majority, _journal, _oplog, _disk)


def check_schema(store: Store, facts: ServerFacts, _thresholds: Thresholds) -> Iterator[Finding]:
    differences = store.differences()
    missing = [difference.collection for difference in differences if difference.kind is Kind.NO_COLLECTION]
    if missing == store.collections():
        yield problem(
            Code.NOT_PREPARED,
            "this database has no collections of Recruiter: no process has run on it yet",
            "Start them: recruiter start all --bootstrap YOUR_APP",
        )
        return
    if facts.schema is not None and facts.schema != SCHEMA:
        yield _schema_version(facts.schema)
        # The other release has set the validators.
        differences = [difference for difference in differences if difference.kind is not Kind.OTHER_VALIDATOR]
    for difference in differences:
        yield _difference(difference)
    if not any(difference.kind is not Kind.EXTRA_INDEX for difference in differences):
        yield ok(f"{len(store.collections())} collections have their indexes and validators")


def _schema_version(schema: int) -> Finding:
    if schema > SCHEMA:
        text = f"the database has schema {schema}, and this release makes {SCHEMA}: a newer release has prepared it"
        return note(Code.SCHEMA, text, "Upgrade this Recruiter soon: the release after next will not run with it")
    text = f"the database has schema {schema}, and this release makes {SCHEMA}"
    return note(Code.SCHEMA, text, "Run: recruiter prepare")


def _difference(difference: Difference) -> Finding:
    match difference.kind:
        case Kind.NO_COLLECTION | Kind.NO_INDEX:
            return problem(Code.SCHEMA, f"{difference} is missing", "Make it: recruiter prepare")
        case Kind.OTHER_INDEX:
            drop = f'db.{difference.collection}.dropIndex("{difference.index}")'
            text = f"{difference} is not what this version of Recruiter needs"
            return problem(
                Code.SCHEMA, text, f"Drop it in mongosh with {drop}, then create it again: recruiter prepare"
            )
        case Kind.OTHER_VALIDATOR:
            text = f"{difference} is of another version of Recruiter: it may accept documents that this one cannot read"
            todo = "Set it: recruiter prepare. If it comes back, processes of another version run beside this one"
            return problem(Code.SCHEMA, text, todo)
        case Kind.EXTRA_INDEX:
            text = f"{difference} is not Recruiter's: it costs a little with every job"
            return note(Code.EXTRA_INDEX, text, "Drop it if no program needs it")
