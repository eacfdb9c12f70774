"""Flows: a step waits in a lane of its own (*blocked*) until the steps in its `after` have succeeded.

Whoever brings a step to an end, adds one or recovers one leaves a *marker* in the same transaction. A marker only says
"look here again". The leader takes some markers, then reads what depends on them, then how those stand, and writes what
follows in one transaction fenced by the lease, which removes the markers that it took. So each decision is made from
what was true after the marker was left, and whatever changes after that leaves another.

A step that is recovered is a new job, (step, new number); `after` names steps. A step is pending while one of its
jobs waits or runs, else it succeeded if one of them did, else it failed, or it was skipped.

`rescue` is the part of `after` of which at least one must have failed (`after_failure`). When all of them have ended
and none has failed, the step is *skipped*: archived, and no failure. A step that waits for a skipped step is skipped
too.

A running step may add a step *before its dependents*: they wait for the added step too. Whoever adds it writes it into
`after` of every dependent, waiting or given up, in the transaction that stores it. That transaction conflicts with
others that store a step of the flow, so no dependent is missed.

A *countdown* was tried in a copy of this model: the leader writes on each blocked step how many steps it still waits
for, and decrements it in the transaction that deletes the markers it counted. It holds over 2,000 seeds only if a
recount leaves out steps whose markers are still there (without that rule 9 seeds failed). But a step
that is added or recovered, `after_any`, a removed dependency and documents of the last release still need the states of
all dependencies, so the count would come on top of this procedure and replace nothing.
"""

from tests.protocol_model.core import Violation, World, acquire, late_writes, run

RULES = {
    "marker_after_settling": "the marker is part of the transaction that ends a step",
    "cancelled_without_marker": "… of every one that does: settling, retiring, archiving what was cancelled",
    "failed_without_marker": "… also when a step ends because its dependency failed: others depend on it",
    "added_without_marker": "whoever adds a step to a running flow leaves a marker: what it waits for may be over",
    "recovered_without_marker": "whoever recovers a step leaves a marker: what failed with it comes back",
    "recovered_twice": "recovering writes on the old job that there is a new one; the second who tries conflicts",
    "failed_stay": "a marker makes the leader look at dependents that failed for their dependency, too",
    "markers_read_last": "markers are read before what they point to",
    "all_markers_removed": "only the markers that were read are removed, by id",
    "release_unguarded": "a release matches only what is still blocked: not what was cancelled meanwhile",
    "unfenced": "decisions are written only by whoever still leads: another leader's may have come in between",
    "unknown_keeps_term": "after a decision of unknown outcome, a new term: it may still come",
    "skipped_is_failed": "a skipped step is no failure: what waits for it is skipped, not given up",
    "skipped_without_marker": "a step that is skipped leaves a marker: others depend on it",
    "rescue_decided_early": "after_failure is decided when all of its steps have ended",
    "changes_unseen": "a decision conflicts with whoever recovers or adds a step: a failure may be over",
    "joined_later": "a step before the dependents and their `after` are one transaction",
    "given_up_not_joined": "… dependents that were given up get it, too: they may come back",
    "ended_forgotten": "the archive forgets a flow as a whole, when none of its steps waits",
}


class Flow(World):
    def __init__(self, seed, mutant):
        super().__init__(seed, mutant)
        self.markers, self.busy, self.calm, self.ever = {}, set(), False, set()
        self.changes = 0
        """On the flow's document: how often a step was recovered or added."""
        self.joined = {}
        """The steps that were added before the dependents of another, by dependent."""
        self.narrow = self.chance(0.5)  # one flow of two steps after the other, nothing added or cancelled
        self.begin(2 if self.narrow else 3)

    def begin(self, count):
        first = len(self.ever)
        for step in range(first, first + count):
            after = frozenset(other for other in range(first, step) if self.narrow or self.chance(0.6))
            rescue = after if not self.narrow and self.chance(0.3) else frozenset()
            self.scheduled[step, 0] = {"after": after, "rescue": rescue, "lane": "blocked" if after else "free"}
            self.ever.add(step)

    def mark(self, kind, step):
        self.markers[next(self.ids)] = kind, step

    def end(self, job, why):
        self.archived[job] = {**self.scheduled.pop(job), "why": why, "again": False}

    def state(self, step):
        if any(job[0] == step for job in self.scheduled):
            return "pending"
        ends = {doc["why"] for job, doc in self.archived.items() if job[0] == step}
        if not ends:
            return "unknown"
        return "done" if "done" in ends else "skipped" if "skipped" in ends else "failed"

    def check(self):
        super().check()
        steps = [step for step, _ in self.scheduled]
        done = {step for (step, _), doc in self.archived.items() if doc["why"] == "done"}
        if len(steps) != len(set(steps)):
            raise Violation("a step waits or runs twice")
        if not done.isdisjoint(steps):
            raise Violation("a step that succeeded waits again")
        for job, doc in self.scheduled.items():
            if doc["lane"] == "free" and not doc["after"] - doc["rescue"] <= done and self.mutant != "ended_forgotten":
                raise Violation("released too early")
            if doc["lane"] == "blocked" and not doc["after"] >= self.joined.get(job[0], frozenset()):
                raise Violation("a dependent does not wait for an added step")
            if doc["lane"] == "free" and doc.get("cancelled"):
                raise Violation("a cancelled step was released")


def leader(world, name):
    while True:
        _term, attempt = yield from acquire(world, name)
        while world.lease["holder"] == attempt and (world.calm or world.chance(0.99)):
            yield
            taken = dict(world.markers) if world.mutant == "markers_read_last" else take(world)
            yield
            dependents = find(world, taken)
            yield
            changes = world.changes
            verdicts = {job: (doc, verdict(world, doc, world.mutant)) for job, doc in dependents.items()}
            yield
            if world.late and world.chance(0.3):
                world.late.pop(0)()  # the worst moment for a late write: between reading and writing
            if world.mutant == "markers_read_last":
                taken = dict(world.markers)
            if taken:
                answer = world.unreliable(conclusion(world, attempt, taken, verdicts, changes), (50, 5, 40, 5))
                if answer is None and world.mutant != "unknown_keeps_term":
                    break


def take(world):
    count = world.rng.randint(0, min(3, len(world.markers)))
    return {id: world.markers[id] for id in world.rng.sample(sorted(world.markers), count)}


def find(world, markers):
    """What depends on these steps, or is one that was added: blocked, or failed for its dependency and not back yet."""
    steps = {step for kind, step in markers.values() if kind == "ended"}
    added = {step for kind, step in markers.values() if kind == "added"}
    found = {job: doc for job, doc in world.scheduled.items() if doc["lane"] == "blocked"}
    if world.mutant != "failed_stay":
        found |= {
            job: doc for job, doc in world.archived.items() if doc["why"] == "dependency-failed" and not doc["again"]
        }
    return {job: doc for job, doc in found.items() if doc["after"] & steps or job[0] in added}


def verdict(world, doc, mutant=None):
    states = {step: world.state(step) for step in doc["after"]}
    if mutant == "skipped_is_failed":
        states = {step: "failed" if state == "skipped" else state for step, state in states.items()}
    needed = {state for step, state in states.items() if step not in doc["rescue"]}
    tried = {states[step] for step in doc["rescue"]}
    if "failed" in needed:
        return "failed"
    if "skipped" in needed:
        return "skipped"
    if mutant == "rescue_decided_early" and "failed" in tried and needed <= {"done"}:
        return "release"
    if "pending" in needed | tried or "unknown" in needed | tried:
        return "wait"
    return "skipped" if tried and "failed" not in tried else "release"


def conclusion(world, attempt, taken, verdicts, changes):
    """The transaction. Fenced: it writes the lease, and so conflicts with a takeover; and the flow, and so conflicts
    with whoever recovers a step or adds one. What is no longer as it was read is left alone: whoever changed it has
    left a marker."""

    def write():
        if world.lease["holder"] != attempt and world.mutant != "unfenced":
            return False
        if world.changes != changes and world.mutant != "changes_unseen":
            return False
        for job, (_, what) in verdicts.items():
            waiting = world.scheduled.get(job)
            if what == "release" and waiting and waiting["rescue"] and verdict(world, waiting) != "release":
                raise Violation("a step was released that only a failure starts")
        for job, (seen, what) in verdicts.items():
            waiting, ended = world.scheduled.get(job), world.archived.get(job)
            if "why" in seen:
                if ended and not ended["again"] and what != "failed":
                    again(world, job)
            elif waiting and (waiting["lane"] == "blocked" or world.mutant == "release_unguarded"):
                if what == "release":
                    world.scheduled[job] = {**waiting, "lane": "free"}
                    world.score["steps released"] += 1
                elif what == "failed":
                    world.end(job, "dependency-failed")
                    if world.mutant != "failed_without_marker":
                        world.mark("ended", job[0])
                elif what == "skipped":
                    world.end(job, "skipped")
                    world.score["steps skipped"] += 1
                    if world.mutant != "skipped_without_marker":
                        world.mark("ended", job[0])
        for id in list(world.markers) if world.mutant == "all_markers_removed" else taken:
            world.markers.pop(id, None)
        return True

    return write


def again(world, job):
    after, rescue = world.archived[job]["after"], world.archived[job]["rescue"]
    world.archived[job] = {**world.archived[job], "again": True}
    lane = "blocked" if after else "free"
    world.scheduled[job[0], next(world.ids)] = {"after": after, "rescue": rescue, "lane": lane}
    world.score["steps recovered"] += 1
    world.changes += 1
    if world.mutant != "recovered_without_marker":
        world.mark("ended", job[0])  # those that depend on it are to wait for it again
        world.mark("added", job[0])


def worker(world):
    """Holds and settles one step at a time; see the other designs for how."""
    while True:
        yield
        ready = sorted(job for job, doc in world.scheduled.items() if doc["lane"] == "free" and job not in world.busy)
        if not ready:
            continue
        job = world.rng.choice(ready)
        world.busy.add(job)
        yield
        if not world.calm and world.chance(0.2):
            add(world)
        if not world.calm and world.chance(0.2) and job in world.scheduled:
            yield from add_before_dependents(world, job[0])
        yield
        world.busy.discard(job)
        if job in world.scheduled:
            world.end(job, "done" if world.calm or world.chance(0.5) else "failed")
            if world.mutant == "marker_after_settling":
                yield
                if world.chance(0.2):
                    continue  # killed in between
            world.mark("ended", job[0])


def add(world):
    """A running step adds one to its flow; it may wait for any, ended or not."""
    step = len(world.ever)
    if step < 7 and not world.narrow:
        after = frozenset(world.rng.sample(sorted(world.ever), world.rng.randint(1, 2)))
        world.ever.add(step)
        world.changes += 1
        world.scheduled[step, 0] = {"after": after, "rescue": frozenset(), "lane": "blocked"}
        if world.mutant != "added_without_marker":
            world.mark("added", step)


def add_before_dependents(world, running):
    """A running step adds one that its dependents wait for, too."""
    step = len(world.ever)
    if step >= 7 or world.narrow:
        return
    world.ever.add(step)
    world.changes += 1
    world.scheduled[step, 0] = {"after": frozenset(), "rescue": frozenset(), "lane": "blocked"}
    world.mark("added", step)
    dependents = {
        job: place
        for place in (world.scheduled, world.archived)
        for job, doc in place.items()
        if running in doc["after"] and doc["lane"] == "blocked" and is_undecided(doc)
    }
    for job in dependents:
        world.joined[job[0]] = world.joined.get(job[0], frozenset()) | {step}
    if world.mutant == "joined_later":
        yield
    for job, place in dependents.items():
        if "why" not in place[job] or world.mutant != "given_up_not_joined":
            doc = place[job]
            rescue = doc["rescue"] | ({step} if running in doc["rescue"] else set())
            place[job] = {**doc, "after": doc["after"] | {step}, "rescue": rescue}
            world.score["dependents joined"] += 1


def is_undecided(doc):
    """It waits; or it was given up, and comes back if a step before it is recovered."""
    return "why" not in doc or (doc["why"] == "dependency-failed" and not doc["again"])


def operator(world):
    """Cancels steps that nobody runs (the leader archives them), and recovers steps that failed by themselves."""
    while True:
        yield
        if world.calm:
            continue
        if world.narrow and not world.scheduled:
            world.begin(2)
        if world.chance(0.02) and not world.narrow:
            idle = sorted(job for job in world.scheduled if job not in world.busy)
            if idle:
                job = world.rng.choice(idle)
                world.scheduled[job] = {**world.scheduled[job], "lane": "cancelled", "cancelled": True}
        elif world.chance(0.2):
            for job in [job for job, doc in world.scheduled.items() if doc["lane"] == "cancelled"]:
                world.end(job, "cancelled")
                if world.mutant != "cancelled_without_marker":
                    world.mark("ended", job[0])
        elif world.chance(0.3):
            failed = {
                job: doc
                for job, doc in world.archived.items()
                if doc["why"] in ("failed", "cancelled") and not doc["again"]
            }
            if failed:
                job = world.rng.choice(sorted(failed))
                yield
                if world.archived.get(job) is failed[job] or world.mutant == "recovered_twice":
                    again(world, job)


def cleaner(world):
    while True:
        yield
        if world.mutant == "ended_forgotten" and world.archived and world.chance(0.02):
            del world.archived[world.rng.choice(sorted(world.archived))]


def simulate(seed, mutant):
    world = Flow(seed, mutant)
    calm = [leader(world, "a"), worker(world), worker(world), late_writes(world, 0.03)]
    others = [leader(world, "b")] * world.chance(0.4)
    run(world, [*calm, *others, operator(world), operator(world), cleaner(world)], 1200 if world.narrow else 300)
    world.calm = True  # from here on nothing fails any more, and what was cancelled is archived; does it rest?
    for job in [job for job, doc in world.scheduled.items() if doc["lane"] == "cancelled"]:
        world.end(job, "cancelled")
        if mutant != "cancelled_without_marker":
            world.mark("ended", job[0])
    while world.markers or world.late or any(doc["lane"] == "free" for doc in world.scheduled.values()):
        run(world, calm, 50)
    for doc in world.archived.values():
        if doc["why"] == "dependency-failed" and not doc["again"] and verdict(world, doc) != "failed":
            raise Violation("failed for a dependency that did not fail")
    if world.scheduled:
        raise Violation("a step is stuck")
    return world.score
