"""A private MongoDB that ends with the process that started it.

MongoDB is licensed under the SSPL. This runs it for development and tests only: it has no users, no passwords
(but where tests want them) and no second copy of the data. Not for production.
"""

from __future__ import annotations

import random
import socket
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from recruiter.embedded.process import (
    MongodProcess,
    ServerRecord,
    TemporaryFolder,
    find_mongod,
    fresh_log,
    last_words,
    mongod_command,
    read_record,
    require_runnable,
    start_lock,
    write_record,
)
from recruiter.errors import EmbeddedError, ServerDidNotStart, StoreError
from recruiter.store import server as admin

START_WITHIN_SECONDS = 60.0

# Below the range of ports for outgoing connections (Linux: 32768 and up). In that range a port may be taken
# while the server is briefly away, even by a client that tries to reach it.
PORTS = range(20_000, 32_000)


class EmbeddedServer:
    """A MongoDB replica set of one node, on 127.0.0.1 only, for development and tests.

    Keep the object: when it is forgotten, or this process ends in whatever way, its mongod ends too. Without
    a folder the data are in a temporary one and gone after `stop()`. With a folder they stay, and a server
    that another process already runs there is used instead of a second one; that server is not ours, so
    `stop()` leaves it alone, and it goes when its owner goes.

    MongoDB's licence is the SSPL: not for production.

    Where the `extra` options make mongod ask for a password, `credentials` (`user:password`) are of a user who may see
    everything and was made before.

    After `stop()` or `kill()` a `start()` brings it back at the same port, so that clients find it again.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int | None = None,
        binary: str | None = None,
        replica_set: str = "recruiter",
        extra: Sequence[str] = (),
        credentials: str = "",
    ) -> None:
        self.replica_set = replica_set
        self._credentials = credentials
        self._folder = folder
        self._port = port
        self._binary = binary
        self._extra = tuple(extra)
        self._temporary: TemporaryFolder | None = None
        self._process: MongodProcess | None = None
        self._record: ServerRecord | None = None
        self._finish: weakref.finalize[..., EmbeddedServer] | None = None

    def start(self, *, within: float = START_WITHIN_SECONDS) -> str:
        """Starts it unless it runs, waits until it is writable, and returns the URI."""
        if self.running:
            return self.uri
        deadline = time.monotonic() + within
        folder = self._make_folder()
        try:
            with start_lock(folder, deadline):
                if not self.running:
                    self._record = self._reuse(folder, deadline) or self._launch(folder, deadline)
        except BaseException:
            self.stop()
            raise
        return self.uri

    def stop(self) -> None:
        """Shuts our mongod down and removes a temporary folder; does not touch the server of another process."""
        if self._finish is not None:
            self._finish()
        self._process = self._record = self._temporary = self._finish = None

    def kill(self) -> None:
        """Crashes our mongod (SIGKILL). All data stay until `stop()`."""
        if self._process is None and self.running:
            raise EmbeddedError(f"The server of {self.folder} was started by another process; only that may kill it.")
        if self._process is not None:
            self._process.kill()

    @property
    def running(self) -> bool:
        """Whether it is up, as far as this process knows."""
        if self._process is not None:
            return self._process.running
        return self._record is not None and self._record.running

    @property
    def ours(self) -> bool:
        """Whether this process has started it. A server of another process ends with that process."""
        return self._process is not None

    @property
    def uri(self) -> str:
        """Its address, without a database."""
        return f"mongodb://{self.address}/?replicaSet={self.replica_set}"

    @property
    def address(self) -> str:
        """Host and port; known from the first start on, even while the server is away."""
        port = self._record.port if self._record else self._port
        if port is None:
            raise EmbeddedError("The private MongoDB has no address yet; call start() first.")
        return f"127.0.0.1:{port}"

    @property
    def pid(self) -> int | None:
        """The process id of mongod, or None if it does not run."""
        return self._record.pid if self._record and self.running else None

    @property
    def folder(self) -> Path | None:
        """The folder of data and log; None without a named folder before the start and after the stop."""
        return self._temporary.path if self._temporary else self._folder

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _make_folder(self) -> Path:
        """Makes the folder of the data: the named folder, or a temporary folder until `stop()`."""
        if self._folder is not None:
            self._folder = self._folder.expanduser().resolve()
            try:
                (self._folder / "data").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ServerDidNotStart(
                    f"the folder {self._folder} for the data of MongoDB cannot be made: {error.strerror}"
                ) from None
            return self._folder
        if self._temporary is None:
            self._temporary = TemporaryFolder()
            (self._temporary.path / "data").mkdir()
            self._finish_with(None)
        return self._temporary.path

    def _finish_with(self, process: MongodProcess | None) -> None:
        """Registers the process to end at `stop()`, when the object is forgotten, or at the interpreter's exit."""
        if self._finish is not None:
            self._finish.detach()
        self._finish = weakref.finalize(self, _finish, process, self._temporary)

    def _reuse(self, folder: Path, deadline: float) -> ServerRecord | None:
        """The server that already runs in this folder, or None. Waits until it answers or has ended."""
        record = read_record(folder)
        while record is not None and record.running:
            if set_name := set_served(record.port, folder / "data"):
                self._require_set(set_name)
                self._process = None
                return record
            if time.monotonic() > deadline:
                why = f"A mongod (pid {record.pid}) runs in {folder} and does not answer; end it, start again."
                raise _did_not_start(folder, why)
            time.sleep(0.02)
        return None

    def _launch(self, folder: Path, deadline: float) -> ServerRecord:
        """Starts a mongod, at another port if the first is taken, and waits until it is writable."""
        binary = find_mongod(self._binary)
        for port in self._ports_to_try(folder):
            command = mongod_command(binary, folder / "data", port, self.replica_set, self._extra)
            try:
                self._process = process = MongodProcess(command, fresh_log(folder))
            except OSError:
                require_runnable(binary)
                raise
            self._finish_with(process)
            if self._comes_up(process, folder, port, deadline):
                self._port = port
                record = ServerRecord.of(process.pid, port)
                write_record(folder, record)
                return record
        taken = f"port {self._port} is" if self._port else "all the ports tried are"
        raise ServerDidNotStart(f"mongod cannot listen: {taken} taken. Name a free port, or none.")

    def _ports_to_try(self, folder: Path) -> Iterator[int]:
        if self._port is not None:
            return iter([self._port])
        last = read_record(folder)
        return iter([*([last.port] if last else []), *random.sample(PORTS, 20)])

    def _comes_up(self, process: MongodProcess, folder: Path, port: int, deadline: float) -> bool:
        """Waits until it is ready; False if the port is taken."""
        while not (listens(port) and self._is_ready(f"127.0.0.1:{port}", folder)):
            if process.wait(0.02):
                if process.exit_code == 48:  # the port is taken
                    return False
                require_runnable(find_mongod(self._binary))  # why it ended, if this machine cannot run it at all
                raise _did_not_start(folder, f"mongod ended with exit code {process.exit_code}.")
            if time.monotonic() > deadline:
                raise _did_not_start(folder, "mongod was not ready in time.")
        return True

    def _is_ready(self, address: str, folder: Path) -> bool:
        """Whether it is a writable primary. If not, takes the next step towards that."""
        try:
            with admin.connected(address, self._credentials) as connection:
                # Before any change: if our port is taken, another server answers.
                if admin.data_folder(connection) != str(folder / "data"):
                    return False
                return self._initiate(connection, address)
        except StoreError:
            return False  # still starting, or electing; asked again until it is in time or over

    def _initiate(self, connection: admin.Connection, address: str) -> bool:
        hello = admin.hello(connection)
        if hello.set_name is not None:
            return hello.writable_primary
        config = admin.replica_set_config(connection)
        if config is None:
            admin.initiate(connection, self.replica_set, address)
            return False
        self._require_set(config["_id"])
        if [member["host"] for member in config["members"]] != [address]:
            # The data were last served at another port; without this the node waits for itself forever.
            admin.reconfigure(connection, config, address)
        return False

    def _require_set(self, name: str) -> None:
        if name != self.replica_set:
            raise ServerDidNotStart(
                f"The data in {self.folder} are of replica set {name}, not {self.replica_set}. "
                f"Use that name, or another folder."
            )


def _did_not_start(folder: Path, why: str) -> ServerDidNotStart:
    return ServerDidNotStart(f"{why} Its last words:\n{last_words(folder / 'mongod.log')}")


def _finish(process: MongodProcess | None, temporary: TemporaryFolder | None) -> None:
    if process is not None and temporary is not None:
        process.kill()  # its data are not needed, and a clean end takes a second
    elif process is not None:
        process.terminate()
    if temporary is not None:
        temporary.remove()


def listens(port: int) -> bool:
    """Whether a server listens on this port; much quicker than a MongoDB client."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def set_served(port: int, data: Path) -> str | None:
    """The replica set whose member answers there, if it is the server of these data; else None."""
    try:
        with admin.connected(f"127.0.0.1:{port}") as connection:
            hello = admin.hello(connection)
            return hello.set_name if hello.member and admin.data_folder(connection) == str(data) else None
    except StoreError:
        return None
