"""FastAPI and Starlette: the example application with a real worker, its transactions, its health; and Litestar."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import fastapi_orders as orders
import httpx
import pytest
from fastapi import Depends, FastAPI, Request
from pymongo import AsyncMongoClient, MongoClient
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from recruiter import Recruiter, StoreUnreachable
from recruiter.contrib.fastapi import RecruiterDep, get_recruiter, health, lifespan, transaction
from recruiter.store.database import Store
from recruiter.web import dashboard
from tests.conftest import Starter, eventually
from tests.contrib.serving import served

EXAMPLE = str(Path(orders.__file__))
NOWHERE = "mongodb://127.0.0.1:1/shop"


@pytest.fixture
def shop(target: str, store: Store) -> Iterator[httpx.Client]:
    """The example application, on this test's database."""
    store.database.create_collection("orders")
    orders.recruiter.point_at(target)
    with served(orders.app) as client:
        yield client
    orders.recruiter.point_at(None)


def test_an_order_comes_in_a_worker_sends_the_receipt_and_it_is_read(shop: httpx.Client, fleet: Starter) -> None:
    # given the processes that run its jobs
    fleet(EXAMPLE)

    # when a request comes in
    made = shop.post("/orders?item=cat&price=7")
    assert made.status_code == 201

    # then the job is done by another process, and its result goes out
    place = f"/receipts/{made.json()['receipt']}"
    ended = eventually(
        lambda: (answer := shop.get(place).json())["state"] != "waiting" and answer["receipt"] and answer
    )
    assert ended == {"state": "succeeded", "stage": "print", "receipt": "Receipt for one cat: 7 euros"}

    # and the mounted console shows it, and the health route knows the worker
    assert made.json()["receipt"] in shop.get("/jobs/jobs", auth=("ada", "change me")).text
    assert shop.get("/health").json() == {"status": "ok", "workers": 1}


def test_a_request_that_fails_leaves_neither_order_nor_job(shop: httpx.Client, store: Store) -> None:
    refused = shop.post("/orders?item=cat&price=-1")

    assert (refused.status_code, refused.json()) == (400, {"detail": "a price is not negative"})
    assert store.database.orders.count_documents({}) == 0
    assert store.scheduled.waiting() == []
    assert shop.get("/receipts/5f0000000000000000000000").status_code == 404


def an_application(target: str, recruiter: Recruiter, *, is_async: bool) -> FastAPI:
    """One in which a request may end its own transaction, so that the commit fails."""
    client: Any = AsyncMongoClient(target) if is_async else MongoClient(target)

    @asynccontextmanager
    async def closing(_app: FastAPI) -> AsyncIterator[None]:
        yield
        closed = client.close()
        if is_async:
            await closed

    app = FastAPI(lifespan=lifespan(recruiter, closing))

    @app.post("/jobs")
    async def make(end: bool = False, session: Any = transaction(client)) -> str:  # noqa: B008
        job = await recruiter.job("anything", {}).aenqueue(session=session)
        if end:
            recruiter.store.client.admin.command("killAllSessions", [])
        return str(job.id)

    return app


@pytest.mark.parametrize("is_async", [True, False], ids=["AsyncMongoClient", "MongoClient"])
def test_the_transaction_commits_before_the_response(target: str, recruiter: Recruiter, is_async: bool) -> None:
    app = an_application(target, recruiter, is_async=is_async)
    with served(app) as client:
        # when it commits, then the job is there as soon as the response is
        made = client.post("/jobs")
        assert made.status_code == 200
        assert recruiter.find(made.json()).task == "anything"

        # when the commit fails, then nobody is told that it was made
        assert client.post("/jobs?end=true").status_code == 500
        assert len(recruiter.store.scheduled.waiting()) == 1


def test_the_lifespan_opens_and_closes_and_keeps_the_state_of_its_inner_one(target: str, store: Store) -> None:
    recruiter = Recruiter(target)
    app = FastAPI(lifespan=lifespan(recruiter))

    @app.get("/")
    async def who(jobs: RecruiterDep, request: Request) -> list[bool]:
        return [jobs is recruiter, request.state.recruiter is recruiter]

    with served(app) as client:
        assert "store" in recruiter.__dict__
        assert client.get("/").json() == [True, True]
    assert "store" not in recruiter.__dict__


def test_an_application_without_mongodb_does_not_start() -> None:
    app = FastAPI(lifespan=lifespan(Recruiter(NOWHERE, server_timeout="200ms")))

    async def start() -> None:
        async with app.router.lifespan_context(app):
            pytest.fail("it has started")

    with pytest.raises(StoreUnreachable):
        asyncio.run(start())


def test_health_without_mongodb_is_503_in_time(recruiter: Recruiter) -> None:
    # a Starlette application, whose MongoDB goes away while it runs
    async def root(request: Request) -> JSONResponse:
        return JSONResponse(request.state.recruiter is recruiter)

    routes = [Route("/", root), Route("/health", health(recruiter, within="300ms"))]
    with served(Starlette(routes=routes, lifespan=lifespan(recruiter))) as client:
        assert client.get("/").json() is True
        assert client.get("/health").status_code == 200

        recruiter.point_at(NOWHERE)

        answer = client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "unavailable")


def test_depends_can_be_replaced_in_tests(recruiter: Recruiter) -> None:
    app = FastAPI()

    @app.get("/")
    async def same(jobs: Annotated[Recruiter, Depends(get_recruiter)]) -> bool:
        return jobs is recruiter

    app.dependency_overrides[get_recruiter] = lambda: recruiter

    with served(app) as client:
        assert client.get("/").json() is True


def test_litestar_mounts_the_console_and_runs_the_lifespan(recruiter: Recruiter) -> None:
    # given the console in a Litestar application, as the page of the console documents it
    litestar = pytest.importorskip("litestar")
    console = litestar.asgi("/jobs", is_mount=True, copy_scope=True)(
        dashboard(recruiter, access=lambda: "ada", actions=True)
    )
    job = recruiter.job("anything", {}).enqueue()

    with served(litestar.Litestar([console], lifespan=[lifespan(recruiter)])) as client:
        # then every page is there, and its links stay under the path of the mount
        for place in ("/jobs", "/jobs/", "/jobs/jobs", "/jobs/workers/", f"/jobs/job?id={job.id}"):
            page = client.get(place)
            assert (page.status_code, '<base href="/jobs/">' in page.text) == (200, True), place
        (script,) = set(re.findall(r'src="(static/console\.js[^"]*)"', page.text))
        assert client.get(f"/jobs/{script}").status_code == 200
        assert client.get("/jobs/find?q=state:failed").headers["location"] == "/jobs/jobs?state=failed"
        assert client.get("/jobs/nowhere").status_code == 404
        assert '<base href="/jobs/">' in client.get("//jobs//jobs").text
        assert client.get("/jobs/api/nowhere").json() == {"detail": "Not Found"}

        # and its actions work
        assert client.post("/jobs/api/actions", json={"verb": "block-starts"}).status_code == 200
        assert recruiter.controls.rules().paused["fleet"]
