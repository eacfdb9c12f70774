"""Recruiter in FastAPI and Starlette: a lifespan, a dependency, the request's own transaction, a health route.

    app = FastAPI(lifespan=lifespan(recruiter))
    app.add_route("/health", health(recruiter))
    app.mount("/jobs", dashboard(recruiter, access=operator))

    @app.post("/orders")
    async def order(item: str, jobs: RecruiterDep, session: Annotated[AsyncClientSession, transaction(client)]): ...

`lifespan` and `health` work in any Starlette application, `lifespan` in Litestar too. Needs the extra `web`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from recruiter.first_use import missing_extra

try:
    from fastapi import Depends
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse
except ModuleNotFoundError as error:
    raise missing_extra("web", error) from None

from recruiter.app import Recruiter
from recruiter.async_face import in_a_thread
from recruiter.domain.duration import DurationLike
from recruiter.errors import RecruiterError, StoreError
from recruiter.producer import WEB_PATIENCE_SECONDS
from recruiter.store.connection import answered_within
from recruiter.store.in_session import is_async

if TYPE_CHECKING:
    from pymongo import AsyncMongoClient, MongoClient

    Client = AsyncMongoClient[Any] | MongoClient[Any]

__all__ = ["RecruiterDep", "get_recruiter", "health", "lifespan", "transaction"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(recruiter: Recruiter, own: Lifespan | None = None) -> Lifespan:
    """A lifespan that connects to MongoDB before the first request and closes the connection after the last.

    The application does not start if MongoDB cannot be used; the error contains the reason. `own` is your own lifespan,
    which runs inside this one. The values that it yields stay in `request.state`, next to `request.state.recruiter`.

    When MongoDB has not answered for five seconds, calls raise StoreUnreachable; `server_timeout` sets another time.
    """

    @asynccontextmanager
    async def opened(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        recruiter.default_patience = WEB_PATIENCE_SECONDS
        await in_a_thread(lambda: recruiter.store)  # connects, checks the server, makes collections and indexes
        try:
            async with nullcontext() if own is None else own(app) as state:
                yield {**(state or {}), "recruiter": recruiter}
        finally:
            await in_a_thread(recruiter.close)

    return opened


def get_recruiter(connection: HTTPConnection) -> Recruiter:
    """A dependency: the Recruiter of this application, as `lifespan` has opened it."""
    recruiter = getattr(connection.state, "recruiter", None)
    if not isinstance(recruiter, Recruiter):
        raise RecruiterError(
            "this application has not opened a Recruiter: make it with FastAPI(lifespan=lifespan(recruiter)), "
            "and a test client as `with TestClient(app) as client`"
        )
    return recruiter


RecruiterDep = Annotated[Recruiter, Depends(get_recruiter)]
"""The type of a parameter that is the Recruiter of this application."""


def transaction(client: Client | Callable[..., Any]) -> Any:
    """For a parameter of a path operation: a session in a transaction of this client.

    It commits when the function returns, before the response is sent, so a commit that fails is an error response. It
    is rolled back when the function raises, also an HTTPException. Your own writes and `aenqueue` take it as
    `session=`. The client is an `AsyncMongoClient` or a `MongoClient`, or a dependency that returns one.
    """
    given: Any = client
    of = Depends((lambda: given) if hasattr(given, "start_session") else given)

    async def session(client: Any = of) -> AsyncIterator[Any]:
        begun = client.start_session()
        if is_async(begun):
            async with begun, await begun.start_transaction():
                yield begun
            return
        with begun:
            begun.start_transaction()
            try:
                yield begun
            except BaseException:
                await in_a_thread(begun.abort_transaction)
                raise
            await in_a_thread(begun.commit_transaction)

    return Depends(session, scope="function")


def health(recruiter: Recruiter, *, within: DurationLike = "2s") -> Callable[[Request], Awaitable[JSONResponse]]:
    """An endpoint for probes: `app.add_route("/health", health(recruiter))`.

    200 if the primary of MongoDB answers, so that this application can enqueue; 503 if it does not `within` this time.
    The answer contains the number of workers; without workers it is still 200, because jobs can be enqueued.
    """

    async def answer(_request: Request) -> JSONResponse:
        return await in_a_thread(_health_answer, recruiter, within)

    return answer


def _health_answer(recruiter: Recruiter, within: DurationLike) -> JSONResponse:
    try:
        with answered_within(within):
            workers = len(list(recruiter.store.roster.entries()))
    except StoreError as error:
        return JSONResponse({"status": "unavailable", "error": str(error)}, 503)
    return JSONResponse({"status": "ok", "workers": workers})
