"""The files of ``deploy/security``, as far as they need no broker.
``tests/integration/test_secure_broker.py`` runs them on one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.runtime.bus import BusUnavailable, connect
from streamfl.runtime.kinds import find_kind

SECURITY = Path(__file__).parents[2] / "deploy" / "security"
FILES = sorted(SECURITY.glob("**/*.toml"))
# The variable for the secret that each file's first lines name.
HIDDEN = re.compile(r"STREAMFL_BUS__OPTIONS__(\w+)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SECURITY)))
def test_a_file_loads_and_its_client_library_takes_its_options(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects the first start, also with clusters that cannot be tested here: streamfl and the library know
    every key."""
    text = path.read_text(encoding="utf-8")
    settings = load_settings(path, find_kind(load_kind(path)).settings)
    bus = tomllib.loads(text)["bus"]
    assert settings.bus.url == bus["url"]
    options = dict(bus["options"])
    options |= {name.lower(): "a-secret" for name in HIDDEN.findall(text)}
    for name in [name for name in options if re.search(r"ca_?file|certfile|keyfile|location", name)]:
        # Certificates are made when they are needed.
        del options[name]
    if (endpoint := next((name for name in options if "endpoint" in name), None)) is not None:
        options[endpoint] = "http://127.0.0.1:1/token"
    for name, value in {
        "REGION": "eu-central-1",
        "ACCESS_KEY_ID": "an-id",
        "SECRET_ACCESS_KEY": "a-key",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    scheme = bus["url"].partition(":")[0]
    with pytest.raises(BusUnavailable):
        connect(f"{scheme}://127.0.0.1:1", {**options, "connect_timeout_seconds": 0.2})


def test_no_secret_is_in_a_file() -> None:
    """Protects the secrets of users who copy the files: secrets come from the environment."""
    for path in FILES:
        options = tomllib.loads(path.read_text(encoding="utf-8"))["bus"]["options"]
        assert not [name for name in options if re.search(r"password|secret", name)], path


def test_the_broker_checks_tokens_for_certain() -> None:
    """Protects every topic behind the token listener: without this line Kafka 4.1 does not check who signed a
    token."""
    lines = (SECURITY / "broker.properties").read_text(encoding="utf-8").splitlines()
    validator = "org.apache.kafka.common.security.oauthbearer.BrokerJwtValidator"
    assert f"sasl.oauthbearer.jwt.validator.class={validator}" in lines
    assert "allow.everyone.if.no.acl.found=false" in lines
