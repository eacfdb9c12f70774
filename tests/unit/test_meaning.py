"""What an error of MongoDB means: a passing error is never taken for bad data; and which servers can be used."""

from __future__ import annotations

import pytest
from bson.errors import InvalidBSON, InvalidDocument
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConfigurationError,
    CursorNotFound,
    DocumentTooLarge,
    ExecutionTimeout,
    InvalidOperation,
    NetworkTimeout,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WriteConcernError,
    WriteError,
    WTimeoutError,
)

from recruiter.errors import DocumentRefused, NotAReplicaSet, ServerTooOld, StoreError, StoreRefused, StoreUnreachable
from recruiter.store.database import check_hello
from recruiter.store.errors import Meaning, meaning_of, translate


def batch(*codes: int, concern: int | None = None) -> BulkWriteError:
    errors = [{"index": place, "code": code, "errmsg": f"error {code}"} for place, code in enumerate(codes)]
    concerns = [{"code": concern, "errmsg": "no majority"}] if concern is not None else []
    return BulkWriteError({"writeErrors": errors, "writeConcernErrors": concerns})


_TOO_LARGE = "-31800: transaction is too large and will not fit in the storage engine cache"
WEATHER = [
    AutoReconnect("connection closed"),
    NetworkTimeout("timed out"),
    NotPrimaryError("not primary", {"code": 10107}),
    ServerSelectionTimeoutError("No primary available for writes"),
    ExecutionTimeout("operation exceeded time limit", 50),
    WTimeoutError("waiting for replication timed out", 64),
    CursorNotFound("cursor id 5 not found", 43),
    OperationFailure("operation was interrupted", 11601),
    OperationFailure("Transaction 5 has been aborted.", 251),
    OperationFailure("interrupted at shutdown", 11600),
    OperationFailure("operation was interrupted", 11602),
    OperationFailure("Write conflict", 112),
    OperationFailure("Read timestamp is older than the oldest available timestamp", 239),
    OperationFailure("No keys found for HMAC that is valid for time", 211),
    OperationFailure("something new", 999_999, {"errorLabels": ["TransientTransactionError"]}),
    OperationFailure("no space left on device", 14031),
    OperationFailure("WiredTigerRecordStore::insertRecord: 28: No space left on device", 8),
    WriteConcernError("primary stepped down", 189),
    batch(11602),
    batch(concern=91),
    batch(121, 11602),
]
BAD_DOCUMENTS = [
    WriteError("Document failed validation", 121),
    OperationFailure("BSONObj size is invalid", 10334),
    OperationFailure("Resulting document after update is larger than 16777216", 17419),
    batch(121),
    batch(121, 10334),
    InvalidDocument("cannot encode object"),
    InvalidBSON("invalid length"),
    DocumentTooLarge("BSON document too large"),
    OverflowError("MongoDB can only handle up to 8-byte ints"),
]
NOT_OURS = [
    OperationFailure("not authorized on shop to execute command { insert: x }", 13),
    OperationFailure("Authentication failed.", 18),
    OperationFailure("Transaction numbers are only allowed on a replica set member or mongos", 20),
    OperationFailure("unknown operator: $gut", 2),
    ConfigurationError("Unknown option"),
    InvalidOperation("Cannot use MongoClient after close"),
    ValueError("a mistake of ours"),
]


@pytest.mark.parametrize("error", WEATHER, ids=repr)
def test_a_passing_error_is_tried_again(error: Exception) -> None:
    assert meaning_of(error) is Meaning.TRY_AGAIN
    assert type(translate(error)) is StoreUnreachable


@pytest.mark.parametrize("error", BAD_DOCUMENTS, ids=repr)
def test_only_an_error_that_names_the_document_is_about_it(error: Exception) -> None:
    assert meaning_of(error) is Meaning.BAD_DOCUMENT
    assert type(translate(error)) is DocumentRefused


@pytest.mark.parametrize("error", NOT_OURS, ids=repr)
def test_everything_else_is_nobodys_data(error: Exception) -> None:
    assert meaning_of(error) is Meaning.NOT_OURS
    assert not isinstance(translate(error), DocumentRefused | StoreUnreachable)


def test_a_connection_without_sessions_is_to_be_dropped() -> None:
    error = ConfigurationError("Sessions are not supported by this MongoDB deployment")

    assert meaning_of(error) is Meaning.RECONNECT
    assert isinstance(translate(error), StoreUnreachable)
    assert "address" not in str(translate(error))


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OperationFailure("Authentication failed.", 18), StoreRefused, "Check the user"),
        (OperationFailure("Transaction numbers are only allowed", 20), NotAReplicaSet, "rs.initiate"),
        (ConfigurationError("Unknown option"), StoreError, "cannot be used with this address"),
        (ServerSelectionTimeoutError("refused"), StoreUnreachable, "does not answer"),
        (NotPrimaryError("not primary", {"code": 10107}), StoreUnreachable, "has no primary at the moment"),
        (ExecutionTimeout("exceeded time limit", 50), StoreUnreachable, "did not finish in time"),
        (NetworkTimeout("127.0.0.1:27017: timed out"), StoreUnreachable, "did not finish in time"),
        (OperationFailure("operation was interrupted", 11601), StoreUnreachable, "interrupted the operation"),
        (OperationFailure("no space left", 14031), StoreUnreachable, "disk of the MongoDB server is full"),
        (OperationFailure(_TOO_LARGE, 388), StoreError, "start a flow with fewer steps"),
        (OperationFailure("28: No space left on device", 8), StoreUnreachable, "disk of the MongoDB server is full"),
    ],
)
def test_the_message_says_what_it_is(error: Exception, kind: type[StoreError], words: str) -> None:
    told = translate(error)

    assert type(told) is kind
    assert words in str(told)


REPLICA_SET = {"isWritablePrimary": True, "setName": "rs0", "me": "db1:27017", "maxWireVersion": 17}
MONGOS = {"isWritablePrimary": True, "msg": "isdbgrid", "maxWireVersion": 17, "ok": 1.0}


@pytest.mark.parametrize("hello", [REPLICA_SET, MONGOS, {**MONGOS, "maxWireVersion": 25}])
def test_a_replica_set_and_a_mongos_can_be_used(hello: dict[str, object]) -> None:
    check_hello(hello, "db1")


@pytest.mark.parametrize(("hello", "address"), [(REPLICA_SET, "db1:27017"), (MONGOS, "router")])
def test_an_old_one_is_named(hello: dict[str, object], address: str) -> None:
    with pytest.raises(ServerTooOld, match=f"MongoDB at {address} is older"):
        check_hello({**hello, "maxWireVersion": 13}, "router")
