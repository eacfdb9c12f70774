"""The JSON API: the same functions as the pages, for scripts."""

from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field, create_model, model_validator

from recruiter.domain.search.filter import FILTER_WORDS, unknown_word
from recruiter.domain.text import shown, similar
from recruiter.errors import InvalidFilter
from recruiter.web import filter_words, schemas
from recruiter.web.actions import VERBS, ActionRunner, Outcome, RequestedAction
from recruiter.web.reader import ROWS, Reader
from recruiter.web.schemas import FlowList, FlowView

Verb = Literal[VERBS]  # type: ignore[valid-type]

Texts = Annotated[list[str], Query()]
Text = Annotated[str | None, Query()]


_FIELDS: dict[str, Any] = {word.name: (list[str], Field([], description=word.means)) for word in FILTER_WORDS.values()}
_Words: Any = create_model("_Words", **_FIELDS)


class FilterWords(_Words):  # made of the words that the filter declares
    """Which jobs: the words of `recruiter job list`. Several values mean any of them; several tags, all."""

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, given: Any) -> Any:
        """A value that is no list is one value. Raises InvalidFilter for a word that is not known."""
        if not isinstance(given, dict):
            return given
        for name in given.keys() - set(filter_words.NAMES):
            raise unknown_word(name)
        return {name: _texts(value) for name, value in given.items()}


def _texts(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return [str(value).lower()]
    return [value] if isinstance(value, str) else value


class ActionRequest(BaseModel):
    """What is to be done: to jobs (by `ids` or `filter`), or to the group, worker, schedule or limit called `name`."""

    verb: Verb
    ids: list[str] = Field([], max_length=1000)
    filter: FilterWords | None = None
    name: str = ""
    reason: str | None = Field(None, max_length=500)
    at_once: str | None = Field(None, description="of a limit: how many jobs, or how much of a resource")
    count: int | None = Field(None, description="of a limit: how many may start in the time that `per` says")
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
        count = None if self.count is None else str(self.count)
        return RequestedAction(
            self.verb,
            tuple(self.ids),
            filter_words.words_in(pairs),
            self.name,
            self.reason,
            self.at_once,
            count,
            self.per,
            self.again,
            self.to,
        )


def routes(reader: Reader, runner: ActionRunner, viewer: Callable[..., Any]) -> APIRouter:
    """Everything under `/api`."""
    router = APIRouter(dependencies=[Depends(_check_parameters)])
    _add_jobs(router, reader)
    _add_fleet(router, reader)
    _add_actions(router, reader, runner, viewer)
    return router


def _add_jobs(router: APIRouter, reader: Reader) -> None:
    @router.get("/overview")
    def overview(within: Literal["5m", "15m", "1h", "6h", "24h", "7d"] = "1h") -> schemas.Overview:
        """How things are, and how they went within a time."""
        return reader.overview(within)

    @router.get("/jobs")
    def jobs(
        said: Annotated[filter_words.Words, Depends(_filter)],
        limit: Annotated[int, Query(ge=1, le=1000)] = ROWS,
        after: str | None = None,
    ) -> schemas.JobList:
        """A page of jobs: those that run, those that wait in the order of their turn, those that have ended."""
        return reader.jobs(reader.filter_of(said), limit=limit, after=after)

    @router.get("/jobs/count")
    def count(said: Annotated[filter_words.Words, Depends(_filter)]) -> schemas.Amount:
        """How many there are; up to a bound, `exact` says whether these are all."""
        return reader.count(reader.filter_of(said))

    @router.get("/job")
    def job(id: str) -> schemas.JobView:
        """Everything about a job."""
        return reader.job(id)


def _add_fleet(router: APIRouter, reader: Reader) -> None:
    @router.get("/workers")
    def workers() -> schemas.Fleet:
        """Who leads, who works, and what each runs."""
        return reader.fleet()

    @router.get("/groups")
    def groups() -> schemas.Groups:
        """Groups, pauses and limits."""
        return reader.groups()

    @router.get("/schedules")
    def schedules() -> schemas.Schedules:
        """The repeatable jobs."""
        return reader.schedules()

    @router.get("/flows")
    def flows() -> FlowList:
        """The newest flows."""
        return reader.flows()

    @router.get("/flow")
    def flow(id: str) -> FlowView:
        """A flow with its steps, and how they are drawn."""
        return reader.flow(id)

    @router.get("/problems")
    def problems() -> schemas.Problems:
        """What the doctor finds, and what was set aside."""
        return reader.problems(patience=60.0)


def _add_actions(router: APIRouter, reader: Reader, runner: ActionRunner, viewer: Callable[..., Any]) -> None:
    @router.get("/actions")
    def past_actions(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> list[schemas.PastAction]:
        """Who did what by hand, the newest first."""
        return reader.past_actions(limit)

    @router.post("/actions")
    def do(wanted: ActionRequest, request: Request, who: Annotated[str, Depends(viewer)]) -> Outcome:
        """Does something, and writes down who did. Refused (403) unless actions are allowed here. To very many jobs it
        goes on after the answer; then the answer has `running`, to be asked for."""
        return runner.do(wanted.requested(), who, request.client.host if request.client is not None else None)

    @router.get("/actions/progress")
    def progress(id: str) -> Outcome:
        """How far an action on many jobs is, or what came of it."""
        return runner.progress(id)


def _filter(request: Request, _: Annotated[_Words, Query()]) -> filter_words.Words:
    """The words in the URL; what they mean is for the reader to say."""
    return filter_words.words_in(request.query_params.multi_items(), also=("limit", "after"))


def _check_parameters(request: Request) -> None:
    """Refuses a parameter that the description of the API does not have."""
    place = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    described = request.app.openapi()["paths"].get(place, {})
    known = [each["name"] for each in described.get(request.method.lower(), {}).get("parameters", ())]
    for name in request.query_params:
        if name not in known:
            raise unknown_word(name, known) if "state" in known else _unknown_parameter(name, known)


def _unknown_parameter(name: str, known: Collection[str]) -> InvalidFilter:
    hint = similar(name, known) or (f"known: {', '.join(known)}" if known else "there are none here")
    return InvalidFilter(f"there is no parameter {shown(name)}; {hint}")
