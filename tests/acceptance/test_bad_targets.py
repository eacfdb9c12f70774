"""A MongoDB that is away, refuses, or is of the wrong kind: one clear sentence, what to do, exit code 4 (2 for what is
no address), and soon."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from recruiter import Recruiter
from recruiter.embedded import find_mongod
from recruiter.errors import InvalidTarget, NotAReplicaSet, StoreError, StoreRefused, StoreUnreachable
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.acceptance.test_command_line import run
from tests.applications import jobs
from tests.cli_here import here
from tests.conftest import eventually
from tests.guarded import PASSWORD, ROOT, GuardedServer

SOON = "serverSelectionTimeoutMS=300"
"""The silent server alone is waited for as long as a command does."""
SECRETS = (PASSWORD, ROOT.partition(":")[2], "hunter2")
COMMANDS = {
    "looking": ["worker", "list"],
    "controlling": ["group", "pause", "mail"],
    "one job": ["job", "show", "x"],
    "doctor": ["doctor"],
    "health": ["health", "--role", "worker"],
    "prepare": ["prepare"],
    "recruiter": ["start", "recruiter"],
    "worker": ["start", "worker"],
    "cleaner": ["start", "cleaner"],
    "all": ["start", "all"],
}
CASES = [("nobody there", name) for name in COMMANDS]
CASES += [(kind, name) for kind in ("wrong password", "no rights") for name in ("doctor", "worker")]


@dataclass(frozen=True)
class Bad:
    uri: str
    error: type[StoreError]
    words: tuple[str, ...]


@contextmanager
def mongod(folder: Path, *options: str) -> Iterator[str]:
    """Any mongod, for as long as the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "mongod.log"
    command = [str(find_mongod()), "--dbpath", str(folder), "--port", str(port), "--bind_ip", "127.0.0.1", *options]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--nounixsocket"], stdout=output, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: "Waiting for connections" in log.read_text())
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedServer]:
    server = GuardedServer(tmp_path_factory.mktemp("guarded"))
    store = Store(Target.parse(server.uri(ROOT)))
    store.prepare()
    store.close()
    yield server
    server.close()


@pytest.fixture(scope="module")
def not_mongodb() -> Iterator[str]:
    """Somebody who accepts, and says nothing."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        yield f"127.0.0.1:{silent.getsockname()[1]}"


KINDS = (
    *("nobody there", "no such host", "silent", "no such set", "standalone", "not initiated"),
    *("wrong password", "unknown user", "no user", "no rights"),
    *("no address", "no port", "unknown option", "unescaped", "other scheme"),
    *("no TLS there", "no authority", "no authority of a cluster", "a folder as authority", "a text as authority"),
)


@pytest.fixture(scope="module")
def bad(guarded: GuardedServer, not_mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Bad]]:
    guarded.user("nobody-much", {"role": "read", "db": "another"})
    with (
        mongod(tmp_path_factory.mktemp("standalone")) as standalone,
        mongod(tmp_path_factory.mktemp("ghost"), "--replSet", "rs0") as ghost,
    ):
        address = guarded.uri(None).partition("://")[2].partition("/")[0]
        dsn = "mongodb://ada:hunter2@"
        yield {
            "nobody there": Bad(
                f"{dsn}127.0.0.1:1/shop?{SOON}", StoreUnreachable, ("127.0.0.1:1", "refused", "--target")
            ),
            "no such host": Bad(
                f"{dsn}nowhere.invalid/shop?{SOON}", StoreUnreachable, ("nowhere.invalid", "correct the name")
            ),
            "silent": Bad(f"mongodb://{not_mongodb}/shop", StoreUnreachable, ("does not answer", "is it running")),
            "no such set": Bad(
                f"mongodb://{standalone}/shop?replicaSet=rs7&{SOON}", StoreUnreachable, ('"rs7"', "correct replicaSet=")
            ),
            "standalone": Bad(f"mongodb://{standalone}/shop", NotAReplicaSet, ("--replSet rs0", "rs.initiate()")),
            "not initiated": Bad(f"mongodb://{ghost}/shop", NotAReplicaSet, ("not been initiated", "rs.initiate()")),
            "wrong password": Bad(guarded.uri("root:hunter2"), StoreRefused, ("Authentication failed", "password")),
            "unknown user": Bad(guarded.uri("bob:hunter2"), StoreRefused, ("Authentication failed", "authSource=")),
            "no user": Bad(guarded.uri(None), StoreRefused, ("requires authentication", "USER:PASSWORD")),
            "no rights": Bad(
                guarded.uri(f"nobody-much:{PASSWORD}"), StoreRefused, ("this user", "Users and roles in MongoDB")
            ),
            "no address": Bad("mongodb://", InvalidTarget, ("cannot understand", "127.0.0.1:27017")),
            "no port": Bad("mongodb://127.0.0.1:seven/shop", InvalidTarget, ("cannot understand", "Port")),
            "unknown option": Bad(f"mongodb://{address}/shop?colour=red", InvalidTarget, ("colour",)),
            "unescaped": Bad(f"mongodb://ada:hunter2@7@{address}/shop", InvalidTarget, ("cannot understand",)),
            "no TLS there": Bad(
                f"mongodb://{standalone}/shop?tls=true&{SOON}",
                StoreUnreachable,
                ("does not speak TLS", "write tls=false"),
            ),
            "no authority": Bad(
                f"mongodb://{address}/shop?tls=true&tlsCAFile=/no/such.pem",
                InvalidTarget,
                ("No such file", "'/no/such.pem'", "tlsCAFile= must name", "correct the path"),
            ),
            "no authority of a cluster": Bad(
                "mongodb+srv://nowhere.invalid/shop?tlsCAFile=/no/such.pem",
                InvalidTarget,
                ("No such file", "'/no/such.pem'", "correct the path"),
            ),
            "a folder as authority": Bad(
                f"mongodb://{address}/shop?tls=true&tlsCAFile={quote_plus(str(Path(__file__).parent))}",
                InvalidTarget,
                ("Is a directory", "tlsCAFile= must name"),
            ),
            "a text as authority": Bad(
                f"mongodb://{address}/shop?tls=true&tlsCAFile={quote_plus(__file__)}",
                InvalidTarget,
                ("tlsCAFile= must name the PEM file", Path(__file__).name),
            ),
            "other scheme": Bad("postgres://ada:hunter2@db/shop", InvalidTarget, ("mongodb://",)),
        }


def check_said(said: str, bad: Bad) -> None:
    assert [word for word in bad.words if word not in said] == [], said
    assert "Traceback" not in said
    assert [secret for secret in SECRETS if secret in said] == []


class TestCommands:
    """Every kind of command on one kind of trouble, and every kind of trouble with one command."""

    @pytest.mark.parametrize(("kind", "command"), CASES)
    def test_every_command_names_the_trouble_and_exits_with_4(
        self, kind: str, command: str, bad: dict[str, Bad], tmp_path: Path
    ) -> None:
        words, uri = COMMANDS[command], bad[kind].uri
        code, said = run(*words, RECRUITER_TARGET=uri, cwd=tmp_path) if words[0] == "start" else here(uri, *words)

        assert code == 4, said
        check_said(said, bad[kind])

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_trouble_is_named_in_time(self, kind: str, bad: dict[str, Bad]) -> None:
        began = time.monotonic()
        code, said = here(bad[kind].uri, "worker", "list")

        assert time.monotonic() - began < 25.0, "the driver waits for thirty seconds"

        assert code == (2 if bad[kind].error is InvalidTarget else 4), said
        assert len(said.strip().splitlines()) <= 3, said
        check_said(said, bad[kind])

    @pytest.mark.parametrize("kind", ["no port", "no authority", "a text as authority"])
    def test_a_worker_that_asks_its_application_for_the_address(
        self, kind: str, bad: dict[str, Bad], tmp_path: Path
    ) -> None:
        """The process that loads the application says what is wrong with the address; the application is not blamed."""
        code, said = run("start", "worker", "--bootstrap", jobs.__file__, RECRUITER_TARGET=bad[kind].uri, cwd=tmp_path)

        assert code == 2, said
        assert len(said.strip().splitlines()) <= 3, said
        check_said(said, bad[kind])

    @pytest.mark.parametrize("kind", ["nobody there", "standalone"])
    def test_a_probe_for_liveness_blames_no_process_for_mongodb(self, kind: str, bad: dict[str, Bad]) -> None:
        assert here(bad[kind].uri, "health", "--role", "worker")[0] == 4
        assert here(bad[kind].uri, "health", "--role", "worker", "--live")[0] == 0


class TestPython:
    @pytest.mark.parametrize("kind", ["nobody there", "standalone", "wrong password", "no rights", "no authority"])
    def test_each_class_of_error_says_the_same(self, kind: str, bad: dict[str, Bad]) -> None:
        with Recruiter(bad[kind].uri) as recruiter:
            recruiter.patience = 2.0
            with pytest.raises(bad[kind].error) as raised:
                recruiter.find("x")

        check_said(str(raised.value), bad[kind])
        check_said(f"{raised.value!r} {' '.join(bad[kind].words)}", bad[kind])


@pytest.mark.parametrize(
    ("program", "action", "collection"),
    [
        ("worker", "insert", "recruiter.roster"),
        ("recruiter", "remove", "recruiter.scheduled"),
        ("cleaner", "update", "recruiter.archived"),
    ],
)
def test_a_process_that_lacks_one_privilege_does_not_even_begin(
    guarded: GuardedServer, tmp_path: Path, program: str, action: str, collection: str
) -> None:
    """Better one sentence at the start than a job that cannot be settled."""
    actions = {"find", "insert", "update", "remove"}
    privileges = [{"resource": {"db": "shop", "collection": ""}, "actions": ["listCollections", "listIndexes"]}]
    privileges += [
        {
            "resource": {"db": "shop", "collection": each},
            "actions": sorted(actions - {action} if each == collection else actions),
        }
        for each in Store(Target.parse("nowhere")).collections()
    ]
    guarded.role({"role": "almost", "privileges": privileges, "roles": []})
    target = guarded.uri(guarded.user("almost", "almost"))

    code, said = run("start", program, RECRUITER_TARGET=target, cwd=tmp_path)

    assert code == 4, said
    assert f"{action} on shop.{collection}" in said
    assert "Users and roles in MongoDB" in said
    assert "Traceback" not in said
