"""What a server answers to `hello` decides whether it can be used: a replica set, a mongos, a standalone server."""

from __future__ import annotations

import pytest

from recruiter.errors import ServerTooOld
from recruiter.store.database import check_hello

REPLICA_SET = {"isWritablePrimary": True, "setName": "rs0", "me": "db1:27017", "maxWireVersion": 17}
MONGOS = {"isWritablePrimary": True, "msg": "isdbgrid", "maxWireVersion": 17, "ok": 1.0}


@pytest.mark.parametrize("hello", [REPLICA_SET, MONGOS, {**MONGOS, "maxWireVersion": 25}])
def test_a_replica_set_and_a_mongos_can_be_used(hello: dict[str, object]) -> None:
    check_hello(hello, "db1")


@pytest.mark.parametrize(("hello", "address"), [(REPLICA_SET, "db1:27017"), (MONGOS, "router")])
def test_an_old_one_is_named(hello: dict[str, object], address: str) -> None:
    with pytest.raises(ServerTooOld, match=f"MongoDB at {address} is older"):
        check_hello({**hello, "maxWireVersion": 13}, "router")
