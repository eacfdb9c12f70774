"""Whatever the user's code raises, and wherever: the process lives on, and the job says what happened to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
from bson import ObjectId

from recruiter import ArchivedJob, JobHandle, RetryPolicy, Why
from recruiter.embedded import EmbeddedServer
from recruiter.errors import InvalidJob, RecruiterError
from recruiter.store.codec import new_id
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import hostile
from tests.applications.hostile import Exported, Part, Strange
from tests.conftest import Process
from tests.samples import a_job, insert

PATIENCE = 60.0
NO_RETRY = Why.NOT_SCHEDULED_BY_RETRY_POLICY


@pytest.fixture(scope="module")
def target(server: EmbeddedServer) -> Iterator[str]:
    name = f"test_{ObjectId()}"
    store = Store(Target.parse(server.uri.replace("/?", f"/{name}?")))
    store.prepare()
    hostile.recruiter.point_at(store.target.uri)
    yield store.target.uri
    hostile.recruiter.close()
    store.client.drop_database(name)
    store.close()


@pytest.fixture(scope="module", params=["1", "4"], ids=["one place", "four places"])
def worker(request: pytest.FixtureRequest, target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One worker for all of them: it must survive each."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RECRUITER_")}
    folder = tmp_path_factory.mktemp("processes")
    common = ["--bootstrap", hostile.__file__, "--target", target]
    recruiter = Process(["start", "recruiter", *common], environment, folder / "recruiter", None)
    worker = Process(["start", "worker", *common, "--concurrency", request.param], environment, folder / "worker", None)
    try:
        worker.says("joined the roster")
        yield worker
        assert worker.stop() == 0
        recruiter.stop()
    finally:
        for process in (worker, recruiter):
            process.popen.kill()
            process.popen.wait()


@dataclass(frozen=True)
class Case:
    """What is enqueued, and what its job must say of it afterwards."""

    enqueue: Callable[[], JobHandle[Any]]
    why: str
    words: str
    """Must be found in its reason, the message, class or notes of its last execution."""


@dataclass(frozen=True)
class Unknown(RetryPolicy):
    """A policy that the worker has never heard of."""

    def decide(self, failure: Any) -> None:
        raise AssertionError(failure)


def by_name(task: str, **data: Any) -> JobHandle[Any]:
    """Without building a workable here: that may raise."""
    return hostile.recruiter.job(task, data).in_background().execute()


def part(where: str, how: str = "raise", method: str = "execute") -> JobHandle[Any]:
    """A workable that goes wrong in these parts."""
    return Part(where, how).as_job_of(hostile.recruiter).with_method(method).in_background().execute()


def stored(**fields: Any) -> JobHandle[Any]:
    """What no call would store: written by an older version of the application, or by somebody else."""
    now = hostile.recruiter.clock.now()
    (id,) = insert(hostile.recruiter.store, a_job(**{"created_at": now, "scheduled_at": now, **fields}))
    return hostile.recruiter.handle(id)


def by_hand(**fields: Any) -> JobHandle[Any]:
    """As any other program would."""
    id = new_id()
    hostile.recruiter.store.scheduled.collection.insert_one({"_id": id, **fields})
    return hostile.recruiter.handle(id)


def with_policy(policy: RetryPolicy) -> JobHandle[Any]:
    return hostile.fail.job().retry_with_policy(policy).in_background().execute()


def with_unknown_policy() -> JobHandle[Any]:
    policy = {"class": "Unknown", "parameters": {}}
    return stored(task="fail", args={}, retry_policy=policy)


CASES = {
    "constructor": Case(lambda: by_name("Part", where="constructor"), NO_RETRY, "LookupError: lost in constructor"),
    "constructor that exits": Case(
        lambda: by_name("Part", where="constructor", how="exit"), NO_RETRY, "SystemExit: left in constructor"
    ),
    "constructor's arguments": Case(
        lambda: stored(task="Part", args={"colour": "red"}), NO_RETRY, "InvalidArguments: .*no parameter 'colour'"
    ),
    "import": Case(
        lambda: Exported("import").as_job_of(hostile.recruiter).in_background().execute(),
        NO_RETRY,
        "LookupError: lost in import",
    ),
    "import that exits": Case(
        lambda: Exported("import that exits").as_job_of(hostile.recruiter).in_background().execute(),
        NO_RETRY,
        "SystemExit: left in import",
    ),
    "import of nonsense": Case(
        lambda: Exported("import of nonsense").as_job_of(hostile.recruiter).in_background().execute(),
        NO_RETRY,
        r"import_\(\)",
    ),
    "method": Case(lambda: part("method"), NO_RETRY, "LookupError: lost in method"),
    "method that exits": Case(lambda: part("method", "exit"), NO_RETRY, "SystemExit: left in method"),
    "async method": Case(lambda: part("method", method="execute_async"), NO_RETRY, "LookupError: lost in method"),
    "async method that exits": Case(
        lambda: part("method", "exit", "execute_async"), NO_RETRY, "SystemExit: left in method"
    ),
    "method that is not there": Case(
        lambda: stored(task="Part", args={}, method="fly"), NO_RETRY, "InvalidArguments: .*no method 'fly'"
    ),
    "method that is not its own": Case(
        lambda: stored(task="Part", args={}, method="__init__"), NO_RETRY, "InvalidArguments: .*'__init__'"
    ),
    "finalizers after a success": Case(
        lambda: part("after_success finalize"),
        Why.DONE,
        "after_success raised LookupError: lost in after_success.*finalize raised LookupError: lost in finalize",
    ),
    "finalizers that exit": Case(
        lambda: part("after_success", "exit"), Why.DONE, "after_success raised SystemExit: left in after_success"
    ),
    "finalizers after a failure": Case(
        lambda: part("method after_failure after_last_failure finalize"),
        NO_RETRY,
        "LookupError: lost in method.*after_failure raised .*after_last_failure raised .*finalize raised",
    ),
    "listener": Case(lambda: hostile.add.enqueue(2, 3), Why.DONE, "^$"),
    "listener of the workable": Case(lambda: part("listener"), Why.DONE, "^$"),
    "listener that exits": Case(lambda: part("listener", "exit"), Why.DONE, "^$"),
    "policy": Case(lambda: with_policy(Strange("decide")), Why.POLICY_FAILED, "Strange.*LookupError: lost in decide"),
    "policy that exits": Case(
        lambda: with_policy(Strange("exit")), Why.POLICY_FAILED, "Strange.*SystemExit: left in decide"
    ),
    "policy that answers nonsense": Case(
        lambda: with_policy(Strange("nonsense")), Why.POLICY_FAILED, "Strange.*'tomorrow' instead of Retry or Archive"
    ),
    "policy that cannot be rebuilt": Case(
        lambda: with_policy(Strange("import")), Why.POLICY_FAILED, "Strange.*LookupError: lost in the policy's import"
    ),
    "policy that nobody knows": Case(
        with_unknown_policy, Why.POLICY_FAILED, "no retry policy 'Unknown' is registered here"
    ),
    "result": Case(lambda: hostile.result.enqueue("an object"), NO_RETRY, r"UnsupportedValue: result\.a\[1\]"),
    "result without end": Case(
        lambda: hostile.result.enqueue("itself"), NO_RETRY, r"UnsupportedValue: result.*contains itself"
    ),
    "result that is too large": Case(
        lambda: hostile.result.enqueue("too much"), Why.DONE, "its result made 16,.* bytes and was not kept"
    ),
    "arguments": Case(lambda: stored(task="add", args={"a": 1}), NO_RETRY, "InvalidArguments: .*missing b"),
    "arguments of a strange kind": Case(
        lambda: stored(task="add", args={"a": {"__recruiter__": "bomb"}, "b": 1}),
        NO_RETRY,
        "InvalidArguments: .*'bomb' is not a kind of value",
    ),
    "document": Case(lambda: by_hand(task="add", args="one"), Why.MALFORMED, "args is str"),
}


def said_of(job: ArchivedJob) -> str:
    """Everything that explains how it ended."""
    said = [job.reason or ""]
    if (last := job.last_execution) is not None:
        exception = (last.exception or "").removeprefix("recruiter.errors.")
        said += [f"{exception}: {last.message}" if last.exception else "", *last.notes]
    return " | ".join(filter(None, said))


@pytest.mark.parametrize("name", CASES)
def test_the_job_is_explained_and_the_process_lives(worker: Process, name: str) -> None:
    case = CASES[name]
    children = worker.children()

    job = case.enqueue().wait(PATIENCE)

    assert (job.why, job.done) == (case.why, case.why == Why.DONE)
    assert matches(case.words, said_of(job)), said_of(job)
    assert hostile.add.enqueue(1, 2).result(PATIENCE) == 3
    assert worker.popen.poll() is None
    assert worker.children() == children, "nor has a child been lost"
    assert all(psutil.pid_exists(pid) for pid in children)


def matches(words: str, said: str) -> bool:
    return re.search(words, said, re.DOTALL) is not None


def test_listeners_that_fail_in_a_child_are_in_the_log_of_the_worker(worker: Process) -> None:
    """Given one that fails with every job, then it is said, but not every time."""
    jobs = 50
    for handle in [hostile.add.enqueue(number, 1) for number in range(jobs)]:
        handle.wait(PATIENCE)

    for event in ("job.started", "job.ended"):
        worker.says(f"failed on {event}: OSError('the listener cannot bear to hear of {event}')")
        assert worker.log.count(f" failed on {event}: ") < jobs / 5


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Exported("export"), InvalidJob, r"Exported\.export\(\) raised LookupError: lost in export"),
        (lambda: Exported("export of nonsense"), InvalidJob, r"Exported\.a\[0\]"),
        (lambda: Part("constructor"), LookupError, "lost in constructor"),
        (lambda: Part("tags"), InvalidJob, r"Part\.tagged_as\(\) raised LookupError: lost in tags"),
    ],
    ids=["export", "export of nonsense", "constructor", "tags"],
)
def test_an_error_of_the_users_code_at_the_call_stores_nothing(
    target: str, make: Callable[[], Any], error: type[BaseException], words: str
) -> None:
    before = hostile.recruiter.store.scheduled.collection.count_documents({})

    with pytest.raises(error, match=words):
        make().as_job_of(hostile.recruiter).in_background().execute()

    assert hostile.recruiter.store.scheduled.collection.count_documents({}) == before


@pytest.mark.parametrize(
    ("policy", "words"), [(Strange("export"), "lost in the policy's export"), (Unknown(), "Unknown")], ids=repr
)
def test_a_policy_that_cannot_be_stored_is_refused_at_the_call(target: str, policy: RetryPolicy, words: str) -> None:
    with pytest.raises((RecruiterError, LookupError), match=words):
        hostile.fail.job().retry_with_policy(policy)
