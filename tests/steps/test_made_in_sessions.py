"""Jobs that repeat others, and extra jobs of schedulers, can be part of the caller's own transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient

from recruiter import Every, InvalidSession, JobNotFound, Recruiter

Make = Callable[[Recruiter, Any, Any], Any]
PLAIN: dict[str, Make] = {
    "recover": lambda recruiter, ended, s: recruiter.recover(ended, again=True, session=s),
    "run_now": lambda recruiter, _, s: recruiter.scheduler("u").run_now(session=s),
}
AWAITED: dict[str, Make] = {
    "arecover": lambda recruiter, ended, s: recruiter.arecover(ended, again=True, session=s),
    "arun_now": lambda recruiter, _, s: recruiter.scheduler("u").arun_now(session=s),
}


def note(text: str) -> str:
    return text


@pytest.fixture
def ended(recruiter: Recruiter) -> Any:
    task = recruiter.task(note)
    task.job("x").repeat_with_policy(Every("1 hour")).with_urn("u").create()
    return task.job("x").here().execute().id


@pytest.mark.parametrize("how", PLAIN)
@pytest.mark.parametrize("commits", [True, False])
def test_it_is_there_if_the_transaction_commits(
    recruiter: Recruiter, ended: Any, target: str, how: str, commits: bool
) -> None:
    with MongoClient[Any](target) as client, client.start_session() as session:
        session.start_transaction()
        handle = PLAIN[how](recruiter, ended, session)
        assert not recruiter.store.scheduled.exists(handle.id)
        session.commit_transaction() if commits else session.abort_transaction()

    assert recruiter.store.scheduled.exists(handle.id) == commits
    marked = recruiter.jobs.count(recovered=True).number
    assert marked == int(commits and how == "recover")


@pytest.mark.parametrize("how", AWAITED)
def test_a_job_made_in_an_async_session_is_there_after_the_commit(
    recruiter: Recruiter, ended: Any, target: str, how: str
) -> None:
    async def make() -> Any:
        async with (
            AsyncMongoClient[Any](target) as client,
            client.start_session() as session,
            await session.start_transaction(),
        ):
            return await AWAITED[how](recruiter, ended, session)

    handle = asyncio.run(make())

    assert recruiter.find(handle.id).args == {"text": "x"}


@pytest.mark.parametrize("how", PLAIN)
def test_a_plain_call_refuses_a_session_that_must_be_awaited(
    recruiter: Recruiter, ended: Any, target: str, how: str
) -> None:
    async def make() -> None:
        async with AsyncMongoClient[Any](target) as client, client.start_session() as session:
            with pytest.raises(InvalidSession, match="AsyncMongoClient"):
                PLAIN[how](recruiter, ended, session)

    asyncio.run(make())


def test_recover_needs_a_transaction(recruiter: Recruiter, ended: Any, target: str) -> None:
    with (
        MongoClient[Any](target) as client,
        client.start_session() as session,
        pytest.raises(InvalidSession, match="start_transaction"),
    ):
        recruiter.recover(ended, again=True, session=session)


def test_a_removed_job_is_not_recovered(recruiter: Recruiter, ended: Any, target: str) -> None:
    recruiter.remove(ended)
    with (
        MongoClient[Any](target) as client,
        client.start_session() as session,
        session.start_transaction(),
        pytest.raises(JobNotFound),
    ):
        recruiter.recover(ended, again=True, session=session)
