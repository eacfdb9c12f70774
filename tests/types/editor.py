"""What a type checker says in an editor: each line marked with an E must be an error of that kind, and no other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from recruiter import JobHandle, Recruiter, RetryManyTimes, Step, Workable, current_job

recruiter = Recruiter()


@recruiter.task
def add(a: int, b: int = 0) -> int:
    return a + b


@recruiter.task(group="money", retry=RetryManyTimes(3, "1 minute"), only=[ConnectionError], timeout="2m")
async def price(of: str) -> Decimal:
    return Decimal(len(of))


# calling a task is calling the function
plain: int = add(1, 2)
wrong_plain: str = add(1, 2)  # E: assignment

# arguments are checked where the job is made
add.enqueue(1)
add.enqueue(1, b=2)
add.enqueue("1")  # E: arg-type
add.enqueue(1, 2, 3)  # E: call-arg
add.enqueue(1, c=3)  # E: call-arg
add.enqueue()  # E: call-arg
add.job("1")  # E: arg-type
add.create(1, b="2")  # E: arg-type
price.enqueue(of=5)  # E: arg-type

# results have the type of the function
number: int = add.enqueue(1).result()
wrong_number: str = add.enqueue(1).result()  # E: assignment
cost: Decimal = price.enqueue("tea").result("5s")
wrong_cost: float = price.enqueue("tea").result("5s")  # E: assignment
built: int = add.job(1).schedule_in("5 minutes").in_group("sums").tagged_as("a").in_background().execute().result()
wrong_built: bytes = add.job(1).in_background().execute().result()  # E: assignment


async def in_a_loop() -> None:
    awaited: int = await (await add.aenqueue(1, 2)).aresult()
    wrong_awaited: str = await (await add.aenqueue(1, 2)).aresult()  # E: assignment
    await add.aenqueue("1")  # E: arg-type
    job = await add.job(1).in_background().aexecute()
    from_builder: int = await job.aresult(1.5)
    found = await recruiter.afind(job.id)
    moment: datetime = found.created_at
    why: str = found.why  # E: assignment
    twice: Decimal = await price("tea") + await price("tea")
    del awaited, wrong_awaited, from_builder, moment, why, twice


# options of tasks, jobs and workables
@recruiter.task(timeout=5, priority="high")  # E: call-overload  # E: untyped-decorator
def wrong_options() -> None: ...


add.job(1).with_priority("high")  # E: arg-type
add.job(1).schedule_at("tomorrow")  # E: arg-type
add.job(1).schedule_at(datetime(2038, 1, 19, tzinfo=UTC))
add.job(1).retry_with_policy(3)  # E: arg-type
add.job(1).retry_with_policy(RetryManyTimes(3, 60), only=[ValueError("x")])  # E: list-item
add.job(1).in_group(["a", "b"])  # E: arg-type
RetryManyTimes("3", 60)  # E: arg-type


@dataclass
class Resize(Workable, group="images", retry=RetryManyTimes(3, 60)):
    picture: int
    width: int = 100

    def execute(self) -> str:
        return f"{self.picture}@{self.width}"

    def after_success(self, result: str) -> None: ...


class Wrong(Workable, group=5):  # E: arg-type
    pass


Resize(7).as_job_of(recruiter).in_background().execute()
Resize("7").as_job_of(recruiter)  # E: arg-type
Resize(7, 5).as_job_of(recruiter).schedule_in(timedelta=5)  # E: call-arg


class Fetch(Workable):
    async def execute(self) -> bytes:
        return b""


class Server(Workable):
    def ping(self) -> float:
        return 0.1


# a workable's job has the result of `execute`, and its methods take no arguments
resized: str = Resize(7).as_job_of(recruiter).in_background().execute().result()
wrong_resized: int = Resize(7).as_job_of(recruiter).execute().result()  # E: assignment
fetched: bytes = Fetch().as_job_of(recruiter).in_group("web").execute(server_timeout="5s").result()
wrong_fetched: str = Fetch().as_job_of(recruiter).execute().result()  # E: assignment
Server().as_job_of(recruiter).ping()
Server().as_job_of(recruiter).with_method("ping").execute()
Server().as_job_of(recruiter).ping(host="a")  # E: call-arg

# many jobs: `task.job(…)` checks arguments; of tuples only the form, because types cannot compare them with parameters
handles = add.enqueue_many([(1,), (1, 2)])
many: int = handles[0].result()
wrong_many: str = handles[0].result()  # E: assignment
add.enqueue_many([1, 2])  # E: list-item
jobs: list[JobHandle[int]] = add.enqueue_many(add.job(a, b=2) for a in range(3))
add.enqueue_many([add.job("1")])  # E: arg-type
add.enqueue_many([add.job(1, c=2)])  # E: call-arg
add.create_many([price.job("tea")])  # E: list-item
add.enqueue_many([(1,)], grupp="sums")  # E: call-overload
add.enqueue_many([{"a": 1}], group=5)  # E: call-overload

# steps of a flow
flow = recruiter.flow("sums")
first = flow.add(add, 1)
flow.add(add, first.result, b=2)
flow.add(price, first.result)  # E: arg-type
flow.add(add, "1")  # E: arg-type
flow.add(add)  # E: call-arg  # E: arg-type
flow.add(add, 1, c=2)  # E: call-arg
flow.add(add, first.result, after=[first])

# arguments next to options: positional ones are checked; named ones belong to `task.job(…)`
second: Step[int] = flow.add(add, first.result, 2, after=first, name="second")
flow.add(add, 1, name="third", before_dependents=True)
told: Step[Decimal] = flow.add(price, "tea", after_any=first)
wrong_told: Step[str] = flow.add(price, "tea", after_any=first)  # E: call-arg  # E: arg-type
flow.add(add, "1", after=first)  # E: call-arg  # E: arg-type
flow.add(add, name="fourth")  # E: call-arg  # E: arg-type
flow.add(add, 1, 2, 3, after=first)  # E: call-arg
flow.add(price, first.result, after_failure=first)  # E: call-arg  # E: arg-type
flow.add(add, 1, b=2, after=first)  # E: call-arg
flow.add(add.job(1, b=2), after=first)
flow.add(add, 1, after="first")  # E: call-arg
flow.add(add.job(first.result), after=first)
flow.add(add.job("1"), after=first)  # E: arg-type
flow.add(add.job(1), 2)  # E: call-overload
flow.add(Resize(7), after_any=first)
flow.add(Resize(7), 100)  # E: call-overload
flow.add("a.task.elsewhere", 1, width=2, after=first)
flow.on_success(add, 1).on_failure(Resize(7)).on_end("report", "sums")
flow.on_success(add, "1")  # E: call-overload
flow.on_end(add.job(1), 2)  # E: call-overload


@add.after_success
def celebrate(result: int) -> None: ...


@add.after_success  # E: arg-type
def celebrate_wrongly(result: str) -> None: ...


@add.after_last_failure
async def mourn(error: BaseException) -> None: ...


attempt: int = current_job.attempt
wrong_attempt: str = current_job.attempt  # E: assignment

# named steps, conditions, flows in flows, and results
named = flow.add(add, 1, name="sum")
flow.add(add.job("1"), name="sum")  # E: arg-type
flow.add(add.job(1), name=5)  # E: call-overload
flow.add(price.job(first.result), after_failure=named)  # E: arg-type
flow.add(add.job(named.result), after_failure=[named, first])
flow.add(add.job(1), after_failure="sum")  # E: arg-type
flow.add(add.job(1), before_dependents=True)
flow.add(add.job(1), afterwards=named)  # E: call-overload
added: list[Step[int]] = flow.add_many(add, [(1,), {"a": 1}, add.job(1, b=2)], name="part")
flow.add_many(add, [add.job("1")])  # E: arg-type
flow.add_many(add, [1, 2])  # E: list-item
flow.add_many(add, [(1,)], priority=5)  # E: call-overload
part = flow.add(recruiter.flow("other"), after=named)
flow.add(recruiter.flow("other"), 1)  # E: call-overload
flow.add(add, part.result)
flow.let_wait(named, after_failure=part)
handle = flow.start()
sums: list[int] = handle.results([named, first])
wrong_sums: list[str] = handle.results([named, first])  # E: list-item
len(handle.results(part)[0])
len(handle.results([named, told]))
flow_of_three = recruiter.chain(add.job(1), recruiter.fan_out(add, [(1,)]), add)
handle["sum"].result()
handle[5]  # E: index


# durable steps
def charge(order: int, cents: int = 0) -> str:
    return f"{order} {cents}"


async def acharge(order: int) -> str:
    return str(order)


receipt: str = current_job.once("charge", charge, 7, cents=5)
wrong_receipt: int = current_job.once("charge", charge, 7)  # E: assignment
current_job.once("charge", charge, "7")  # E: arg-type
current_job.once("charge", charge)  # E: call-arg  # E: arg-type
current_job.once("charge", charge, 7, retry=RetryManyTimes(3, "10s"), timeout="30s")
current_job.once("charge", charge, 7, timeout=5)
current_job.once("charge", charge, 7, 5, timeout=5)
current_job.once("charge", charge, "7", timeout=5)  # E: call-arg  # E: arg-type
current_job.once("charge", charge, timeout=5)  # E: call-arg  # E: arg-type
current_job.once("charge", charge, 7, retry=3)  # E: call-arg
wrong_retried: int = current_job.once("charge", charge, 7, timeout=5)  # E: assignment
current_job.wait_for_any("approved", "rejected", timeout="7 days").name.upper()
current_job.wait_for_any("approved", 5)  # E: arg-type
created: bool = add.job(1).unique("a").enqueue_with_signal("go", {"by": "ada"}).created
add.job(1).unique("a").enqueue_with_signal(5)  # E: arg-type


async def in_steps() -> None:
    receipt: str = await current_job.aonce("charge", acharge, 7)
    retried: str = await current_job.aonce("charge", acharge, 7, retry=RetryManyTimes(3, "10s"))
    await current_job.aonce("charge", acharge, "7", timeout=5)  # E: call-arg  # E: arg-type
    wrong: int = await current_job.aonce("charge", acharge, 7)  # E: arg-type
    await current_job.aonce("charge", acharge, "7")  # E: arg-type
    name, _data = await current_job.await_for_any("approved", "rejected")
    name.upper()
    del receipt, retried, wrong
