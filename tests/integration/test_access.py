"""The rights that ``streamfl topics`` prints, given to a role on a broker with access control, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from broker import Broker
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType
from streamfl_connectors.kafka import KafkaBus

from streamfl.runtime.bus import Outgoing

pytestmark = pytest.mark.broker

KINDS = {
    "vafl-party": (
        'parties = ["bank", "shop"]\nembedding_size = 1',
        '[party]\nname = "shop"\n[samples]\ntopic = "baskets"\nfeatures = ["x"]\n',
        "baskets",
    ),
    "pofmkl-client": ("clients = 2", '[samples]\ntopic = "readings"\nfeatures = ["x"]\nlabel = "y"\n', "readings"),
}
PASSWORDS = {"admin": "full-rights", **{kind: f"of-{kind}" for kind in KINDS}}
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PROPERTIES = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": (
        f'{LOGIN} username="admin" password="full-rights" '
        + " ".join(f'"user_{user}"="{password}"' for user, password in PASSWORDS.items())
        + ";"
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # The controller's listener, which no client uses, has no users.
    "super.users": "User:admin;User:ANONYMOUS",
}
OPERATIONS = {
    "Read": ACLOperation.READ,
    "Write": ACLOperation.WRITE,
    "Describe": ACLOperation.DESCRIBE,
    "DescribeConfigs": ACLOperation.DESCRIBE_CONFIGS,
}
RESOURCES = {"topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "transactional-id": ResourceType.TRANSACTIONAL_ID}
PATTERNS = {"literal": ACLResourcePatternType.LITERAL, "prefixed": ACLResourcePatternType.PREFIXED}
SETTINGS = """
[federation]
name = "{name}"
{federation}
[bus]
url = "{url}"
[bus.options]
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
[role]
kind = "{kind}"
"""


@pytest.fixture(name="secured", scope="module")
def _secured() -> Iterator[Broker]:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "admin",
        "sasl_plain_password": PASSWORDS["admin"],
    }
    with Broker(PROPERTIES, options) as broker:
        yield broker


@pytest.mark.parametrize("kind", KINDS)
def test_the_rights_that_are_printed_are_enough(secured: Broker, tmp_path: Path, kind: str) -> None:
    """Protects whoever grants just these rights: the role starts, reads, remembers, and puts a record that it cannot read aside."""
    federation, more, source = KINDS[kind]
    name = f"loans-{kind}"
    config = tmp_path / "role.toml"
    config.write_text(SETTINGS.format(name=name, federation=federation, url=secured.url, kind=kind) + more)

    def start(user: str, *arguments: str) -> subprocess.Popen[str]:
        login = {"SASL_PLAIN_USERNAME": user, "SASL_PLAIN_PASSWORD": PASSWORDS[user]}
        environment = {**os.environ, **{f"STREAMFL_BUS__OPTIONS__{key}": value for key, value in login.items()}}
        command = [sys.executable, "-m", "streamfl", arguments[0], str(config), *arguments[1:]]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    created = start("admin", "topics", "--create-inputs", "--principal", f"User:{kind}", "--format", "json")
    out, error = created.communicate(timeout=120)
    assert created.returncode == 0, error
    acls = [
        ACL(
            one["principal"],
            "*",
            OPERATIONS[operation],
            ACLPermissionType.ALLOW,
            ResourcePattern(RESOURCES[one["resource"]], one["name"], PATTERNS[one["pattern"]]),
        )
        for one in json.loads(out)["acls"]
        for operation in one["operations"]
    ]
    admin = KafkaAdminClient(bootstrap_servers=secured.address, **secured.options)
    assert not admin.create_acls(acls)["failed"]
    admin.close()
    own = f"{name}.shop" if kind == "vafl-party" else f"{name}.{kind}"
    dead_letters = f"{own if kind.startswith('vafl') else name}.dead-letters"
    with closing(KafkaBus(secured.url, secured.options)) as bus:
        bus.write([Outgoing(source.format(name=name), b"key", b"unreadable")])
        worker = start(kind, "run")
        try:
            deadline = time.monotonic() + 120
            while not (found := list(bus.read(dead_letters))) and worker.poll() is None and time.monotonic() < deadline:
                time.sleep(0.5)
            worker.send_signal(signal.SIGTERM)
            _, error = worker.communicate(timeout=60)
        finally:
            worker.kill()
        assert [record.value for record in found] == [b"unreadable"], error
        assert worker.returncode == 0, error
        assert list(bus.read(f"{own}.state"))
