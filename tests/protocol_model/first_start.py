"""The first start of a job: calls with its key ask whether it has begun, and decide by that.

Three keys, each with its last job. A *debounce* gives its job other contents as long as that has not begun. A call that
is unique *until started* changes data in a transaction of the caller's, and needs a job that reads the data afterwards.
A call that is unique *until ended* makes a job only if none of its key has not ended; somebody cancels these jobs.

A worker writes on the job that it begins, in a transaction that touches its own place on the roster. Then it runs the
job. The run ends, asks to be run again (a retry, a sleep, a wait), is handed back, or its worker is retired.
"""

from tests.protocol_model.core import Transaction, Violation, World, run

RULES = {
    "start_unwritten": "the start of a job whose key asks for it is written before it starts",
    "runs_as_fetched": "such a job starts as it is when its start is written, not as it was fetched",
    "begun_removed_by_retry": "the first start is written once: a retry or a sleep does not remove it",
    "begun_removed_by_hand_back": "nor does handing the job back, or retiring its worker",
    "met_untouched": "a caller's transaction touches the job that it met: the start conflicts with it",
    "flag_is_the_end": "a cancelled job has not ended while a worker holds it",
}
DEBOUNCE, STARTED, ENDED = "debounce", "until started", "until ended"


class Starts(World):
    def __init__(self, seed, mutant):
        super().__init__(seed, mutant)
        self.keys = {key: {"job": None, "calls": 0} for key in (DEBOUNCE, STARTED, ENDED)}
        self.data = {"stock": 0}
        self.roster = {next(self.ids): self.idle() for _ in range(3)}
        self.ran, self.running, self.seen, self.calm = {}, {}, 0, False
        """The contents that each job ran with, the key of each job that runs now, and the newest data that was read."""

    def idle(self):
        return {"assigned": frozenset(), "touched": 0}

    def holder(self, job):
        return next((worker for worker, doc in self.roster.items() if job in doc["assigned"]), None)

    def let_go(self, worker, job):
        self.running.pop((worker, job), None)
        if worker in self.roster:
            doc = self.roster[worker]
            self.roster[worker] = {**doc, "assigned": doc["assigned"] - {job}}

    def check(self):
        super().check()
        if list(self.running.values()).count(ENDED) > 1:
            raise Violation("two jobs of one unique key run side by side")


# -- the leader and the workers ----------------------------------------------------------------------------------------


def leader(world):
    """How jobs are assigned safely is another model's (core.py); here nothing of that is late."""
    while True:
        yield
        free = [job for job in sorted(world.scheduled) if world.holder(job) is None]
        job = world.rng.choice(free) if free else None
        idle = [worker for worker, doc in sorted(world.roster.items()) if not doc["assigned"]]
        if job is not None and world.scheduled[job]["cancelled"]:
            world.archived[job] = world.scheduled.pop(job)
        elif job is not None and idle:
            worker = world.rng.choice(idle)
            world.roster[worker] = {**world.roster[worker], "assigned": frozenset([job])}
        if world.roster and not world.calm and world.chance(0.02):  # a worker falls silent
            retire(world, world.rng.choice(sorted(world.roster)))


def retire(world, worker):
    for job in world.roster.pop(worker)["assigned"]:
        if (worker, job) in world.running:
            again(world, job, "begun_removed_by_hand_back")
        world.running.pop((worker, job), None)
    world.roster[next(world.ids)] = world.idle()


def again(world, job, mutant):
    """It waits again. That it has begun is written with this too, for jobs whose start was not."""
    world.scheduled[job] = {**world.scheduled[job], "begun": world.mutant != mutant}


def worker(world):
    while True:
        yield
        held = [(worker, job) for worker, doc in sorted(world.roster.items()) for job in doc["assigned"]]
        held = [place for place in held if place not in world.running]
        if not held:
            continue
        me, job = world.rng.choice(held)
        fetched = world.scheduled[job]
        yield
        started = yield from begin(world, me, job, fetched)
        if started is None or job not in world.roster.get(me, {"assigned": ()})["assigned"]:
            continue
        yield from carry_out(world, me, job, started)


def begin(world, me, job, fetched):
    """The job as it runs; None when it does not."""
    if world.mutant == "start_unwritten":
        return fetched
    transaction = Transaction(world, "roster", "scheduled")
    yield
    place, current = transaction.get("roster", me), transaction.get("scheduled", job)
    if place is None or job not in place["assigned"]:
        return None
    if current["cancelled"]:
        world.let_go(me, job)
        return None
    transaction.put("roster", me, {**place, "touched": place["touched"] + 1})
    transaction.put("scheduled", job, {**current, "begun": True})
    yield
    if not transaction.commit():
        return None
    return fetched if world.mutant == "runs_as_fetched" else current


def carry_out(world, me, job, started):
    if (me, job) in world.running:
        return
    world.running[me, job] = started["key"]
    world.ran[job] = started["contents"]
    if started["key"] == STARTED:
        world.seen = max(world.seen, world.data["stock"])
    world.score["runs"] += 1
    yield
    yield
    if (me, job) not in world.running:  # retired meanwhile: what it settles is refused
        return
    if world.scheduled[job]["cancelled"] or world.chance(0.4):
        world.archived[job] = world.scheduled.pop(job)
    elif world.chance(0.7):
        again(world, job, "begun_removed_by_retry")
    else:
        again(world, job, "begun_removed_by_hand_back")
    world.let_go(me, job)


# -- the callers -----------------------------------------------------------------------------------------------------


def caller(world):
    while True:
        yield
        if not world.calm:
            key = world.rng.choice((DEBOUNCE, STARTED, ENDED))
            yield from {DEBOUNCE: debounce, STARTED: until_started, ENDED: until_ended}[key](world)


def make(world, transaction, key, contents=0):
    job, last = next(world.ids), transaction.get("keys", key)
    fresh = {"key": key, "contents": contents, "begun": False, "cancelled": False, "touched": 0}
    transaction.put("scheduled", job, fresh)
    transaction.put("keys", key, {"job": job, "calls": last["calls"] + 1})


def met(transaction, key):
    job = transaction.get("keys", key)["job"]
    return job, transaction.get("scheduled", job)


def debounce(world):
    transaction = Transaction(world, "keys", "scheduled")
    yield
    job, document = met(transaction, DEBOUNCE)
    contents = transaction.get("keys", DEBOUNCE)["calls"] + 1
    if document is None or document["begun"]:
        make(world, transaction, DEBOUNCE, contents)
    else:
        transaction.put("scheduled", job, {**document, "contents": contents})
        transaction.put("keys", DEBOUNCE, {"job": job, "calls": contents})
    yield
    began = job in world.ran
    if transaction.commit() and began and ("scheduled", job) in transaction.writes:
        raise Violation("a job that has begun got other contents")


def until_started(world):
    transaction = Transaction(world, "keys", "scheduled", "data")
    yield
    transaction.put("data", "stock", transaction.get("data", "stock") + 1)
    job, document = met(transaction, STARTED)
    if document is None or document["begun"]:
        make(world, transaction, STARTED)
    elif world.mutant != "met_untouched":
        transaction.put("scheduled", job, {**document, "touched": document["touched"] + 1})
    yield
    yield
    transaction.commit()


def until_ended(world):
    transaction = Transaction(world, "keys", "scheduled", "roster")
    yield
    job, document = met(transaction, ENDED)
    held = any(job in place["assigned"] for place in transaction.before["roster"].values())
    flagged = document is not None and document["cancelled"]
    if document is None or (flagged and (not held or world.mutant == "flag_is_the_end")):
        make(world, transaction, ENDED)
    elif world.chance(0.3) and job in world.scheduled:  # and somebody cancels it
        world.scheduled[job] = {**world.scheduled[job], "cancelled": True}
        return
    yield
    transaction.commit()


def simulate(seed, mutant):
    world = Starts(seed, mutant)
    calm = [leader(world), worker(world), worker(world), worker(world)]
    callers = [caller(world), caller(world), caller(world)]
    run(world, [*calm, *callers], 500)
    world.calm = True
    run(world, [*calm, *callers], 50)
    for _ in range(100):
        if not world.scheduled:
            break
        run(world, calm, 50)
    if world.scheduled:
        raise Violation("a job is stuck")
    if world.seen < world.data["stock"]:
        raise Violation("a change was committed, and no job has read it")
    if world.keys[DEBOUNCE]["calls"] and world.ran.get(world.keys[DEBOUNCE]["job"]) != world.keys[DEBOUNCE]["calls"]:
        raise Violation("the contents of the last call were not run")
    return world.score
