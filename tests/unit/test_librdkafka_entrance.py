"""librdkafka's connector makes its admin calls with kafka-python, which must connect with the same
options."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import streamfl_connectors.librdkafka
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.entrance import entrance

from streamfl.contract.role import ConfigurationError


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder)
    return folder


def make_certificate(folder: Path) -> None:
    """A certificate and its encrypted key."""
    folder.mkdir(exist_ok=True)
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
        "-subj",
        "/CN=h",
    ]
    command += ["-passout", "pass:hush", "-keyout", str(folder / "key.pem"), "-out", str(folder / "own.pem")]
    subprocess.run(command, check=True, capture_output=True)


def test_no_admin_call_of_librdkafka_is_left() -> None:
    """Protects workers from librdkafka's admin client, which ends the process when its broker goes away."""
    folder = Path(streamfl_connectors.librdkafka.__file__).parent
    assert [path.name for path in folder.glob("*.py") if "confluent_kafka.admin" in path.read_text()] == []


def test_a_login_has_kafka_pythons_names() -> None:
    """Protects logins by name, by Kerberos and by token, however the options are spelt."""
    options = {
        "security_protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl_password": "b",
    }
    assert entrance(options) == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "a",
        "sasl_plain_password": "b",
    }
    assert entrance({"sasl.kerberos.service.name": "broker"}) == {"sasl_kerberos_service_name": "broker"}


@pytest.mark.parametrize("as_text", [False, True])
def test_certificates_are_taken_from_files_and_from_texts(folder: Path, as_text: bool) -> None:
    """Protects users who give librdkafka certificates, and an encrypted key, as texts: Python needs files."""
    own, key = folder / "own.pem", folder / "key.pem"
    if as_text:
        options = {
            "ssl.ca.pem": own.read_text(),
            "ssl.certificate.pem": own.read_text(),
            "ssl.key.pem": key.read_text(),
        }
    else:
        options = {
            "ssl.ca.location": str(own),
            "ssl.certificate.location": str(own),
            "ssl.key.location": str(key),
        }
    context = entrance({"security.protocol": "ssl", "ssl.key.password": "hush", **options})["ssl_context"]
    assert [found["subject"] for found in context.get_ca_certs()] == [((("commonName", "h"),),)]
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)
    with pytest.raises(ConfigurationError, match="certificates and keys"):
        entrance({"security.protocol": "ssl", "ssl.key.password": "wrong", **options})


def test_what_is_not_to_be_verified_is_not() -> None:
    """Protects both settings of verification: where it is off, kafka-python must connect too; where it is on,
    it stays on."""
    named = entrance({"security.protocol": "ssl", "ssl.endpoint.identification.algorithm": "none"})[
        "ssl_context"
    ]
    assert (named.check_hostname, named.verify_mode) == (False, ssl.CERT_REQUIRED)
    unverified = entrance({"security.protocol": "ssl", "enable.ssl.certificate.verification": False})[
        "ssl_context"
    ]
    assert (unverified.check_hostname, unverified.verify_mode) == (False, ssl.CERT_NONE)
    assert "ssl_context" not in entrance({"security.protocol": "plaintext", "ssl.ca.location": "x"})


def test_renewed_files_are_noticed_once_they_fit_together(folder: Path, tmp_path: Path) -> None:
    """Protects a worker whose certificate is renewed before it ends: the library would connect with the old
    one for ever. While only one of two files is renewed it goes on as it is."""
    files = {"ssl.certificate.location": tmp_path / "own.pem", "ssl.key.location": tmp_path / "key.pem"}
    for place in files.values():
        shutil.copy(folder / place.name, place)
    options = {
        "security.protocol": "ssl",
        "ssl.key.password": "hush",
        "ssl.ca.location": str(folder / "own.pem"),
    }
    cluster = LibrdkafkaCluster(["h:1"], {**options, **{name: str(place) for name, place in files.items()}})
    before = cluster.tls_files()
    assert not cluster.renewed(before)
    make_certificate(tmp_path / "later")
    for number, place in enumerate(files.values()):
        (tmp_path / "later" / place.name).replace(place)
        assert cluster.renewed(before) is (number == 1)
