"""Workables: jobs as classes. A workable exports its parameters, and is rebuilt from them in another process.

    HttpRequest(url, body)  ──stored()──▶  {"url": …, "body": …}  ──rebuilt()──▶  HttpRequest(url, body).execute()

The parameters are the constructor's arguments, the fields of a dataclass or the fields of a pydantic model, each with
its type; or your own `export` returns them, and `import_` receives them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, is_dataclass
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar
from weakref import WeakKeyDictionary

from recruiter.domain.arguments.check import Signature
from recruiter.domain.arguments.typed import Mismatch, is_model, is_root_model, slot_of
from recruiter.domain.arguments.values import Refused, from_bson, to_bson
from recruiter.domain.definitions import note, same_definition
from recruiter.domain.duration import DurationLike
from recruiter.domain.names import check_aliases, check_name, check_tags
from recruiter.domain.options import DEFAULTS, GivenOptions, TaskOptions
from recruiter.domain.planning.limits import Ceiling, KeyLimit
from recruiter.domain.planning.needs import AmountLike
from recruiter.domain.retry.decision import RetryPolicy
from recruiter.domain.text import shown
from recruiter.domain.uniqueness import Until
from recruiter.errors import InvalidArguments, InvalidJob, TaskExists
from recruiter.events import Event

W_contra = TypeVar("W_contra", contravariant=True)
J = TypeVar("J")
J_co = TypeVar("J_co", covariant=True)

WORKABLES: dict[str, type[Workable]] = {}
"""Every workable class that has been defined, by task name and by alias."""


class JobMaker(Protocol[W_contra, J_co]):
    """A `Recruiter`, as a workable sees it: it makes a `WorkableJob`."""

    def job_of(self, workable: W_contra, /) -> J_co: ...


class RepeatableJobMaker(Protocol[W_contra, J_co]):
    """The same, for jobs that repeat."""

    def repeatable_job_of(self, workable: W_contra, urn: str | None, unique: bool, /) -> J_co: ...


class Workable:
    """Subclass it, keep your constructor's arguments in attributes of the same names, and write `execute`.

    Dataclasses and pydantic models need nothing more. If neither fits, define `export` (returns a document) and
    `import_` (the way back). The options of all its jobs are in the class line:

        class HttpRequest(Workable, group="http", retry=RetryManyTimes(3, "1 minute")): ...

    It takes the options of `recruiter.task`; a class inherits the options of its base class. Raises TaskExists,
    InvalidName, InvalidJob or InvalidDuration when the class is defined.
    """

    task_name: ClassVar[str] = ""
    """The stored name: the name of the class, or the option `name`."""
    task_aliases: ClassVar[tuple[str, ...]] = ()
    """Former names, which waiting jobs may still have."""
    task_options: ClassVar[TaskOptions] = DEFAULTS
    """The options in its class line and in that of its base class."""
    task_ceiling: ClassVar[Ceiling | None] = None
    """The limits that its class line declares."""

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        aliases: Iterable[str] = (),
        max_running: int | None = None,
        rate: str | None = None,
        limits: Mapping[str, KeyLimit] | None = None,
        group: str | None = None,
        priority: int | float | None = None,
        tags: Iterable[str] | None = None,
        retry: RetryPolicy | None = None,
        only: Iterable[type[BaseException]] | None = None,
        at_most_once: bool | None = None,
        timeout: DurationLike | None = None,
        needs: Mapping[str, AmountLike] | None = None,
        max_crashes: int | None = None,
        expires: DurationLike | None = None,
        keep_failed: DurationLike | None = None,
        unique: bool | Until | None = None,
        **others: Any,
    ) -> None:
        words = locals()  # the only way that type checkers understand
        given = {option: words[option] for option in GivenOptions.__annotations__ if words[option] is not None}
        super().__init_subclass__(**others)
        note(cls)
        if _made_again(cls):
            WORKABLES.update(dict.fromkeys((cls.task_name, *cls.task_aliases), cls))
            return
        cls.task_ceiling = Ceiling.parse(max_running, rate, limits) or cls.task_ceiling
        cls.task_options = cls.task_options.changed(**given)
        task = check_name("task", name or cls.__name__)
        if cls.task_ceiling is not None:
            cls.task_ceiling.limits_of(task)
        cls._register(task, check_aliases(aliases))

    @classmethod
    def _register(cls, name: str, aliases: tuple[str, ...]) -> None:
        """Makes the class known by its names. Raises TaskExists, unless it is the same class, loaded again."""
        cls.task_name, cls.task_aliases = name, aliases
        names = (cls.task_name, *cls.task_aliases)
        for known_as in names:
            known = WORKABLES.get(known_as)
            if known is not None and not same_definition(known, cls):
                raise TaskExists(
                    f"workable {known_as!r} is {known.__module__}.{known.__qualname__} already; "
                    f"give {cls.__module__}.{cls.__qualname__} another name="
                )
        WORKABLES.update(dict.fromkeys(names, cls))

    # -- what travels --------------------------------------------------------------------------------------------

    def export(self) -> Mapping[str, Any]:
        """The document to store: the constructor's arguments, read from the attributes of the same names."""
        return {name: _kept(self, name) for name in parameters_of(type(self))}

    @classmethod
    def import_(cls, parameters: Mapping[str, Any]) -> Self:
        """Rebuilds the workable from the document of `export`."""
        return cls(**parameters)

    if TYPE_CHECKING:

        def execute(self) -> Any:
            """The work, unless its jobs run other methods. Without it, a job cannot run `execute`."""

    # -- what happens to it: write those you need ----------------------------------------------------------------

    def tagged_as(self) -> Iterable[str]:
        """Tags that every job of this workable gets, in addition to the tags of its class and of the job."""
        return ()

    def after_success(self, result: Any) -> Any:
        """Called once when it has succeeded."""

    def after_failure(self, error: BaseException) -> Any:
        """Called after each attempt that failed."""

    def after_last_failure(self, error: BaseException) -> Any:
        """Called after `after_failure` when there will be no other attempt."""

    def finalize(self, error: BaseException | None) -> Any:
        """Called last after each attempt, failed or not."""

    def on_event(self, event: Event) -> None:
        """Called with the events of its job: `job.started`, `job.ended`, `job.failed`, `job.failure.last` and
        `job.snoozed`."""

    # -- becoming a job ------------------------------------------------------------------------------------------

    def as_job_of(self, recruiter: JobMaker[Self, J]) -> J:
        """A job that runs a method of this workable. Raises InvalidArguments or InvalidJob if it cannot be stored."""
        return recruiter.job_of(self)

    def as_repeatable_job_of(self, recruiter: RepeatableJobMaker[Self, J]) -> J:
        """A job that runs repeatedly; continue with `.repeat_with_policy(Cron("0 6 * * *")).create()`.

        If the workable has `urn` or `unique`, as an attribute or a method, the scheduler takes them over.
        """
        return recruiter.repeatable_job_of(self, _value(self, "urn", None), bool(_value(self, "unique", False)))


def _kept(workable: Workable, name: str) -> Any:
    """The instance's own attribute of this name. A default of its class does not count: it would be stored instead."""
    static = inspect.getattr_static(workable, name, _MISSING)
    own = name in getattr(workable, "__dict__", {}) or hasattr(type(static), "__get__")
    try:
        if own and not _init_only(type(workable), name):
            return getattr(workable, name)
    except AttributeError:
        pass  # an empty slot
    raise InvalidArguments(
        f"{type(workable).__name__} keeps no attribute {name!r} for its constructor's argument of that name; "
        "keep it, or define export() and import_()"
    )


def _init_only(cls: type, name: str) -> bool:
    fields: Mapping[str, Any] = getattr(cls, "__dataclass_fields__", {})
    kept = {field.name for field in dataclass_fields(cls)} if is_dataclass(cls) else set()
    return name in fields and isinstance(fields[name].type, InitVar | str) and name not in kept


_MISSING = object()
_ROOT = "root"


def _made_again(cls: type[Workable]) -> bool:
    """Whether `@dataclass(slots=True)` has made a second class from a registered one."""
    known = WORKABLES.get(cls.task_name) if "task_options" in vars(cls) else None
    return known is not None and vars(known).get("task_options") is cls.task_options


def _value(workable: Workable, name: str, otherwise: Any) -> Any:
    """Of an attribute or a method."""
    value = getattr(workable, name, otherwise)
    return value() if callable(value) else value


def stored(workable: Workable) -> dict[str, Any]:
    """The document of a workable. Raises InvalidJob, even for any exception of the user's code."""
    cls = type(workable)
    try:
        if cls.export is not Workable.export:
            return _document(cls, workable.export())
        if is_model(cls):
            document = slot_of(cls).store(workable)
            return {_ROOT: document} if is_root_model(cls) else dict(document)
        constructor = _constructor(cls)
        return constructor.bind_kept(workable.export()) if constructor is not None else {}
    except InvalidJob:
        raise
    except (Mismatch, Refused) as error:
        raise InvalidArguments(f"{cls.__name__}: {error}") from None
    except Exception as error:
        raise InvalidJob(
            f"{cls.__name__}.export() raised {type(error).__name__}: {error}; nothing was stored"
        ) from error


def parameters_of(cls: type[Workable]) -> tuple[str, ...]:
    if is_model(cls):
        return tuple(cls.model_fields)
    constructor = _constructor(cls)
    return constructor.names if constructor is not None else ()


def tags_of(workable: Workable) -> tuple[str, ...]:
    """The tags of this workable. Raises InvalidJob, even for any exception of the user's code."""
    try:
        return check_tags(workable.tagged_as())
    except InvalidJob:
        raise
    except Exception as error:
        name = type(workable).__name__
        raise InvalidJob(f"{name}.tagged_as() raised {type(error).__name__}: {error}; nothing was stored") from error


def rebuilt(cls: type[Workable], parameters: Mapping[str, Any]) -> Workable:
    """Rebuilds a workable from its document. Raises InvalidArguments, and any exception of the user's code."""
    if _has_own_import(cls):
        return cls.import_(from_bson(dict(parameters)))
    if is_model(cls):
        try:
            plain = parameters.get(_ROOT) if is_root_model(cls) else dict(parameters)
            model: Workable = slot_of(cls).restore(plain)
        except Mismatch as mismatch:
            raise InvalidArguments(f"{cls.__name__}: {mismatch}") from None
        return model
    constructor = _constructor(cls)
    positional, named = constructor.unbind(parameters) if constructor is not None else ((), dict(parameters))
    return cls(*positional, **named)


def checked(cls: type[Workable], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The document of parameters that a caller gives by name; they must fit the constructor."""
    constructor = _constructor(cls)
    if _has_own_import(cls) or is_model(cls) or constructor is None:
        document = _document(cls, parameters)
        if not _has_own_import(cls):
            rebuilt(cls, document)
        return document
    return constructor.bind((), parameters)


def _has_own_import(cls: type[Workable]) -> bool:
    return cls.import_.__func__ is not Workable.import_.__func__  # type: ignore[attr-defined]


def _document(cls: type[Workable], exported: object) -> dict[str, Any]:
    if not isinstance(exported, Mapping):
        raise InvalidJob(f"{cls.__name__}.export() must return a document of what to store, not {shown(exported)}")
    document: dict[str, Any] = to_bson(dict(exported), cls.__name__)
    return document


_constructors: WeakKeyDictionary[type[Workable], Signature] = WeakKeyDictionary()


def _constructor(cls: type[Workable]) -> Signature | None:
    """The signature of its constructor; None if it has no own constructor."""
    if cls.__init__ is object.__init__:
        return None
    if cls not in _constructors:
        _constructors[cls] = Signature(cls.__init__, skip_first=True, owner=cls)
    return _constructors[cls]
