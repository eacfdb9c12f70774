"""The meaning of errors of MongoDB and its driver. No other module decides it.

    TRY_AGAIN      passing: no server, a new primary, an ended session, a lock, not enough time, a full disk
    RECONNECT      the same, but the pooled connections must be dropped first, or it never passes
    BAD_DOCUMENT   the server or the driver names the document: too large, not BSON, refused by the validator
    NOT_OURS       rights, configuration, an error in Recruiter: neither a retry nor another document helps

`translate` turns them into Recruiter's errors. Only BAD_DOCUMENT becomes `DocumentRefused`, and only on that error may
a process reduce an outcome or set a document aside. A step that fails with any other error is repeated until it
succeeds: no job may be lost because of a passing failure.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import wraps
from typing import ParamSpec, TypeVar

import dns.exception
from bson.errors import BSONError
from dns.exception import DNSException
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    CursorNotFound,
    DuplicateKeyError,
    ExecutionTimeout,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from recruiter.domain.text import MAX_REASON_CHARACTERS, cut, mask
from recruiter.errors import DocumentRefused, NotAReplicaSet, RecruiterError, StoreError, StoreRefused, StoreUnreachable
from recruiter.interruption import shielded

P = ParamSpec("P")
R = TypeVar("R")

NOT_A_REPLICA_SET = """\
MongoDB at {address} is a standalone server; Recruiter needs a replica set, and one node is enough. Two lines:
  1. start mongod with  --replSet rs0     (or in mongod.conf:  replication: {{replSetName: rs0}})
  2. once, in mongosh:  rs.initiate()"""


class Meaning(Enum):
    """The meaning of an error of the driver for its call."""

    TRY_AGAIN = auto()
    RECONNECT = auto()
    BAD_DOCUMENT = auto()
    NOT_OURS = auto()
    """Recruiter can do nothing about it: for example, a right is missing."""


# The numbers are MongoDB's error codes (src/mongo/base/error_codes.yml).
_NO_PRIMARY = {91, 189, 10058, 10107, 11600, 11602, 13435, 13436}
_NO_ANSWER = {6, 7, 89, 202, 9001}
_NOT_IN_TIME = {24, 46, 50, 64, 262, 290}
_DISK_FULL = {14031}
_NO_SPACE = "No space left on device"
"""The message of a server, with the code of an unknown error, before it stops because its disk is full."""
_INTERRUPTED = {
    *(11601, 206, 225, 251, 256, 267),  # its session or transaction was ended
    *(112, 134, 239, 246, 365),  # another one was faster, or this node is not ready to answer
    *(43, 175, 222, 234, 237, 280, 286),  # its cursor or change stream was closed
    *(133, 211, 215, 13388),  # the set, its keys or its databases are being changed
}
_PASSING = _NO_PRIMARY | _NO_ANSWER | _NOT_IN_TIME | _DISK_FULL | _INTERRUPTED
_PASSING_ERRORS = (ConnectionFailure, CursorNotFound, ExecutionTimeout, WTimeoutError)
_PASSING_LABELS = ("TransientTransactionError", "RetryableWriteError", "UnknownTransactionCommitResult")
_BAD_DOCUMENT = {
    *(10334, 17419, 17420),  # larger than a document may be, before or after an update
    *(22, 15),  # not BSON; nested too deeply
    121,  # DocumentValidationFailure
    *(52, 53, 55, 56, 57),  # a field name, an _id or a DBRef that cannot be stored
    *(171, 17280),  # cannot be indexed
}
_INSERT_TOO_LARGE = "object to insert too large"
"""The message, with the code of any bad value, for a document that was just too small for the driver to refuse it."""
_RIGHTS = {13, 18, 8000}
_NO_REPLICA_SET = {20, 40573}
_TOO_LARGE = "too large and will not fit in the storage engine cache"
_NO_SESSIONS = "Sessions are not supported"
_NO_INDEX = "hint provided does not correspond to an existing index"

DRIVER_REFUSES = (BSONError, OverflowError, UnicodeEncodeError, RecursionError)
"""Other exceptions of the driver for a document that it can neither read nor write."""

_ASIDE = re.compile(r" \(configured timeouts: [^)]*\)|, Timeout: [\d.]+s$|\[Errno -?\d+\] ")
_ROLES_PAGE = 'see "Users and roles in MongoDB" in the documentation'
_MAY_NOT = re.compile(r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]+)")?')


def meaning_of(error: BaseException) -> Meaning:
    """Classifies an error by its class, its codes, its labels or its text; an unknown error is NOT_OURS."""
    if isinstance(error, DRIVER_REFUSES):
        return Meaning.BAD_DOCUMENT
    if not isinstance(error, PyMongoError):
        return Meaning.NOT_OURS
    codes, _ = _codes(error)
    if codes & (_RIGHTS | _NO_REPLICA_SET):
        return Meaning.NOT_OURS
    if isinstance(error, ConfigurationError) and _NO_SESSIONS in str(error):
        return Meaning.RECONNECT  # of a connection opened while its server was neither primary nor secondary
    has_passing_label = any(error.has_error_label(label) for label in _PASSING_LABELS)
    if isinstance(error, _PASSING_ERRORS) or codes & _PASSING or has_passing_label or error.timeout:
        return Meaning.TRY_AGAIN
    if _is_full(error, codes) or is_dns_failure(error):
        return Meaning.TRY_AGAIN
    return Meaning.BAD_DOCUMENT if codes & _BAD_DOCUMENT or _INSERT_TOO_LARGE in _text(error) else Meaning.NOT_OURS


def is_dns_failure(error: BaseException) -> bool:
    """Whether DNS did not resolve the hosts of a mongodb+srv:// address. The driver reports this like an invalid
    address; only the cause differs. A name that no DNS can have is an invalid address."""
    cause = error.__cause__ if isinstance(error, ConfigurationError) else None
    return cause is not None and isinstance(cause, DNSException) and not isinstance(cause, dns.exception.SyntaxError)


def is_about_a_document(code: int) -> bool:
    """Whether a write error with this code in a batch is an error of its document only."""
    return code in _BAD_DOCUMENT


def _is_full(error: PyMongoError, codes: set[int]) -> bool:
    return bool(codes & _DISK_FULL) or _NO_SPACE in str(error)


def translate(error: BaseException) -> StoreError:
    """The same failure as an error of Recruiter, without passwords."""
    match meaning_of(error):
        case Meaning.TRY_AGAIN if isinstance(error, PyMongoError):
            return StoreUnreachable(_passing_text(error))
        case Meaning.RECONNECT:
            return StoreUnreachable(
                "a connection to MongoDB was opened while its server was neither primary nor secondary; it was dropped"
            )
        case Meaning.BAD_DOCUMENT:
            return DocumentRefused(f"MongoDB refused a document: {_text(error)}")
        case _:
            return _not_ours(error)


def _passing_text(error: PyMongoError) -> str:
    codes, _ = _codes(error)
    text = _text(error)
    if is_dns_failure(error):
        reason = text.rstrip(".").replace("@", " port ")  # before "@", the name server would look like a password
        return f"DNS does not resolve its hosts: {reason}. Is DNS up, and is the name in the address right?"
    if _is_full(error, codes):
        return f"the disk of the MongoDB server is full: {text}. Free space there"
    if codes & _NO_PRIMARY or isinstance(error, NotPrimaryError):
        return f"MongoDB has no primary at the moment: {text}"
    if isinstance(error, ExecutionTimeout | WTimeoutError | NetworkTimeout) or codes & _NOT_IN_TIME:
        return f"MongoDB did not finish in time: {text}"
    if isinstance(error, OperationFailure) and not codes & _NO_ANSWER:
        return f"MongoDB interrupted the operation: {text}"
    return f"MongoDB does not answer: {text}"


def _not_ours(error: BaseException) -> StoreError:
    codes, text = (_codes(error)[0] if isinstance(error, PyMongoError) else set[int]()), _text(error)
    if codes & _RIGHTS:
        return StoreRefused(f"MongoDB refused: {_refusal(text)}")
    if codes & _NO_REPLICA_SET:
        return NotAReplicaSet(NOT_A_REPLICA_SET.format(address="this address"))
    if isinstance(error, ConfigurationError):
        return StoreError(f"MongoDB cannot be used with this address: {text}")
    if _NO_INDEX in text:
        return StoreError(
            "an index that this version of Recruiter needs is missing; run `recruiter prepare` to make it"
        )
    if _TOO_LARGE in text:
        return StoreError(
            f"MongoDB refused the transaction: {text}. Write less in it: start a flow with fewer steps, and add the "
            "others in a step (current_job.flow.add_many); or give the server a larger cache"
        )
    return StoreError(f"MongoDB refused the command: {text}")


def _text(error: BaseException) -> str:
    """The message of the server or the driver, without the state of the topology."""
    details = _codes(error)[1] if isinstance(error, PyMongoError) else ""
    text = details or mask(str(error)).partition(", Topology Description")[0].partition(", full error")[0]
    return _ASIDE.sub("", text).strip()


def _refusal(text: str) -> str:
    may_not = _MAY_NOT.search(text)
    if may_not is not None:
        database, command, place = may_not.groups()
        where = f"{database}.{place}" if place else f"database {database}"
        return f"this user may not {command} on {where}. Grant it a role that may ({_ROLES_PAGE})"
    if "requires authentication" in text:
        return f"{text}. Put the user and its password into the address: mongodb://USER:PASSWORD@HOST/DATABASE"
    return f"{text.rstrip('.')}. Check the user, its password, and authSource= in the address"


def _codes(error: PyMongoError) -> tuple[set[int], str]:
    """The server's error codes, and its messages where the driver only reports that a batch had errors."""
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        failures = [*details.get("writeConcernErrors", ()), *details.get("writeErrors", ())]
        return {failure["code"] for failure in failures}, mask("; ".join(str(f.get("errmsg")) for f in failures[:3]))
    if isinstance(error, OperationFailure | NotPrimaryError):
        answer = error.details if isinstance(error.details, dict) else {}
        concern = answer.get("writeConcernError") or {}
        return {code for code in (answer.get("code"), getattr(error, "code", None), concern.get("code")) if code}, ""
    return set(), ""


def text_of(error: BaseException) -> str:
    """An error for the log. A message of the driver may contain the document, and with it the arguments of a job."""
    if isinstance(error, RecruiterError):
        return cut(str(error), MAX_REASON_CHARACTERS)
    name = type(error).__name__
    driver = type(error).__module__.partition(".")[0] in ("pymongo", "bson")
    return name if driver else cut(f"{name}: {error}", MAX_REASON_CHARACTERS)


def trace_of(error: BaseException) -> str:
    """The same with the traceback, and the tracebacks of the errors that led to it."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if earlier is None else f"{trace_of(earlier)}\n\nThis led to:\n\n"
    return f"{before}{''.join(traceback.format_tb(error.__traceback__))}{text_of(error)}"


DUPLICATE_KEY, WRITE_CONFLICT, UNAUTHORIZED = 11000, 112, 13
"""Codes of the server."""


def is_duplicate(error: BaseException | None) -> bool:
    """Whether two documents have the same key."""
    if isinstance(error, BulkWriteError):
        return any(failure["code"] == DUPLICATE_KEY for failure in (error.details or {}).get("writeErrors", ()))
    return isinstance(error, DuplicateKeyError)


@contextmanager
def our_own_documents(what: str) -> Iterator[None]:
    """Around writes of Recruiter's bookkeeping in a transaction: a refusal of such a document is not a refusal of the
    jobs in the transaction."""
    try:
        yield
    except (PyMongoError, *DRIVER_REFUSES) as error:
        if meaning_of(error) is Meaning.BAD_DOCUMENT:
            raise StoreError(f"MongoDB refused to write {what}: {_text(error)}") from error
        raise


class _Answers:
    number = 0


def answers() -> int:
    """The approximate number of calls that MongoDB has answered in this process. It grows only if MongoDB answers."""
    return _Answers.number


def store_call(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that calls MongoDB: errors of pymongo become StoreErrors, and a job that is interrupted during
    the call gets the interruption after it."""

    @wraps(function)
    @shielded
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            answer = function(*args, **kwargs)
        except (PyMongoError, *DRIVER_REFUSES) as error:
            raise translate(error) from error
        _Answers.number += 1
        return answer

    return call
