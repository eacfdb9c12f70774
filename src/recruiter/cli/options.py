"""The options that commands share: settings, and the conditions that select jobs."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from recruiter.app import Recruiter
from recruiter.application import Application, load_application
from recruiter.cli.output import Output, say, say_json
from recruiter.domain.duration import to_timedelta
from recruiter.domain.search.filter import FILTER_WORDS, FilterWord, JobFilter, filter_from_words
from recruiter.errors import InvalidDuration, InvalidFilter, SettingsError
from recruiter.settings import CONFIG_VARIABLE, LogFormat, LogLevel, Settings
from recruiter.store.connection import Target

Flag = Annotated[bool, Parameter(negative=())]
Yes = Annotated[bool, Parameter(negative=(), help="Do not ask for confirmation.")]


def _check_duration(_type: Any, value: str | None) -> None:
    """Raises ValueError for an invalid duration; cyclopts names the option."""
    if value is not None:
        try:
            to_timedelta(value)
        except InvalidDuration as error:
            text = str(error)
            raise ValueError(f"{text[:1].upper()}{text[1:]}.") from None


def _check_pattern(_type: Any, value: str | None) -> None:
    if value is not None:
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"It is not a regular expression: {error}.") from None


Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Count = Annotated[int, Parameter(validator=Number(gte=1))]
CountOrAll = Annotated[int, Parameter(validator=Number(gte=0))]
"""0 means all of them."""
Duration = Annotated[str, Parameter(validator=_check_duration)]
Pattern = Annotated[str | None, Parameter(validator=_check_pattern)]

PATIENCE_SECONDS = 5.0
"""Seconds that a command waits for MongoDB."""


@Parameter(name="*")
@dataclass(frozen=True)
class TargetOptions:
    target: str | None = None
    "The address of MongoDB: 127.0.0.1:27017 (default), host/database, mongodb://… or mongodb+srv://…"
    prefix: str | None = None
    "The begin of the name of each collection of Recruiter (default recruiter.); may be empty."
    config: str | None = None
    "A settings file instead of recruiter.toml."


@Parameter(name="*")
@dataclass(frozen=True)
class ApplicationOptions(TargetOptions):
    bootstrap: str | None = None
    "The application: FILE.py or MODULE; add :NAME if it has several Recruiters."


@Parameter(name="*")
@dataclass(frozen=True)
class AuthorOptions:
    reason: str | None = None
    "The reason, shown with the change."
    by: str | None = None
    "The author (default: your user name)."

    @property
    def author(self) -> str:
        return self.by or getpass.getuser()


@Parameter(name="*")
@dataclass(frozen=True)
class ReportOptions(TargetOptions):
    """Of commands that look, and of commands that change something."""

    output: Output = "table"

    def report(self, text: str, facts: Mapping[str, Any]) -> None:
        """Prints the result of a command that changes something: a sentence for people, the facts for scripts."""
        if self.output == "table":
            say(text)
        else:
            say_json(facts, self.output)


@Parameter(name="*")
@dataclass(frozen=True)
class ChangeOptions(ReportOptions, AuthorOptions):
    """Of commands that record who did it, and why."""


@Parameter(name="*")
@dataclass(frozen=True)
class ApplicationReportOptions(ReportOptions, ApplicationOptions):
    """Of commands that know the tasks and schedules of the application."""


@Parameter(name="*")
@dataclass(frozen=True)
class ApplicationChangeOptions(ChangeOptions, ApplicationOptions):
    """The same with who did it, and why."""


@Parameter(name="*")
@dataclass(frozen=True)
class CommonOptions(ApplicationOptions):
    log_level: LogLevel | None = None
    "The least severe messages to log (default info)."
    log_format: LogFormat | None = None
    "Lines for people (text, default) or for machines (json)."
    log_config: str | None = None
    "A file for Python's `logging.config.dictConfig`, in TOML or JSON, instead of --log-level and --log-format."


@Parameter(name="*")
@dataclass(frozen=True)
class HealthOptions:
    """Of one process."""

    health_port: Port | None = None
    "Answer probes over HTTP on this port: /live and /ready; 0 for any free port (default: none)."
    health_host: str | None = None
    "The address to listen on for probes (default 0.0.0.0)."


@Parameter(name="*")
@dataclass(frozen=True)
class RecruiterOptions:
    lease_time: str | None = None
    "Time after which a silent leader loses the lead (default 5s)."
    considered_dead_after: str | None = None
    "Time after which the jobs of a silent worker go to others (default 15s). Each worker declares its own time."
    backoff_from: str | None = None
    "Shortest pause between two searches for due jobs (default 5ms)."
    backoff_to: str | None = None
    "Longest pause between two searches for due jobs (default 10s)."


@Parameter(name="*")
@dataclass(frozen=True)
class WorkerOptions:
    work_on: Annotated[list[str] | None, Parameter(negative=())] = None
    "Only jobs of this group; may be repeated (default: every group)."
    processes: int | None = None
    "Number of child processes that run jobs (default 1)."
    concurrency: int | None = None
    "Number of concurrent jobs in each child: async jobs in one event loop, others in threads (default 1)."
    resources: str | None = None
    "The resources of this host that jobs may use: proc=8,mem=32GiB,gpu=1 (default: all processors and memory)."
    host: str | None = None
    "The name of this host (default: its own name); workers of one host share its resources."
    memory_limit: str | None = None
    "A child process larger than this is replaced after its job, e.g. 512MB."
    memory_hard_limit: str | None = None
    "A child process that grows larger than this, with the processes it started, is killed; its job fails."
    grace: str | None = None
    "Time for running jobs to finish when the worker is asked to stop (default 30s)."
    heartbeat: str | None = None
    "Interval between two heartbeats of the worker (default 1s)."
    settle_within: str | None = None
    "Longest time that outcomes of jobs gather before they are written together (default 200ms)."


@Parameter(name="*")
@dataclass(frozen=True)
class WorkerDeathOptions:
    considered_dead_after: str | None = None
    "Time without a heartbeat after which the jobs of this worker go to others; it stops them itself (default 15s)."


@Parameter(name="*")
@dataclass(frozen=True)
class CleanerOptions:
    clean_after: str | None = None
    "Time to keep ended jobs (default 5 days)."
    keep_failed: str | None = None
    "Time to keep ended jobs that did not succeed (default: like --clean-after)."
    wait_at_least: str | None = None
    "Shortest pause between two cleanings (default 1m)."
    wait_at_most: str | None = None
    "Longest pause between two cleanings (default 3m)."


@contextmanager
def recruiter_on(target: TargetOptions) -> Iterator[Recruiter]:
    """A Recruiter on the database that the options name, for commands that look and control."""
    settings = settings_from(target)
    with Recruiter(settings.target, prefix=settings.prefix) as recruiter:
        recruiter.patience = PATIENCE_SECONDS
        recruiter.prepares = False
        yield recruiter


@contextmanager
def application_recruiter(options: ApplicationOptions) -> Iterator[Recruiter]:
    """A Recruiter on the database of the options or of the application, with the application's tasks and schedules."""
    settings = settings_from(options)
    loaded = load_application(settings.bootstrap)
    target = target_for(settings, loaded.target)
    with Recruiter(target.uri, prefix=target.prefix) as recruiter:
        recruiter.registry = loaded.registry
        recruiter.schedules.merge(loaded.schedules)
        yield recruiter


def target_for(settings: Settings, application: Target | None = None) -> Target:
    """The target of a command: of the settings if given there, otherwise of the application."""
    given = settings.model_fields_set
    uri = settings.target if application is None or "target" in given else application.uri
    prefix = settings.prefix if application is None or "prefix" in given else application.prefix
    return Target.parse(uri, prefix)


def recruiter_of(application: Application, settings: Settings) -> Recruiter:
    """The application's own Recruiter, or a new one; on the target of the settings if given there."""
    target = target_for(settings, application.target)
    if settings.model_fields_set & {"target", "prefix"}:
        application.point_at(target)
    owners = [owner for owner in application.owners if isinstance(owner, Recruiter)]
    return owners[0] if owners else Recruiter(target.uri, prefix=target.prefix)


def settings_from(*groups: object) -> Settings:
    """The settings, overridden by the options of the command line."""
    given: dict[str, Any] = {}
    for group in groups:
        known = Settings.model_fields.keys() | {"config"}
        given.update((name, vars(group)[name]) for name in known & vars(group).keys() if vars(group)[name] is not None)
    config = given.pop("config", None)
    if config is not None:
        if not Path(config).is_file():
            raise SettingsError(f"--config names {config!r}, but there is no such file")
        os.environ[CONFIG_VARIABLE] = config
    return Settings.load(**given)


_GROUP = Group("Which jobs", sort_key=1)


def _option(word: FilterWord) -> tuple[str, Any, None]:
    kind: Any = list[str] if word.several else {"attempts": int, "recovered": bool}.get(word.name, str)
    negative = ("--no-recovered",) if kind is bool else ()
    return word.name, Annotated[kind | None, Parameter(negative=negative, group=_GROUP, help=word.means)], None


_Options: Any = make_dataclass("_Options", [_option(word) for word in FILTER_WORDS.values()], frozen=True)


@Parameter(name="*")
@dataclass(frozen=True)
class FilterOptions(_Options):  # type: ignore[misc]  # made of the words that the filter declares
    """Given several times, an option means any of its values; tags mean all of them."""

    def to_filter(self) -> JobFilter:
        """The filter that these options describe. Raises InvalidFilter."""
        given = {name: getattr(self, name) for name in FILTER_WORDS}
        words = {
            name: value if isinstance(value, list) else [str(value)]
            for name, value in given.items()
            if value is not None
        }
        return filter_from_words(words)


@Parameter(name="*")
@dataclass(frozen=True)
class ChosenJobs(ReportOptions):
    """The jobs of a filter, or all jobs."""

    everything: Annotated[bool, Parameter(negative=())] = False
    "Select all jobs; without ids and filters."
    yes: Yes = False
    which: FilterOptions = FilterOptions()


@Parameter(name="*")
@dataclass(frozen=True)
class ChangedJobs(ChosenJobs, AuthorOptions):
    """The same, with the author of the change."""


@contextmanager
def noting_new_names(recruiter: Recruiter, kind: str, name: str) -> Iterator[None]:
    """Afterwards prints a note on stderr if this task or group is new: that is allowed, but may be a typing error."""
    doubt = None
    try:
        recruiter.jobs.recognize(JobFilter(group=name) if kind == "group" else JobFilter(task=name))
    except InvalidFilter as error:
        doubt = error
    yield
    if doubt is not None:
        say(f"note: {doubt}", stderr=True)
