"""Flows that people change: they are cancelled, retried, added to and forgotten, while steps run and leaders look.

The steps of these flows wait for nothing (flow_release.py is about that). What a flow is, is on one document: whether
it was cancelled, and how often; how it ended; whether it is forgotten. A transaction sees a snapshot, and fails only if
another one has written the same document meanwhile.

A cancel is two writes: the flow says that it is cancelled, and how often it was; then the steps are flagged. The second
write may come at any time later, by the process that cancels or by a leader that has read the flow. So each job has the
number of cancels that came before it, and the n-th cancel flags only jobs with a smaller number.
"""

from tests.protocol_model.core import Transaction, Violation, World, acquire, run

RULES = {
    "cancels_unnumbered": "a cancel flags only the jobs that were stored before it",
    "ends_flagged": "a cancel leaves the steps that wait for the end of the flow",
    "retry_unnumbered": "each batch of a retry stops when the flow was cancelled again after the first",
    "added_untouched": "whoever adds a step writes the flow: who forgets or concludes it meanwhile conflicts",
    "recovered_untouched": "whoever recovers a step does so too",
    "touched_by_nothing": "an update that changes nothing conflicts with nothing: touching must change the document",
    "old_end_stays": "a flow that gets another step has not ended: the leader decides anew",
    "forgotten_unseen": "nothing is added to a flow that is forgotten",
}
TOUCHES = {"added_untouched": "add", "recovered_untouched": "recover"}


class Changes(World):
    def __init__(self, seed, mutant):
        super().__init__(seed, mutant)
        self.flows, self.markers, self.busy, self.calm = {}, {}, set(), False
        for _ in range(2):
            self.begin()

    def begin(self):
        flow = next(self.ids)
        self.flows[flow] = {"cancel": False, "cancels": 0, "ended": None, "forgotten": False, "run": 0, "changes": 0}
        for _ in range(self.rng.randint(1, 3)):
            self.scheduled[flow, next(self.ids)] = self.job(0)

    def job(self, born, step=None, on=False):
        return {"step": step or next(self.ids), "lane": "free", "born": born, "on": on}

    def mark(self, flow):
        self.markers[next(self.ids)] = flow

    def end(self, job, why):
        self.archived[job] = {**self.scheduled.pop(job), "why": why, "again": False}
        self.mark(job[0])

    def check(self):
        super().check()
        for flow, _ in self.scheduled:
            if self.flows.get(flow, {"forgotten": True})["forgotten"]:
                raise Violation("a step waits in a flow that is forgotten")
        steps = [(job[0], doc["step"]) for job, doc in self.scheduled.items()]
        if len(steps) != len(set(steps)):
            raise Violation("a step waits or runs twice")
        if any(doc["run"] > 1 for doc in self.flows.values()):
            raise Violation("the end of a flow ran twice")


def waits(jobs, flow):
    return any(job[0] == flow and not doc["on"] for job, doc in jobs.items())


def failed(jobs, flow):
    """Jobs of steps that have not succeeded."""
    return {
        job: doc
        for job, doc in jobs.items()
        if job[0] == flow and not doc["on"] and doc["why"] != "done" and not doc["again"]
    }


def changed(world, flow, how, **fields):
    """The document of a flow that another step is stored for, as it is written; None when only the step is."""
    if TOUCHES.get(world.mutant) == how:
        return None
    if world.mutant != "old_end_stays":
        fields["ended"] = None
    after = {**flow, **fields}
    if world.mutant == "touched_by_nothing":
        return None if after == flow else after
    return {**after, "changes": flow["changes"] + 1}


# -- the leader, the workers and the cleaner ---------------------------------------------------------------------------


def leader(world, name):
    while True:
        _, attempt = yield from acquire(world, name)
        while world.lease["holder"] == attempt and (world.calm or world.chance(0.98)):
            yield
            taken = dict(world.markers)
            flow = world.rng.choice(sorted(taken.values())) if taken else None
            document = world.flows.get(flow)
            if document is None or document["forgotten"]:
                for id in [id for id, marked in taken.items() if marked == flow]:
                    world.markers.pop(id, None)
                continue
            yield
            if document["cancel"]:
                yield from flag(world, flow, document["cancels"])
            for job in [job for job, doc in world.scheduled.items() if doc["lane"] == "cancelled"]:
                world.end(job, "cancelled")
            done = yield from conclude(world, flow, attempt)
            if done:
                for id in [id for id, marked in taken.items() if marked == flow]:
                    world.markers.pop(id, None)


def conclude(world, flow, attempt):
    """Whether it was written, or there was nothing to write."""
    transaction = Transaction(world, "flows", "scheduled", "archived")
    yield
    document = transaction.get("flows", flow)
    if document["forgotten"] or document["ended"] or waits(transaction.before["scheduled"], flow):
        return True
    why = "failed" if failed(transaction.before["archived"], flow) else "done"
    ended = "cancelled" if why == "failed" and document["cancel"] else why
    run = document["run"] or 1
    transaction.put("flows", flow, {**document, "ended": ended, "run": run, "changes": document["changes"] + 1})
    if not document["run"]:
        transaction.put("scheduled", (flow, next(world.ids)), world.job(document["cancels"] - 1, on=True))
    yield
    return world.lease["holder"] == attempt and transaction.commit()


def flag(world, flow, number):
    """Raises the flag on steps, one after the other: the caller may stand still at any time."""
    for job in sorted(job for job in world.scheduled if job[0] == flow):
        if world.chance(0.3):
            yield
        doc = world.scheduled.get(job)
        if doc is None or doc["lane"] == "cancelled" or (doc["on"] and world.mutant != "ends_flagged"):
            continue
        if doc["born"] >= number and world.mutant != "cancels_unnumbered":
            continue
        if doc["on"]:
            raise Violation("a step that waits for the end of a flow was cancelled")
        if doc["born"] >= number:
            raise Violation("a late cancel hit a job that was stored after it")
        world.scheduled[job] = {**doc, "lane": "cancelled"}


def worker(world):
    while True:
        yield
        ready = sorted(job for job, doc in world.scheduled.items() if doc["lane"] == "free" and job not in world.busy)
        if not ready:
            continue
        job = world.rng.choice(ready)
        world.busy.add(job)
        for _ in range(world.rng.randint(1, 4)):
            yield
        world.busy.discard(job)
        if job in world.scheduled:
            world.end(job, "done" if world.calm or world.chance(0.6) else "failed")


def cleaner(world):
    while True:
        yield
        ended = sorted(flow for flow, doc in world.flows.items() if doc["ended"])
        if world.calm or not ended or not world.chance(0.1):
            continue
        flow = world.rng.choice(ended)
        transaction = Transaction(world, "flows", "scheduled")
        yield
        document = transaction.get("flows", flow)
        if any(job[0] == flow for job in transaction.before["scheduled"]) or not document or not document["ended"]:
            continue
        transaction.put("flows", flow, {**document, "forgotten": True, "changes": document["changes"] + 1})
        yield
        if transaction.commit():
            world.archived = {job: doc for job, doc in world.archived.items() if job[0] != flow}
            world.score["flows forgotten"] += 1
            world.begin()


# -- people ------------------------------------------------------------------------------------------------------------


def person(world):
    acts = [cancel, retry, add, recover]
    while True:
        yield
        flows = sorted(flow for flow, doc in world.flows.items() if not doc["forgotten"])
        if flows and not world.calm and world.chance(0.5):
            yield from world.rng.choice(acts)(world, world.rng.choice(flows))


def cancel(world, flow):
    transaction = Transaction(world, "flows", "scheduled")
    document = transaction.get("flows", flow)
    if document["forgotten"] or not waits(transaction.before["scheduled"], flow):
        return
    number = document["cancels"] + 1
    changes = document["changes"] + 1
    transaction.put("flows", flow, {**document, "cancel": True, "cancels": number, "ended": None, "changes": changes})
    yield
    if transaction.commit():
        world.mark(flow)
        world.score["flows cancelled"] += 1
        for _ in range(world.rng.choice([0, 0, 30])):
            yield
        yield from flag(world, flow, number)


def retry(world, flow):
    """In batches of one step."""
    document = world.flows[flow]
    if document["forgotten"] or (document["cancel"] and waits(world.scheduled, flow)):
        return
    first, number = True, document["cancels"]
    while True:
        transaction = Transaction(world, "flows", "scheduled", "archived")
        document, found = transaction.get("flows", flow), failed(transaction.before["archived"], flow)
        again = document["cancels"] != number and world.mutant != "retry_unnumbered"
        if not found or document["forgotten"] or again or (first and waits(transaction.before["scheduled"], flow)):
            return
        if document["cancels"] != number:
            raise Violation("a retry lifted a cancel that came after it had begun")
        put_again(world, transaction, sorted(found)[0])
        yield
        if transaction.commit():
            world.mark(flow)
            first = False
        yield


def put_again(world, transaction, job):
    flow = transaction.get("flows", job[0])
    ended = transaction.get("archived", job)
    transaction.put("archived", job, {**ended, "again": True})
    transaction.put("scheduled", (job[0], next(world.ids)), world.job(flow["cancels"], ended["step"]))
    document = changed(world, flow, "recover", cancel=False)
    if document is not None:
        transaction.put("flows", job[0], document)
    world.score["steps recovered"] += 1


def recover(world, flow):
    transaction = Transaction(world, "flows", "scheduled", "archived")
    document, found = transaction.get("flows", flow), failed(transaction.before["archived"], flow)
    if not found or (document["forgotten"] and world.mutant != "forgotten_unseen"):
        return
    put_again(world, transaction, world.rng.choice(sorted(found)))
    yield
    if transaction.commit():
        world.mark(flow)


def add(world, flow):
    yield  # the flow was found before the transaction begins
    transaction = Transaction(world, "flows", "scheduled")
    document = transaction.get("flows", flow)
    if document["cancel"] or (document["forgotten"] and world.mutant != "forgotten_unseen"):
        return
    if sum(job[0] == flow for job in [*world.scheduled, *world.archived]) > 6:
        return
    transaction.put("scheduled", (flow, next(world.ids)), world.job(document["cancels"]))
    after = changed(world, document, "add")
    if after is not None:
        transaction.put("flows", flow, after)
    yield
    if transaction.commit():
        world.mark(flow)
        world.score["steps added"] += 1


def simulate(seed, mutant):
    world = Changes(seed, mutant)
    calm = [leader(world, "a"), worker(world), worker(world)]
    others = [leader(world, "b")] * world.chance(0.5)
    people = [person(world), person(world), person(world)]
    run(world, [*calm, *others, *people, cleaner(world)], 600)
    world.calm = True  # from here on nobody changes anything; those who have begun finish
    run(world, [*calm, *others, *people, cleaner(world)], 400)
    for _ in range(100):
        if not world.markers and not world.scheduled:
            break
        run(world, calm, 50)
    if world.scheduled:
        raise Violation("a step is stuck")
    for flow, document in world.flows.items():
        if not document["forgotten"]:
            expected = "failed" if failed(world.archived, flow) else "done"
            ended = document["ended"]
            if ended != expected and not (expected == "failed" and ended == "cancelled" and document["cancel"]):
                raise Violation(f"a flow ended as {ended}, and its steps have {expected}")
            if document["run"] != 1:
                raise Violation("the end of a flow did not run")
    return world.score
