"""TLS with a private certificate authority, and X.509: a real mongod with a certificate of its own. SCRAM is in
tests/acceptance/test_roles.py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_plus

import pytest

from recruiter import Recruiter, StoreUnreachable
from recruiter.embedded import EmbeddedServer
from recruiter.store.connection import Target
from recruiter.store.database import Store
from tests.applications import jobs
from tests.conftest import Starter

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs openssl")


@dataclass(frozen=True)
class Secured:
    """A MongoDB with TLS, and who may be trusted."""

    server: EmbeddedServer
    folder: Path

    def uri(self, **options: str) -> str:
        told = "".join(f"&{name}={quote_plus(value)}" for name, value in {"tls": "true", **options}.items())
        return self.server.uri.replace("/?", "/tls?") + told

    @property
    def authority(self) -> str:
        return str(self.folder / "ca.crt")

    @property
    def client(self) -> str:
        return str(self.folder / "client.pem")


def openssl(folder: Path, *arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], cwd=folder, check=True, capture_output=True)


def certificate(folder: Path, name: str, subject: str, extension: str) -> None:
    """One that our authority has signed, with its key, in NAME.pem."""
    (folder / f"{name}.ext").write_text(extension)
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")
    openssl(folder, "req", *key, "-out", f"{name}.csr", "-subj", subject)
    signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed_by, "-extfile", f"{name}.ext", "-out", f"{name}.crt")
    (folder / f"{name}.pem").write_text((folder / f"{name}.crt").read_text() + (folder / f"{name}.key").read_text())


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    subject = ("-subj", "/O=Shop/CN=Private authority")
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", *subject)
    certificate(folder, "server", "/O=Shop/OU=servers/CN=127.0.0.1", "subjectAltName=IP:127.0.0.1")
    certificate(folder, "client", "/O=Shop/OU=fleet/CN=worker", "extendedKeyUsage=clientAuth")
    options = ("--tlsCertificateKeyFile", str(folder / "server.pem"), "--tlsCAFile", str(folder / "ca.crt"))
    # It also answers without TLS: that is how the private server becomes a replica set.
    extra = ("--tlsMode", "allowTLS", *options, "--tlsAllowConnectionsWithoutCertificates")
    with EmbeddedServer(extra=extra) as server:
        yield Secured(server, folder)


def refusal(uri: str) -> str:
    with closing(Store(Target.parse(uri), patience=2)) as store, pytest.raises(StoreUnreachable) as refused:
        store.check()
    return str(refused.value)


def test_a_server_of_an_unknown_authority_is_refused(secured: Secured) -> None:
    told = refusal(secured.uri())

    assert "certificate verify failed" in told
    assert "name the PEM file of the authority with tlsCAFile=" in told


def test_a_server_whose_certificate_is_for_another_host_is_refused(secured: Secured) -> None:
    elsewhere = secured.uri(tlsCAFile=secured.authority, directConnection="true").replace("127.0.0.1", "localhost")

    told = refusal(elsewhere.replace("replicaSet=recruiter&", ""))

    assert "the certificate of the server is for another host" in told


def test_an_address_without_tls_of_a_server_that_wants_it(secured: Secured) -> None:
    # given a server that accepts TLS only
    own = ("--tlsCertificateKeyFile", str(secured.folder / "server.pem"), "--tlsCAFile", secured.authority)
    with EmbeddedServer(extra=("--tlsMode", "allowTLS", *own)) as server:
        strict = Secured(server, secured.folder)
        shown = strict.uri(tlsCAFile=secured.authority, tlsCertificateKeyFile=secured.client)
        with closing(Store(Target.parse(shown))) as store:
            for mode in ("preferTLS", "requireTLS"):
                store.client.admin.command({"setParameter": 1, "tlsMode": mode})

        # when the address says nothing of TLS, or has no certificate to show, then that is the advice
        assert "if the server accepts TLS only, write tls=true" in refusal(server.uri)
        assert "tlsCertificateKeyFile=" in refusal(strict.uri(tlsCAFile=secured.authority))


def test_a_fleet_works_over_tls_with_a_private_authority(secured: Secured, start: Starter) -> None:
    # given a worker and a producer who know the authority
    uri = secured.uri(tlsCAFile=secured.authority)
    start("start", "all", "--bootstrap", jobs.__file__, RECRUITER_TARGET=uri).says("joined the roster")

    with Recruiter(uri) as recruiter:
        job = recruiter.job("add", {"a": 1, "b": 2}).enqueue()
        assert job.result(timeout="60s") == 3


def test_a_certificate_is_a_user(secured: Secured) -> None:
    # given a user of MongoDB who is known by a certificate
    name = "CN=worker,OU=fleet,O=Shop"
    with closing(Store(Target.parse(secured.server.uri))) as store:
        roles = [{"role": "readWrite", "db": "tls"}]
        store.client["$external"].command("createUser", name, roles=roles)

    # when a producer signs in with it, then MongoDB knows who it is, and the job is stored
    shown = {"tlsCAFile": secured.authority, "tlsCertificateKeyFile": secured.client}
    with Recruiter(secured.uri(**shown, authMechanism="MONGODB-X509", authSource="$external")) as recruiter:
        told = recruiter.store.client.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
        assert told == [{"user": name, "db": "$external"}]
        assert recruiter.find(recruiter.job("anything", {}).enqueue().id).task == "anything"
