"""A registry with TLS that requires a client certificate."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from registry import FakeRegistry, serving
from streamfl_connectors.registry import Registry

from streamfl.contract.role import ConfigurationError, NotYetReadable
from streamfl.records.topic import RegistrySection

NUMBER = {"type": "record", "name": "N", "fields": [{"name": "x", "type": "double"}]}


def certify(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    """A self-signed certificate and its key."""
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-days",
        "1",
    ]
    command += [
        "-subj",
        f"/CN={name}",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *(more or ["-noenc"])], check=True, capture_output=True)
    return certificate, key


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("server", "client", "stranger"):
        certify(folder, name)
    certify(folder, "locked", "-passout", "pass:secret")
    return folder


@pytest.fixture(name="served")
def _served(folder: Path) -> Iterator[FakeRegistry]:
    """A registry that only accepts the client with the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "client.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with serving(context=context) as registry:
        yield registry


def asked_by(served: FakeRegistry, folder: Path, name: str | None, authority: str = "server") -> Registry:
    files = (
        {}
        if name is None
        else {"certificate_file": str(folder / f"{name}.pem"), "key_file": str(folder / f"{name}.key")}
    )
    return Registry(
        RegistrySection(url=served.url, ca_file=str(folder / f"{authority}.pem"), timeout_seconds=10, **files)
    )


def test_a_clients_certificate_lets_it_in(served: FakeRegistry, folder: Path) -> None:
    """Protects federations whose registry requires mutual TLS, and schemas from clients without the right
    certificate."""
    number = served.add(NUMBER)
    assert asked_by(served, folder, "client").schema(number).kind == "AVRO"
    for name in (None, "stranger"):
        with pytest.raises(NotYetReadable, match=r"https://.* cannot be asked"):
            asked_by(served, folder, name).schema(number)
    with pytest.raises(NotYetReadable, match="CERTIFICATE_VERIFY_FAILED"):
        asked_by(served, folder, "client", authority="stranger").schema(number)
    assert served.asked == [f"/schemas/ids/{number}"]


def test_a_certificate_is_changed_while_the_worker_runs(
    served: FakeRegistry, folder: Path, tmp_path: Path
) -> None:
    """Protects a worker that outlives its certificate: the current files are used."""
    for kind in ("pem", "key"):
        shutil.copy(folder / f"stranger.{kind}", tmp_path / f"own.{kind}")
    shutil.copy(folder / "server.pem", tmp_path)
    now = [0.0]
    section = RegistrySection(
        url=served.url,
        ca_file=str(tmp_path / "server.pem"),
        certificate_file=str(tmp_path / "own.pem"),
        key_file=str(tmp_path / "own.key"),
    )
    registry, number = Registry(section, clock=lambda: now[0]), served.add(NUMBER)
    with pytest.raises(NotYetReadable):
        registry.schema(number)
    shutil.copy(folder / "client.pem", tmp_path / "own.pem")
    now[0] = 2.0
    with pytest.raises(NotYetReadable, match="cannot be used"):
        # Certificate and key do not match: they are being replaced.
        registry.schema(number)
    shutil.copy(folder / "client.key", tmp_path / "own.key")
    now[0] = 4.0
    assert registry.schema(number).kind == "AVRO"


def test_what_cannot_be_used_is_told_at_the_start(served: FakeRegistry, folder: Path) -> None:
    """Protects the setup: no passphrase prompt appears at a terminal that nobody sees."""
    for name, text in (("locked", "one without a passphrase is expected"), ("none", "No such file")):
        with pytest.raises(ConfigurationError, match=text):
            asked_by(served, folder, name)
