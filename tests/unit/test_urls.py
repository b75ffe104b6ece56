"""A password in the URL of a bus is refused and never printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import Command
from pydantic import ValidationError
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.librdkafka import connect as connect_librdkafka

from streamfl.configuration.settings import BusSection
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import connect

SECRET = "hunter2pass"
CONFIG = """
[federation]
name = "plant"
clients = 4
{bus}
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = ["x"]
"""
URLS = [
    f"kafka://user:{SECRET}@127.0.0.1:1",
    f"kafka://{SECRET}@127.0.0.1:1",
    f"kafka://{SECRET}%40127.0.0.1:1",
    f"kafka+librdkafka://user:{SECRET}@127.0.0.1:1",
    f"kafka://user:{SECRET}@@/127.0.0.1:1,two:2",
    f"kafka://user:a/{SECRET}@127.0.0.1:1",
    f"kafka://127.0.0.1:1?sasl_plain_password={SECRET}",
    f"kafka://127.0.0.1:1,user:{SECRET}",
    f"kafka+librdkafka://127.0.0.1:{SECRET}",
    f"sqlite://user:{SECRET}@plant.db",
    f"memory://user:{SECRET}@x",
    f"nats://user:{SECRET}@127.0.0.1:1",
    f"Kafka://user:{SECRET}@127.0.0.1:1",
    f"user:{SECRET}@127.0.0.1:1",
]


@pytest.mark.parametrize(
    ("url", "way"), [*((url, "file") for url in URLS), (URLS[0], "environment"), (URLS[-1], "environment")]
)
def test_a_password_in_the_url_is_refused_and_never_printed(
    url: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects the password: no command accepts it, and none shows it, whatever else is wrong with the
    URL."""
    config = tmp_path / "client.toml"
    config.write_text(CONFIG.format(bus=f"[bus]\nurl = {json.dumps(url)}" if way == "file" else ""))
    if way == "environment":
        monkeypatch.setenv("STREAMFL_BUS__URL", url)
    for name, *more in (("run",), ("check", "--format", "json"), ("topics",)):
        code, out, error = command(name, config, *more)
        assert code == 2
        assert "bus.url" in out + error
        assert SECRET not in out + error
    assert not list(tmp_path.glob("*.db"))


@pytest.mark.parametrize(
    "bus",
    [
        f'bus = "kafka://user:{SECRET}@host:9092"',
        f'[bus]\nurl = ["kafka://user:{SECRET}@host:9092"]',
        f'[bus]\noptions = "sasl_plain_password={SECRET}"',
        f'[bus]\ngroup = ["kafka://user:{SECRET}@host:9092"]',
        f'[bus]\npassword = "{SECRET}"',
        f'[bus]\nurl = "kafka://127.0.0.1:1"\n[bus.options]\nsasl_plain_pasword = "{SECRET}"',
        f'[bus]\nurl = "kafka+librdkafka://127.0.0.1:1"\n[bus.options]\n"security.protocol" = "{SECRET}"',
        f'[bus]\nurl = "sqlite:///tmp/x.db"\n[bus.options]\nmember_timeout_seconds = "{SECRET}"',
    ],
)
def test_a_password_in_the_wrong_place_is_not_printed_either(
    bus: str, tmp_path: Path, command: Command
) -> None:
    """Protects the password of somebody who still looks for the right place for it."""
    config = tmp_path / "client.toml"
    text = CONFIG.format(bus="" if bus.startswith("bus") else bus)
    config.write_text(f"{bus}\n{text}" if bus.startswith("bus") else text)
    code, out, error = command("check", config, "--format", "json")
    assert code == 2
    assert "bus" in out + error
    assert SECRET not in out + error


def test_what_to_do_instead_is_said() -> None:
    """Protects the operator's time: the refusal names the options and the variable for a password."""
    with pytest.raises(
        ConfigurationError, match=r"sasl_plain_password .* sasl\.password .* STREAMFL_BUS__OPTIONS__"
    ) as refused:
        connect(URLS[0])
    assert SECRET not in str(refused.value)
    for refusing in (
        lambda: KafkaBus(URLS[0]),
        lambda: connect_librdkafka(URLS[2], {}),
        lambda: BusSection(url=URLS[0]),
    ):
        with pytest.raises((ConfigurationError, ValidationError)) as hidden:
            refusing()
        assert SECRET not in str(hidden.value)


def test_a_path_may_have_an_at_sign(tmp_path: Path) -> None:
    """Protects files: without a host an @ is no sign of a secret."""
    connect(f"sqlite://{tmp_path}/a@b.db").close()
    assert (tmp_path / "a@b.db").is_file()
