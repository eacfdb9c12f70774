"""Turns what pymongo raises into Recruiter's own errors, at the edge of the store."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from bson.errors import BSONError
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    ExecutionTimeout,
    NetworkTimeout,
    OperationFailure,
    PyMongoError,
    WTimeoutError,
)

from recruiter.domain.text import mask
from recruiter.errors import NotAReplicaSet, StoreError, StoreRefused, StoreUnreachable

P = ParamSpec("P")
R = TypeVar("R")

NOT_A_REPLICA_SET = """\
MongoDB at {address} is a standalone server; Recruiter needs a replica set, and one node is enough. Two lines:
  1. start mongod with  --replSet rs0     (or in mongod.conf:  replication: {{replSetName: rs0}})
  2. once, in mongosh:  rs.initiate()"""

_UNREACHABLE = (ConnectionFailure, AutoReconnect, NetworkTimeout, ExecutionTimeout, WTimeoutError)
_UNREACHABLE_CODES = {6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
_REFUSED_CODES = {13, 18, 8000}
_NO_INDEX = "hint provided does not correspond to an existing index"
_NO_REPLICA_SET_CODES = {20, 40573}

_ASIDE = re.compile(r" \(configured timeouts: [^)]*\)|, Timeout: [\d.]+s$|\[Errno -?\d+\] ")
_MAY_NOT = re.compile(r'not authorized on (\S+) to execute command \{ (\w+): (?:"([^"]+)")?')


def translate(error: PyMongoError) -> StoreError:
    """The same failure in our words; never with a password in it."""
    codes, details = _codes(error)
    text = details or _told(str(error))
    if codes & _REFUSED_CODES:
        return StoreRefused(f"MongoDB refused: {_refusal(text)}")
    if codes & _NO_REPLICA_SET_CODES:
        return NotAReplicaSet(NOT_A_REPLICA_SET.format(address="this address"))
    if isinstance(error, _UNREACHABLE) or codes & _UNREACHABLE_CODES or error.timeout:
        return StoreUnreachable(f"MongoDB does not answer: {text}")
    if isinstance(error, ConfigurationError):
        return StoreError(f"MongoDB cannot be used with this address: {text}")
    if _NO_INDEX in text:
        return StoreError(
            "an index that this version of Recruiter needs is not there; `recruiter prepare` makes it, and so does a "
            "recruiter that starts"
        )
    return StoreError(f"MongoDB said no: {text}")


def _told(text: str) -> str:
    """What the driver says of it, without what it knows about everything else."""
    text = mask(text).partition(", Topology Description")[0].partition(", full error")[0]
    return _ASIDE.sub("", text).strip()


def _refusal(text: str) -> str:
    may_not = _MAY_NOT.search(text)
    if may_not is not None:
        database, command, place = may_not.groups()
        where = f"{database}.{place}" if place else f"database {database}"
        return f"this user may not {command} on {where}. Grant it a role that may (docs/how-to/mongodb-roles.md)"
    if "requires authentication" in text:
        return f"{text}. Put the user and its password into the address: mongodb://USER:PASSWORD@HOST/DATABASE"
    return f"{text.rstrip('.')}. Check the user, its password, and authSource= in the address"


def _codes(error: PyMongoError) -> tuple[set[int], str]:
    """The server's error codes, and its own words when the driver only says that a batch had errors."""
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        failures = [*details.get("writeConcernErrors", ()), *details.get("writeErrors", ())]
        return {failure["code"] for failure in failures}, mask("; ".join(str(f.get("errmsg")) for f in failures[:3]))
    if isinstance(error, OperationFailure):
        concern = (error.details or {}).get("writeConcernError") or {}
        return {code for code in (error.code, concern.get("code")) if code is not None}, ""
    return set(), ""


def store_call(function: Callable[P, R]) -> Callable[P, R]:
    """Marks a function that speaks to MongoDB: what pymongo raises in it leaves as a StoreError."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except PyMongoError as error:
            raise translate(error) from error
        except (BSONError, OverflowError) as error:  # a document that the driver can neither read nor write
            raise StoreError(f"MongoDB's driver refused a document: {error}") from error

    return call
