"""The JSON API: the same functions as the pages, for scripts."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator
from typing_extensions import TypeAliasType

from recruiter.domain.search.filter import FILTER_WORDS, unknown_word
from recruiter.domain.text import shown, similar
from recruiter.errors import InvalidFilter
from recruiter.web import filter_words, schemas
from recruiter.web.access import client_of
from recruiter.web.actions import VERBS, ActionRunner, Outcome, RequestedAction
from recruiter.web.reader import RANGES, ROWS, Reader

Verb = Literal[VERBS]  # type: ignore[valid-type]
_RANGES = tuple(RANGES)
Within = Literal[_RANGES]  # type: ignore[valid-type]

_MEANINGS: dict[int | str, str] = {
    400: "A value makes no sense, for example an unknown condition of a filter.",
    401: "The request has no sign-in, or a wrong one.",
    403: "The user may not do this, or actions are not allowed here.",
    404: "There is no such thing.",
    405: "This address has no such method.",
    413: "The body is too large.",
    422: "A parameter or the body does not match this description.",
    429: "Too many wrong passwords, or too many open pages.",
    503: "MongoDB does not answer.",
    "default": "Any other error.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer, "description": meaning} for status, meaning in _MEANINGS.items()
}
"""Every error has the same form."""

Texts = Annotated[list[str], Query()]
Text = Annotated[str | None, Query()]


def _listed(value: Any) -> Any:
    """A value that is no list is one value."""
    text = str(value).lower() if isinstance(value, bool | int | float) else value
    return [text] if isinstance(text, str) else text


Values = TypeAliasType(
    "Values", Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=list[str] | str | bool | float)]
)


def _words_of(values: Any, config: ConfigDict | None = None) -> Any:
    fields: dict[str, Any] = {word.name: (values, Field([], description=word.means)) for word in FILTER_WORDS.values()}
    return create_model("_Words", __config__=config, **fields)


_Words: Any = _words_of(list[str])
_BodyWords: Any = _words_of(Values, ConfigDict(extra="forbid"))


class FilterWords(_BodyWords):  # type: ignore[misc]
    """The conditions of `recruiter job list`. Several values mean any of them; several tags, all."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        for name in given.keys() - set(filter_words.NAMES) if isinstance(given, dict) else ():
            raise unknown_word(name)
        return given


class ActionRequest(BaseModel, extra="forbid"):
    """An action on jobs (by `ids` or `filter`), or on the group, worker, schedule or limit called `name`."""

    verb: Verb
    ids: list[str] = Field([], max_length=1000)
    filter: FilterWords | None = None
    name: str = ""
    reason: str | None = Field(None, max_length=500)
    at_once: str | None = Field(None, description="for a limit: the number of jobs, or the amount of a resource")
    count: int | None = Field(None, description="for a limit: the number of starts in the period `per`")
    per: str | None = None
    again: bool = Field(False, description="recover also jobs that succeeded: they do their work a second time")
    to: str | None = Field(None, max_length=100, description="of reschedule: a date, or 2h from now; or the priority")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """A word that is left out may make it do more than was meant."""
        for name in given.keys() - cls.model_fields.keys() if isinstance(given, dict) else ():
            known = tuple(cls.model_fields)
            hint = similar(name, known) or f"known: {', '.join(known)}"
            raise InvalidFilter(f"an action has no {shown(name)}; {hint}")
        return given

    def requested(self) -> RequestedAction:
        said = {} if self.filter is None else self.filter.model_dump()
        pairs = [(name, value) for name, values in said.items() for value in values]
        return RequestedAction(
            ids=tuple(self.ids),
            words=filter_words.words_in(pairs),
            count=None if self.count is None else str(self.count),
            **self.model_dump(exclude={"ids", "filter", "count"}),
        )


def routes(reader: Reader, runner: ActionRunner) -> APIRouter:
    """Everything under `/api`."""
    router = APIRouter(dependencies=[Depends(_check_parameters), Depends(reader.pulse)], responses=ERRORS)
    _add_jobs(router, reader)
    answers: tuple[tuple[str, Any, Callable[[], Any], str], ...] = (
        ("workers", schemas.WorkersPage, reader.fleet, "The leader, the workers, and their running jobs."),
        ("groups", schemas.GroupsPage, reader.groups, "Groups, pauses and limits."),
        ("schedules", schemas.SchedulesPage, reader.schedules, "The repeatable jobs."),
        ("flows", schemas.FlowsPage, lambda: reader.flows(), "The newest flows."),
        ("problems", schemas.ProblemsPage, lambda: reader.problems(60.0), _PROBLEMS),
    )
    for name, model, answer, description in answers:
        router.add_api_route(f"/{name}", answer, name=name, response_model=model, description=description)

    @router.get("/flow")
    def flow(id: str) -> schemas.FlowPage:
        """A flow with its steps, and how they are drawn."""
        return reader.flow(id)

    _add_actions(router, reader, runner)
    return router


_PROBLEMS = "Findings of the doctor, and documents that were set aside."


def _add_jobs(router: APIRouter, reader: Reader) -> None:
    @router.get("/overview")
    def overview(within: Within = "1h") -> schemas.OverviewPage:
        """How things are, and how they went within a time."""
        return reader.overview(within)

    @router.get("/jobs")
    def jobs(
        said: Annotated[filter_words.Words, Depends(_filter)],
        limit: Annotated[int, Query(ge=1, le=1000)] = ROWS,
        after: str | None = None,
    ) -> schemas.JobList:
        """A page of jobs: running, waiting in the order of their turn, ended."""
        return reader.jobs(reader.filter_of(said), limit=limit, after=after)

    @router.get("/jobs/count")
    def count(said: Annotated[filter_words.Words, Depends(_filter)]) -> schemas.Amount:
        """The number of jobs, up to a bound; `exact` is false if there may be more."""
        return reader.count(reader.filter_of(said))

    @router.get("/job", response_model=schemas.JobView)
    def job(id: str) -> Any:
        """Everything about a job."""
        return reader.job(id)


def _add_actions(router: APIRouter, reader: Reader, runner: ActionRunner) -> None:
    @router.get("/actions")
    def past_actions(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> list[schemas.ActionEntry]:
        """Actions of people, the newest first."""
        return reader.past_actions(limit)

    @router.post("/actions")
    def do(wanted: ActionRequest, request: Request) -> Outcome:
        """Does an action and records who did it. Refused (403) unless actions are allowed here. An action on many jobs
        continues after the answer; then the answer has `running`, for `actions/progress`."""
        return runner.do(wanted.requested(), request.state.user, client_of(request))

    @router.get("/actions/progress")
    def progress(id: str) -> Outcome:
        """How far an action on many jobs is, or what came of it."""
        return runner.progress(id)


def description_of(openapi: dict[str, Any], base: str, security: Mapping[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of this console: with its path, and with its way to sign in."""
    components = {**openapi.get("components", {}), **({"securitySchemes": dict(security)} if security else {})}
    wanted: dict[str, Any] = {"security": [{name: []} for name in security]} if security else {}
    return {**openapi, "servers": [{"url": base.rstrip("/") or "/"}], "components": components, **wanted}


def _filter(request: Request, _: Annotated[_Words, Query()]) -> filter_words.Words:
    """The conditions in the URL."""
    return filter_words.words_in(request.query_params.multi_items(), also=("limit", "after"))


def _check_parameters(request: Request) -> None:
    """Refuses a parameter that the description of the API does not have."""
    place = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    described = request.app.openapi()["paths"].get(place, {})
    known = [each["name"] for each in described.get(request.method.lower(), {}).get("parameters", ())]
    for name in request.query_params:
        if name not in known:
            if "state" in known:
                raise unknown_word(name, known)
            hint = similar(name, known) or (f"known: {', '.join(known)}" if known else "there are none here")
            raise InvalidFilter(f"there is no parameter {shown(name)}; {hint}")
