"""The payload of a job: its arguments, its result, and the values of its checkpoints and signals. A codec of the
application seals them before they are stored, and opens them where they are used.

    args: {order: 7, __recruiter__: "sealed", codec: "aes-gcm", of: "job", payload: Binary(…)}

Arguments in `clear` are not sealed, so that searches find them. Only producers, children and readers of results need
the codec; recruiters, cleaners and supervisors never open a payload. Without a codec nothing is sealed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bson.binary import Binary

from recruiter.domain.arguments.results import WithResults
from recruiter.domain.arguments.values import TAG
from recruiter.domain.job import JobId
from recruiter.domain.names import check_text
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, PayloadSealed, SettingsError
from recruiter.store.codec import decode, encode

SEALED = "sealed"
_CLEAR_FIELDS = (TAG, "codec", "payload", "of")


class Sealed(StrEnum):
    """The sealed parts of a job."""

    ARGUMENTS = "args"
    RESULT = "result"
    CHECKPOINT = "checkpoint"
    SIGNAL = "signal"


class Owner(NamedTuple):
    """The owner of payloads: a job and all jobs that repeat it (`Job.key`). The arguments of the occurrences of a
    scheduler are sealed once, and belong to the scheduler."""

    job: JobId
    urn: str | None = None


def owner_of(document: Mapping[str, Any]) -> Owner:
    """From a job's document, in `scheduled` or in the archive."""
    first = (document.get("origin"), document.get("recovered_from"), document["_id"])
    return Owner(next(id for id in first if id is not None), document.get("urn"))


@runtime_checkable
class PayloadCodec(Protocol):
    """Encrypts or compresses the payloads of an application: `Recruiter(codec=…)`."""

    @property
    def name(self) -> str:
        """Stored with each payload."""

    def encode(self, payload: bytes, context: bytes) -> bytes:
        """The payload to store. `context` names its owner; `decode` gets the same context."""

    def decode(self, payload: bytes, context: bytes) -> bytes:
        """The payload that `encode` was called with. Raises an exception if it cannot be decoded."""


class Payload:
    """Seals and opens payloads; does nothing without a codec.

    A sealed value is bound to its job and its name: the codec gets both as context, and a value that was moved to
    another job, task, step or signal does not open. Payloads of the first release have no `of`, and were bound to their
    task alone.
    """

    def __init__(
        self, codec: PayloadCodec | None = None, clear: Iterable[str] = (), *, sealed_only: bool = False
    ) -> None:
        if codec is not None and not isinstance(codec, PayloadCodec):
            raise SettingsError(f"codec must have a name, encode() and decode(), unlike {shown(codec)}")
        if sealed_only and codec is None:
            raise SettingsError("sealed_only needs a codec: Recruiter(codec=…, sealed_only=True)")
        self._codec = codec
        self._clear: Collection[str] = _names(clear)
        self._sealed_only = sealed_only

    @property
    def has_codec(self) -> bool:
        return self._codec is not None

    def seal_arguments(
        self, task: str, args: Mapping[str, Any] | Sequence[Any], owner: Owner, *, step: bool = False
    ) -> Any:
        """The arguments to store, of a job or, with a urn, of the occurrences of that scheduler. Every new job comes
        through here. Raises InvalidArguments if they contain the result of a step, unless the job is a `step` of a
        flow: the placeholder would never be replaced."""
        if type(args) is WithResults and not step:
            raise InvalidArguments(
                f"{task}: the result of a step is an argument; such a job must be a step of its flow: flow.add(…)"
            )
        if self._codec is None or not (args or self._sealed_only):
            return args
        clear = {name: args[name] for name in self._clear if name in args} if isinstance(args, Mapping) else {}
        return {**clear, **self._sealed(Sealed.ARGUMENTS, task, owner, args)}

    def open_arguments(self, task: str, args: Any, owner: Owner) -> Any:
        """The original arguments. Raises PayloadSealed, and InvalidArguments for unsealed arguments with
        `sealed_only`."""
        if is_sealed(args):
            return self._opened(Sealed.ARGUMENTS, task, owner, args)
        if self._sealed_only:
            raise InvalidArguments(f"{task}: its arguments are not sealed, and this application takes only sealed ones")
        return args

    def seal(self, what: Sealed, owner: Owner, value: Any, name: str = "") -> Any:
        """The stored form of a result, or of the value of the checkpoint or signal of this name."""
        return value if self._codec is None or value is None else self._sealed(what, name, Owner(owner.job), value)

    def open(self, what: Sealed, owner: Owner, value: Any, name: str = "") -> Any:
        """The original value. Raises PayloadSealed, also for an unsealed value with `sealed_only`."""
        if is_sealed(value):
            return self._opened(what, name, Owner(owner.job), value)
        if self._sealed_only and value is not None:
            raise PayloadSealed(f"{_named(what, name)} is not sealed, and this application takes only sealed payloads")
        return value

    def _sealed(self, what: Sealed, name: str, owner: Owner, value: Any) -> dict[str, Any]:
        assert self._codec is not None
        of = "job" if owner.urn is None else "scheduler"
        payload = self._codec.encode(encode({"value": value}), _context(what, name, owner, of))
        return {TAG: SEALED, "codec": self._codec.name, "of": of, "payload": Binary(payload)}

    def _opened(self, what: Sealed, name: str, owner: Owner, sealed: Mapping[str, Any]) -> Any:
        codec = sealed.get("codec")
        if self._codec is None or self._codec.name != codec:
            raise PayloadSealed(
                f"{_named(what, name)} is sealed by {shown(codec)}, and this process has no such codec: give it the "
                "codec of the producers, Recruiter(codec=…)"
            )
        try:
            context = _context(what, name, owner, sealed.get("of"))
            return decode(self._codec.decode(bytes(sealed["payload"]), context))["value"]
        except Exception as error:
            raise PayloadSealed(f"{_named(what, name)} cannot be opened by {codec!r}: {error}") from error


def is_sealed(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(TAG) == SEALED and isinstance(value.get("payload"), bytes)


def shown_payload(value: Any) -> Any:
    """For people: the clear arguments, and the size of the sealed payload."""
    if not is_sealed(value):
        return value
    clear = {name: each for name, each in value.items() if name not in _CLEAR_FIELDS}
    return {**clear, SEALED: f"{len(value['payload']):,} bytes, by {value.get('codec')}"}


def _context(what: Sealed, name: str, owner: Owner, of: Any) -> bytes:
    """Binds a payload to its job or scheduler, and to its task, checkpoint or signal."""
    if of is None:  # as the first release bound it
        return f"recruiter/args/{name}".encode() if what is Sealed.ARGUMENTS else b"recruiter/result"
    bound = {"scheduler": owner.urn} if of == "scheduler" else {"job": owner.job}
    return encode({"recruiter": what.value, "name": name, **bound})


def _named(what: Sealed, name: str) -> str:
    match what:
        case Sealed.ARGUMENTS:
            return f"the payload of task {name!r}"
        case Sealed.RESULT:
            return "the result"
        case Sealed.CHECKPOINT | Sealed.SIGNAL:
            return f"the value of the {what.value} {name!r}"


def _names(clear: Iterable[str]) -> tuple[str, ...]:
    if isinstance(clear, str):
        raise SettingsError(f"clear is a list of argument names, as in [{clear!r}], not one text")
    return tuple(check_text("the name of an argument", name) for name in clear)


PLAIN = Payload()
"""Without a codec."""
