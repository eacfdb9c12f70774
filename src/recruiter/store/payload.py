"""The payload of a job: its arguments, its result, what its checkpoints keep and what signals bring, sealed by a codec
of the application before they are stored, and opened where they are needed.

    args: {order: 7, __recruiter__: "sealed", codec: "aes-gcm", payload: Binary(…)}

Arguments that are to stay `clear` keep their place, so that searches find them. Recruiters, cleaners and supervisors
never open anything: only producers, children and readers of results have the codec. Without a codec nothing is
sealed, and nothing here costs more than a look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from bson.binary import Binary

from recruiter.domain.arguments.results import WithResults
from recruiter.domain.arguments.values import TAG
from recruiter.domain.names import check_text
from recruiter.domain.text import shown
from recruiter.errors import InvalidArguments, PayloadSealed, SettingsError
from recruiter.store.codec import decode, encode

SEALED, _RESULT = "sealed", "result"
SIGNALS = "signal"
"""The context of what signals bring, which is not of one task."""


@runtime_checkable
class PayloadCodec(Protocol):
    """What an application gives to have its payloads encrypted or compressed: `Recruiter(codec=…)`."""

    @property
    def name(self) -> str:
        """Stored beside each payload, so that people see what it is."""

    def encode(self, payload: bytes, context: bytes) -> bytes:
        """The payload as it is stored. `context` says what it is of; it is the same when it is decoded."""

    def decode(self, payload: bytes, context: bytes) -> bytes:
        """What `encode` was given. Raises an exception if it cannot be had."""


class Payload:
    """Seals and opens, or does nothing where there is no codec."""

    def __init__(self, codec: PayloadCodec | None = None, clear: Iterable[str] = ()) -> None:
        if codec is not None and not isinstance(codec, PayloadCodec):
            raise SettingsError(f"codec must have a name, encode() and decode(), unlike {shown(codec)}")
        self._codec = codec
        self._clear: Collection[str] = _names(clear)

    @property
    def has_codec(self) -> bool:
        """Whether it calls code of the application."""
        return self._codec is not None

    def seal_arguments(self, task: str, args: Mapping[str, Any] | Sequence[Any], *, step: bool = False) -> Any:
        """The arguments as they are stored. Every new job comes through here. Raises InvalidArguments if a result of a
        step is among them, unless the job is a `step` of a flow: nobody would put the value in its place."""
        if type(args) is WithResults and not step:
            raise InvalidArguments(
                f"{task}: the result of a step is an argument; such a job must be a step of its flow: flow.add(…)"
            )
        if self._codec is None or not args:
            return args
        clear = {name: args[name] for name in self._clear if name in args} if isinstance(args, Mapping) else {}
        return {**clear, **self._sealed("args", task, args)}

    def open_arguments(self, task: str, args: Any) -> Any:
        """The arguments as they were before. Raises PayloadSealed."""
        return self._opened("args", task, args) if is_sealed(args) else args

    def seal(self, task: str, value: Any) -> Any:
        """A result as it is stored."""
        return value if self._codec is None or value is None else self._sealed(_RESULT, task, value)

    def open(self, task: str, value: Any) -> Any:
        """A result as it was before. Raises PayloadSealed."""
        return self._opened(_RESULT, task, value) if is_sealed(value) else value

    def _sealed(self, what: str, task: str, value: Any) -> dict[str, Any]:
        assert self._codec is not None
        payload = self._codec.encode(encode({"value": value}), _context(what, task))
        return {TAG: SEALED, "codec": self._codec.name, "payload": Binary(payload)}

    def _opened(self, what: str, task: str, sealed: Mapping[str, Any]) -> Any:
        name = sealed.get("codec")
        if self._codec is None or self._codec.name != name:
            raise PayloadSealed(
                f"the payload of task {task!r} is sealed by {name!r}, and this process has no such codec: give it the "
                "one of the producers, Recruiter(codec=…)"
            )
        try:
            return decode(self._codec.decode(bytes(sealed["payload"]), _context(what, task)))["value"]
        except Exception as error:
            raise PayloadSealed(f"the payload of task {task!r} cannot be opened by {name!r}: {error}") from error


def is_sealed(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get(TAG) == SEALED and isinstance(value.get("payload"), bytes)


def shown_payload(value: Any) -> Any:
    """For people: what is clear, and of the rest only that it is there."""
    if not is_sealed(value):
        return value
    clear = {name: each for name, each in value.items() if name not in (TAG, "codec", "payload")}
    return {**clear, SEALED: f"{len(value['payload']):,} bytes, by {value.get('codec')}"}


def _context(what: str, task: str) -> bytes:
    """Arguments belong to their task; a result may become an argument of another task, in a flow."""
    return f"recruiter/{what}".encode() if what == _RESULT else f"recruiter/{what}/{task}".encode()


def _names(clear: Iterable[str]) -> tuple[str, ...]:
    if isinstance(clear, str):
        raise SettingsError(f"clear is a list of argument names, as in [{clear!r}], not one text")
    return tuple(check_text("the name of an argument", name) for name in clear)


PLAIN = Payload()
"""Without a codec."""
