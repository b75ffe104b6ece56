"""A broker with access control. A role has exactly the rights that ``streamfl topics`` prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from broker import Broker
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourceType,
)
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Outgoing

# Two users without rights at first. WORKER gets its rights by hand, MEMBER gets the printed ones.
WORKER, MEMBER = "worker", "member"
PASSWORDS = {"admin": "full-rights", WORKER: "few-rights", MEMBER: "printed-rights"}
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
    # The controller's listener has no users; clients do not use it.
    "super.users": "User:admin;User:ANONYMOUS",
}
OPERATIONS = {
    "Read": ACLOperation.READ,
    "Write": ACLOperation.WRITE,
    "Describe": ACLOperation.DESCRIBE,
    "DescribeConfigs": ACLOperation.DESCRIBE_CONFIGS,
}
RESOURCES = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
PATTERNS = {"literal": ACLResourcePatternType.LITERAL, "prefixed": ACLResourcePatternType.PREFIXED}


@dataclass(frozen=True)
class Secured:
    """A role to test.

    kind, federation, more: its kind, its keys in ``[federation]``, and further sections.
    source, state, dead_letters: its input, and its own topics without the federation's name.
    """

    kind: str
    federation: str
    more: str
    source: str
    state: str
    dead_letters: str


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


def secured_broker() -> Broker:
    """A broker that is not started yet, with an administrator and two users without rights."""
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "admin",
        "sasl_plain_password": PASSWORDS["admin"],
    }
    return Broker(PROPERTIES, options)


def check_printed_rights_are_enough(secured: Broker, folder: Path, role: Secured) -> None:
    """With only the printed rights the role starts, reads, writes its state, and writes a dead letter for an
    unreadable record."""
    # Each kind has its own name, so that rights to a prefix do not cover another test.
    name = f"loans-{role.kind}"
    config = folder / "role.toml"
    config.write_text(
        SETTINGS.format(name=name, federation=role.federation, url=secured.url, kind=role.kind) + role.more
    )

    def start(user: str, *arguments: str) -> subprocess.Popen[str]:
        login = {"SASL_PLAIN_USERNAME": user, "SASL_PLAIN_PASSWORD": PASSWORDS[user]}
        environment = {
            **os.environ,
            **{f"STREAMFL_BUS__OPTIONS__{key}": value for key, value in login.items()},
        }
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return start_streamfl(arguments[0], config, *arguments[1:], env=environment, **streams)

    created = start("admin", "topics", "--create-inputs", "--principal", f"User:{MEMBER}", "--format", "json")
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
    dead_letters = f"{name}.{role.dead_letters}"
    with closing(KafkaBus(secured.url, secured.options)) as bus:
        bus.write([Outgoing(role.source, b"key", b"unreadable")])
        worker = start(MEMBER, "run")
        try:
            deadline = time.monotonic() + 120
            while (
                not (found := list(bus.read(dead_letters)))
                and worker.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.5)
            worker.send_signal(signal.SIGTERM)
            _, error = worker.communicate(timeout=60)
        finally:
            worker.kill()
        assert [record.value for record in found] == [b"unreadable"], error
        assert worker.returncode == 0, error
        assert list(bus.read(f"{name}.{role.state}"))
