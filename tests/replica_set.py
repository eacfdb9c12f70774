"""Several mongods as a replica set, for tests of failovers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from recruiter.embedded import EmbeddedServer
from recruiter.embedded.process import TemporaryFolder
from recruiter.embedded.server import START_WITHIN_SECONDS
from recruiter.errors import ServerDidNotStart, StoreError
from recruiter.store import server as admin

T = TypeVar("T")

QUICK_ELECTIONS = {"electionTimeoutMillis": 2_000, "heartbeatIntervalMillis": 500}
SMALL = ("--wiredTigerCacheSizeGB", "0.25", "--oplogSize", "64")


class EmbeddedReplicaSet:
    """A replica set of `nodes` mongods with temporary data, all gone after `stop()` or with this process; with
    `arbiter`, the last of them only votes."""

    def __init__(
        self,
        nodes: int = 3,
        *,
        binary: str | None = None,
        replica_set: str = "recruiter",
        arbiter: bool = False,
        folders: Sequence[Path] | None = None,
    ) -> None:
        """`folders` are those of the nodes; otherwise they have temporary ones."""
        self.nodes: list[EmbeddedServer] = []
        self.replica_set = replica_set
        self._size = nodes
        self._binary = binary
        self._arbiter = arbiter
        self._folders = folders
        self._finish: weakref.finalize[..., EmbeddedReplicaSet] | None = None

    def start(self) -> str:
        """Start all nodes, wait for a primary, and return the URI."""
        temporary = TemporaryFolder()
        folders = self._folders or [temporary.path / f"node-{n}" for n in range(self._size)]
        self.nodes = [
            _Node(folder, binary=self._binary, replica_set=self.replica_set, extra=SMALL) for folder in folders
        ]
        self._finish = weakref.finalize(self, _end_nodes, self.nodes, temporary)
        try:
            for node in self.nodes:
                node.start()
            with admin.connected(self.nodes[0].address) as connection:
                members = [{"_id": number, "host": node.address} for number, node in enumerate(self.nodes)]
                if self._arbiter:
                    members[-1]["arbiterOnly"] = True
                config = {"_id": self.replica_set, "members": members, "settings": QUICK_ELECTIONS}
                admin.command(connection, {"replSetInitiate": config})
            for node in self.nodes:
                _until(partial(_takes_part, node), f"{node.address} did not join")
            self.primary()
        except BaseException:
            self.stop()
            raise
        return self.uri

    def stop(self) -> None:
        """End all nodes at once, as crashes: nobody needs their data any more."""
        if self._finish is not None:
            self._finish()

    @property
    def uri(self) -> str:
        """The address of all its nodes, without a database."""
        return f"mongodb://{','.join(node.address for node in self.nodes)}/?replicaSet={self.replica_set}"

    def primary(self) -> EmbeddedServer:
        """The node that is the writable primary; waits for an election to end."""
        return _until(self._find_primary, "no primary was elected")

    def kill(self, node: EmbeddedServer) -> None:
        """Crash this node (SIGKILL)."""
        node.kill()

    def restart(self, node: EmbeddedServer) -> None:
        """Bring a killed node back at its port, and wait until it takes part again."""
        node.start()
        _until(partial(_takes_part, node), f"{node.address} did not join again")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _find_primary(self) -> EmbeddedServer | None:
        return next((node for node in self.nodes if node.running and _hello(node).writable_primary), None)


class _Node(EmbeddedServer):
    """A server that leaves it to the others who is primary: it is ready when it answers."""

    def _initiate(self, connection: admin.Connection, address: str) -> bool:
        admin.hello(connection)
        return True


def _end_nodes(nodes: list[EmbeddedServer], temporary: TemporaryFolder) -> None:
    for node in nodes:
        node.kill()
    temporary.remove()


def _hello(node: EmbeddedServer) -> admin.Hello:
    try:
        with admin.connected(node.address) as connection:
            return admin.hello(connection)
    except StoreError:
        return admin.Hello(set_name=None, writable_primary=False, secondary=False)


def _takes_part(node: EmbeddedServer) -> bool:
    return _hello(node).member


def _until(fact: Callable[[], T | None], otherwise: str) -> T:
    """Ask until the answer is true; that is the result."""
    deadline = time.monotonic() + START_WITHIN_SECONDS
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise ServerDidNotStart(f"The private replica set is not ready: {otherwise} in {START_WITHIN_SECONDS:g} s.")
        time.sleep(0.05)
    return found
