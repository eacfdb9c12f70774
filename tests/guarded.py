"""A MongoDB that asks for a user and a password, as one in production does."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from recruiter.embedded import EmbeddedServer
from recruiter.store.codec import Document

ROOT = "root:r00t-s3cret"
PASSWORD = "s3cret-0f-all"
_SMALL = ("--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64")


class GuardedServer:
    """A replica set of one node with access control. It has one user, `ROOT`; the others are made by tests."""

    def __init__(self, folder: Path) -> None:
        user, _, password = ROOT.partition(":")
        with EmbeddedServer(folder, extra=_SMALL) as open_to_all, MongoClient[Document](open_to_all.uri) as client:
            client.admin.command("createUser", user, pwd=password, roles=["root"])
        key = folder / "key"
        key.write_text(secrets.token_hex(64))
        key.chmod(0o600)
        self._server = EmbeddedServer(folder, extra=(*_SMALL, "--keyFile", str(key)), credentials=ROOT)
        self._server.start()
        self._root: MongoClient[Document] = MongoClient(self.uri(ROOT))

    def uri(self, credentials: str | None, database: str = "shop") -> str:
        """The address for somebody, or for nobody in particular."""
        before = "" if credentials is None else f"{credentials}@"
        login = "" if credentials is None else "&authSource=admin"
        return f"mongodb://{before}{self._server.address}/{database}?replicaSet={self._server.replica_set}{login}"

    def command(self, command: Document) -> Document:
        """What an administrator would type into mongosh, in `admin`."""
        return self._root.admin.command(command)

    def user(self, name: str, *roles: str | Document) -> str:
        """Makes a user with these roles, or gives it these instead of others; returns its credentials."""
        existing = self.command({"usersInfo": name})["users"]
        verb = "updateUser" if existing else "createUser"
        self.command({verb: name, "pwd": PASSWORD, "roles": list(roles)})
        return f"{name}:{PASSWORD}"

    def role(self, role: Document) -> None:
        """As `db.createRole(role)` would, but also when it is there."""
        existing = self.command({"rolesInfo": role["role"]})["roles"]
        rest = {key: value for key, value in role.items() if key != "role"}
        self.command({"updateRole" if existing else "createRole": role["role"], **rest})

    def database(self, name: str) -> Any:
        return self._root.get_database(name)

    def close(self) -> None:
        self._root.close()
        self._server.stop()


_HIDDEN = re.compile(rf"{re.escape(PASSWORD)}|{re.escape(ROOT.partition(':')[2])}")


def tells_a_password(text: str) -> bool:
    return _HIDDEN.search(text) is not None
