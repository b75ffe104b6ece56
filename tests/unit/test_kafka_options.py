"""Options that kafka-python only checks when it talks to a broker, with errors that look like an outage."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.options import PACKAGES, check_options

from streamfl.contract.role import ConfigurationError

SECRET = "2-7-1-8"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sasl_mechanism": "FOO"}, "sasl_mechanism: .*PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512 is expected"),
        ({"sasl_mechanism": "plain"}, "sasl_mechanism: .* is expected"),
        # The library raises a TypeError when it connects.
        ({"ssl_crlfile": "revoked.pem"}, "ssl_crlfile cannot be set: .*ssl.crl.location"),
        # The settings of a role are librdkafka's, and the environment says kafka://.
        ({"security.protocol": "ssl"}, r"security\.protocol is librdkafka's name: .*kafka\+librdkafka://"),
        ({"sasl_mechanism": ["PLAIN"]}, "sasl_mechanism: .* is expected"),
        ({"security_protocol": "SASL_SSL"}, "'SASL_SSL' needs sasl_mechanism"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "a"},
            "needs sasl_plain_password$",
        ),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"},
            "username and sasl_plain_password$",
        ),
        (
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-256",
                "sasl_plain_password": SECRET,
            },
            "username$",
        ),
    ],
)
def test_a_login_that_cannot_be_is_told_before_a_broker_is_asked(
    options: dict[str, Any], message: str
) -> None:
    """Protects the first start: a mistyped mechanism, or a password missing from the environment, is a
    configuration error (exit code 2), not a broker that does not answer (3).
    """
    with pytest.raises(ConfigurationError, match=message) as caught:
        KafkaCluster("kafka://h:1", options)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("mechanism", PACKAGES)
def test_a_mechanism_that_needs_a_package_names_it(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects logins by Kerberos or IAM: the missing package is named."""
    monkeypatch.setattr("streamfl_connectors.kafka.options.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=f"pip install {PACKAGES[mechanism]}"):
        check_options({"security_protocol": "SASL_SSL", "sasl_mechanism": mechanism})


def test_a_whole_login_is_taken() -> None:
    """Protects correct settings from the checks."""
    login = {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "a", "sasl_plain_password": SECRET}
    check_options({"security_protocol": "SASL_SSL", **login})
    check_options({"security_protocol": "PLAINTEXT", "sasl_mechanism": None})


def test_a_certificate_that_cannot_be_used_is_told_before_a_broker_is_asked(tmp_path: Path) -> None:
    """Protects who renews a certificate: a key that is not the certificate's, or a file that is none, is a
    configuration error (exit code 2). The library says for half a minute that no broker answers (3)."""
    for name in ("one", "other"):
        own = ["-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / f"{name}.pem")]
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", "/CN=h"]
        subprocess.run(["openssl", "req", "-x509", *kind, *own], check=True, capture_output=True)
    (tmp_path / "none").write_text("hello")

    def said(**files: str) -> str:
        with pytest.raises(ConfigurationError) as caught:
            KafkaCluster(
                "kafka://h:1",
                {"security_protocol": "SSL", **{name: str(tmp_path / file) for name, file in files.items()}},
            )
        return str(caught.value)

    assert "ssl_certfile and ssl_keyfile: " in said(ssl_certfile="one.pem", ssl_keyfile="other.key")
    assert "ssl_certfile and ssl_keyfile: " in said(ssl_certfile="none", ssl_keyfile="one.key")
    assert "ssl_certfile: " in said(ssl_certfile="one.pem")
    assert "ssl_cafile: " in said(ssl_cafile="none")
    files = {
        name: str(tmp_path / f"one.{end}") for name, end in (("ssl_certfile", "pem"), ("ssl_keyfile", "key"))
    }
    KafkaCluster("kafka://h:1", {"security_protocol": "SSL", "ssl_cafile": files["ssl_certfile"], **files})
