"""The console as an application: `app.mount("/jobs", dashboard(recruiter))` in any ASGI application, or by itself."""

import contextlib
import gzip
import logging
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from fastapi.routing import APIRoute
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

import recruiter as package
from recruiter import errors
from recruiter.app import Recruiter
from recruiter.metrics import Exposition, may_scrape
from recruiter.web import filter_words
from recruiter.web.access import Access, User, client_of, user_of
from recruiter.web.actions import ActionRunner, Question, RequestedAction
from recruiter.web.api import description_of, routes
from recruiter.web.guard import Guard
from recruiter.web.live import Hub, zipped
from recruiter.web.pages import PAGES, Assets, ConsolePage, Pairs, environment, rendered
from recruiter.web.reader import Reader
from recruiter.web.redaction import Redaction

_FOREVER = "public, max-age=31536000, immutable"
_WORTH_ZIPPING = 500
_OPTIONS = ("reason", "at_once", "count", "per", "to")  # Optional texts of an action
_OF_AN_ACTION = ("verb", "id", "pick", "name", "again", "back", "what", *_OPTIONS)
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"]
"""All: the console answers 405 for a method that it does not have."""
_log = logging.getLogger("recruiter.web")


class Console:
    """One console: its pages, its API, and the one reader behind them. `dashboard` makes it."""

    def __init__(
        self,
        recruiter: Recruiter,
        access: Access,
        actions: bool,
        redaction: Redaction,
        title: str | None,
        hosts: Collection[str],
    ) -> None:
        self._reader = Reader(recruiter, redaction)
        self._runner = ActionRunner(recruiter, self._reader, actions)
        self._access = access
        self._title = title
        self._hosts = frozenset(host.lower() for host in hosts)
        self._assets = Assets()
        self._made = environment(self._assets)
        self._hub = Hub(self._reader.pulse)
        self._exposition = Exposition(recruiter)

    def app(self) -> FastAPI:
        """The door: an application that signs users in, and passes their requests on to the console. The door has one
        route without a body, so a stranger is refused before routing and before any of the body is read."""
        door = self._empty_app(lifespan=self._lifespan)
        # The metrics for scrapers that send the token, without signing in. Other requests reach the next route.
        scraped = APIRouter(route_class=_ScraperRoute)
        scraped.add_api_route("/metrics", self._metrics)
        door.include_router(scraped)
        # So that a refusal looks like a page of the console. Each installation has the same file.
        door.add_api_route("/static/console.css", self._style, methods=["GET", "HEAD"])
        sign_in = [Depends(_sign_in(self._access))]
        inside = self._inside_app(sign_in)

        def let_in() -> Response:
            return _PassedOn(inside)

        door.add_api_route("/{path:path}", let_in, methods=_METHODS, dependencies=sign_in, response_model=None)
        door.state.close_streams = self._hub.close
        door.add_middleware(Guard, refusal=self._failed, hosts=self._hosts)
        return door

    def _inside_app(self, sign_in: Sequence[Any]) -> FastAPI:
        """Pages and API, for users who have signed in."""
        app = self._empty_app()
        app.include_router(self._pages(), include_in_schema=False)
        app.include_router(routes(self._reader, self._runner), prefix="/api")
        security = getattr(self._access, "security", None)
        if security is None:  # the application's own dependency may declare its scheme
            empty = FastAPI()
            empty.add_api_route("/", _missing, dependencies=sign_in)
            security = empty.openapi().get("components", {}).get("securitySchemes", {})

        def describe(request: Request) -> Response:
            return JSONResponse(description_of(app.openapi(), _base(request), security))

        app.add_api_route("/api/openapi.json", describe, include_in_schema=False)
        app.add_api_route("/{path:path}", _missing, include_in_schema=False)
        return app

    def _empty_app(self, **options: Any) -> FastAPI:
        app = FastAPI(
            title="Recruiter",
            version=package.__version__,
            summary="Jobs, workers, groups, limits and schedules, as the console shows them.",
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
            **options,
        )
        for error in (errors.RecruiterError, StarletteHTTPException, RequestValidationError, Exception):
            app.add_exception_handler(error, self._failed)
        return app

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        """By itself it ends with its server; mounted, it ends with the application that it is mounted in."""
        yield
        await run_in_threadpool(self._runner.close)
        await run_in_threadpool(self._reader.close)

    # -- pages -------------------------------------------------------------------------------------------------------

    def _pages(self) -> APIRouter:
        router, reading = APIRouter(), APIRouter(dependencies=[Depends(self._reader.pulse)])
        for page in PAGES.values():
            place = "/" if page.name == "overview" else f"/{page.name}"
            reading.add_api_route(place, self._page(page), methods=["GET", "HEAD"])
            if page.name != "help":
                router.add_api_route(f"/live/{page.name}", self._live(page))
        reading.add_api_route("/counts", self._counts)
        reading.add_api_route("/metrics", self._metrics)
        reading.add_api_route("/find", self._find)
        reading.add_api_route("/complete", self._complete)
        reading.add_api_route("/confirm", self._confirm)
        reading.add_api_route("/do", self._do, methods=["POST"])
        router.add_api_route("/progress", self._progress)
        router.add_api_route("/static/{name:path}", self._static, methods=["GET", "HEAD"])
        router.include_router(reading)
        return router

    def _page(self, page: ConsolePage) -> Callable[..., Response]:
        def show(request: Request) -> Response:
            content, command = self._content(page, _pairs(request), _base(request), self._can_act(request))
            return self._framed(request, content, page.title, page.name, command=command)

        return show

    def _content(self, page: ConsolePage, pairs: Pairs, base: str, actions: bool) -> tuple[str, str]:
        with self._reader.bounded():
            return rendered(self._made, page, self._reader, pairs, actions=actions, base=base)

    def _can_act(self, request: Request) -> bool:
        return self._runner.allowed and _user(request).can_act

    def _framed(
        self, request: Request, content: str, title: str, name: str = "", status: int = 200, command: str = ""
    ) -> Response:
        theme = request.cookies.get("recruiter_theme")
        html = self._made.get_template("frame.html").render(
            frame=self._reader.frame(asks=status != HTTPStatus.SERVICE_UNAVAILABLE),
            pages=PAGES,
            content=_ours(content),
            name=name,
            title=title,
            console=self._title,
            theme=theme if theme in ("dark", "light") else "",
            base=_base(request),
            who=_user(request).name,
            actions=self._can_act(request),
            command=command,
        )
        return _zipped(request, html, status)

    def _live(self, page: ConsolePage) -> Callable[..., Any]:
        async def stream(request: Request) -> Response:
            pairs, base, actions = _pairs(request), _base(request), self._can_act(request)
            name = f"{base} {page.name} {sorted(pairs)} {actions}"

            def read() -> str:
                self._reader.look_for_problems()
                return self._content(page, pairs, base, actions)[0]

            news = self._hub.watch(name, read, page.period, _user(request).name)
            first = await anext(news)  # a refusal can still set the status here

            async def all() -> AsyncIterator[bytes]:
                yield first
                async for each in news:
                    yield each

            headers = {"cache-control": "no-store", "x-accel-buffering": "no", "vary": "accept-encoding"}
            if not _takes_gzip(request):
                return StreamingResponse(all(), media_type="text/event-stream", headers=headers)
            headers["content-encoding"] = "gzip"
            return StreamingResponse(zipped(all()), media_type="text/event-stream", headers=headers)

        return stream

    def _counts(self, request: Request) -> Response:
        """The number of jobs in each state; the page loads it after the list."""
        said = filter_words.words_in(request.query_params.multi_items())
        html = self._made.get_template("counts.html").render(counts=self._reader.counts(said))
        return _zipped(request, html)

    def _find(self, request: Request) -> Response:
        """The box on every page: an id leads to its job, a known task, group or error to its jobs, anything else is a
        search by conditions and free words."""
        text = request.query_params.get("q", "").strip()
        kept = request.query_params.get("and", "").strip()  # the conditions that the page already has
        text = " ".join(part for part in (kept, text) if part)
        if not text:
            return RedirectResponse(f"{_base(request)}jobs", 303)
        if " " not in text and ":" not in text and "=" not in text:
            with contextlib.suppress(errors.JobNotFound):
                place = filter_words.query({"id": [str(self._reader.id_of(text))]})
                return RedirectResponse(f"{_base(request)}job?{place}", 303)
            known = next((word for word, values in self._reader.names().items() if text in values), None)
            text = f"{known}:{text}" if known is not None else text
        try:
            words, free = filter_words.split(text)
            self._reader.filter_of(words)
        except errors.InvalidFilter:  # the page keeps the input and shows the error
            return RedirectResponse(f"{_base(request)}jobs?{filter_words.query({}, q=text)}", 303)
        return RedirectResponse(f"{_base(request)}jobs?{filter_words.query(words, text=free)}", 303)

    def _complete(self, request: Request) -> Response:
        """The completions of the last word in the search box."""
        text = request.query_params.get("q", "")[:500]
        return JSONResponse(filter_words.completions(text, self._reader.names()), headers={"cache-control": "no-store"})

    # -- actions -----------------------------------------------------------------------------------------------------

    def _confirm(self, request: Request) -> Response:
        wanted = self._runner.frozen(_action_request(request.query_params.multi_items()))
        question: Question = self._runner.question(wanted)
        html = self._made.get_template("confirm.html").render(
            wanted=wanted,
            what=_written(wanted),
            question=question,
            who=_user(request).name,
            back=_inside(request.query_params.get("back", "")),
            actions=self._can_act(request),
        )
        return self._answer(request, html, question.button)

    async def _do(self, request: Request) -> Response:
        """Does the action that a person has confirmed, and shows the outcome. The page with the question has put the
        whole request into its field `what`; the person may have typed the other fields, such as the reason."""
        form = await request.form(max_files=0, max_fields=1100)
        pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        said = dict(pairs)
        wanted = _action_request([*pairs, *parse_qsl(said.get("what", ""), max_num_fields=1100)])
        outcome = await run_in_threadpool(self._runner.do, wanted, _user(request), client_of(request))
        back = _inside(said.get("back", ""))
        html = self._made.get_template("outcome.html").render(wanted=wanted, outcome=outcome, back=back)
        return self._answer(request, html, "Done")

    def _progress(self, request: Request) -> Response:
        """How far an action on many jobs is; asked again and again by the page that started it."""
        outcome = self._runner.progress(request.query_params.get("id", ""))
        back = _inside(request.query_params.get("back", ""))
        html = self._made.get_template("outcome.html").render(wanted=RequestedAction(""), outcome=outcome, back=back)
        return self._answer(request, html, "Under way" if outcome.running else "Done")

    def _answer(self, request: Request, html: str, title: str) -> Response:
        """The answer in place, for a request of htmx; otherwise as a page."""
        if "hx-request" in request.headers:
            return _zipped(request, html)
        content = self._made.get_template("alone.html").render(inner=_ours(html))
        return self._framed(request, content, title)

    # -- files, metrics, errors ----------------------------------------------------------------------------------------

    def _metrics(self, request: Request) -> Response:
        said = (request.headers.get(name, "") for name in ("accept", "accept-encoding"))
        text, headers = self._exposition.written(*said)
        return Response(text, headers=headers)

    def _style(self, request: Request) -> Response:
        return self._static(request, "console.css")

    def _static(self, request: Request, name: str) -> Response:
        asset = self._assets.all.get(name)
        if asset is None:
            raise HTTPException(404, "There is no such file.")
        zips = _takes_gzip(request)
        headers = {
            "cache-control": _FOREVER,
            "vary": "accept-encoding",
            **({"content-encoding": "gzip"} if zips else {}),
        }
        return Response(asset.zipped if zips else asset.content, media_type=asset.type, headers=headers)

    def _failed(self, request: Request, error: Exception) -> Response:
        status, text = _told(error)
        if status == HTTPStatus.SEE_OTHER:
            return Response(status_code=status, headers=getattr(error, "headers", None))
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and not isinstance(error, errors.RecruiterError):
            _log.error("a request failed: %s", request.url.path, exc_info=error)
        headers = getattr(error, "headers", None)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        if path.startswith("/api"):
            if status == HTTPStatus.METHOD_NOT_ALLOWED:  # the router knows only the methods of the first route
                methods = request.app.openapi()["paths"].get(path, ())
                headers = {**(headers or {}), "allow": ", ".join(map(str.upper, methods))} if methods else headers
            return JSONResponse({"detail": text}, status, headers)
        phrase = HTTPStatus(status).phrase
        told = {"text": text, "status": status, "phrase": phrase}
        if "hx-request" in request.headers:  # htmx shows only successful answers in place
            return HTMLResponse(self._made.get_template("refusal.html").render(told), 200, headers)
        if not hasattr(request.state, "user"):  # the frame names the database
            html = self._made.get_template("refused.html").render(told, base=_base(request))
            return HTMLResponse(html, status, headers)
        content = self._made.get_template("error.html").render(told)
        return self._framed(request, content, phrase, status=status)


class _ScraperRoute(APIRoute):
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        if match is Match.FULL and not may_scrape(Headers(scope=scope).get("authorization", "")):
            return Match.NONE, {}
        return match, found


def _sign_in(access: Access) -> Callable[..., Any]:
    """The dependency that every route has: notes who is looking, or refuses."""

    async def sign_in(request: Request, who: Annotated[Any, Depends(access)]) -> None:
        request.state.user = user_of(who)

    return sign_in


def _user(request: Request) -> User:
    user: User = request.state.user
    return user


class _PassedOn(Response):
    """The answer of another application to the same request."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


def _missing() -> Response:
    """Any other page: only users who have signed in learn that there is none."""
    raise HTTPException(404, "Not Found")


_THINGS = ("Job", "Flow", "Scheduler", "Worker", "Limit")
_MISSING = tuple(getattr(errors, f"{thing}NotFound") for thing in _THINGS)


def _told(error: Exception) -> tuple[int, str]:
    match error:
        case StarletteHTTPException():
            return error.status_code, str(error.detail)
        case RequestValidationError():
            return 422, "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        case errors.ReadOnly():
            return 403, f"Nothing was done: {error}."
        case errors.TooManyViewers() | errors.StoreError():
            return 429 if isinstance(error, errors.TooManyViewers) else 503, f"{error}"
        case errors.RecruiterError():
            return 404 if isinstance(error, _MISSING) else 400, f"{error}."
        case _:
            return 500, "The console has failed. Its log says more."


def _ours(html: str) -> Markup:
    """The output of a template of the console, for another template: it is escaped already."""
    return Markup(html)


def _pairs(request: Request) -> Pairs:
    return tuple(request.query_params.multi_items())


def _base(request: Request) -> str:
    """The path under which the console is mounted."""
    return f"{request.scope.get('root_path', '').rstrip('/')}/"


def _action_request(pairs: Any) -> RequestedAction:
    pairs = list(pairs)
    said = dict(pairs)
    # Ids of checkboxes are quoted: forms would change some characters.
    ids = [value if name == "id" else unquote(value) for name, value in pairs if value and name in ("id", "pick")]
    return RequestedAction(
        verb=said.get("verb", ""),
        ids=tuple(dict.fromkeys(ids)),
        words=filter_words.words_in(pairs, also=_OF_AN_ACTION),
        name=said.get("name", ""),
        again=bool(said.get("again")),
        **{option: said.get(option) or None for option in _OPTIONS},
    )


def _written(wanted: RequestedAction) -> str:
    """All of it but the reason, in characters that no form changes."""
    named = {option: getattr(wanted, option) for option in ("verb", "name", *_OPTIONS) if option != "reason"}
    return filter_words.query({"id": wanted.ids, **wanted.words}, again="yes" if wanted.again else None, **named)


def _inside(place: str) -> str:
    """The place, if it is a page of the console: links are not trusted."""
    page = place.partition("?")[0]
    return place if page in PAGES and page != "overview" else ""


def _takes_gzip(request: Request) -> bool:
    return "gzip" in request.headers.get("accept-encoding", "")


def _zipped(request: Request, html: str, status: int = 200) -> Response:
    content = html.encode("utf-8", "replace")
    headers = {"vary": "accept-encoding"}
    if len(content) > _WORTH_ZIPPING and _takes_gzip(request):
        content, headers = gzip.compress(content, 5), {**headers, "content-encoding": "gzip"}
    return Response(content, status, headers, "text/html; charset=utf-8")
