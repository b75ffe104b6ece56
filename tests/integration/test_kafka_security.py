"""The Kafka connector on a broker with authentication and authorisation."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from access import PASSWORDS, WORKER
from broker import Broker
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_process import run_streamfl

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing, Polled, Step, Subscription, TopicSpec
from streamfl.testing.bus_laws.members import eventually

pytestmark = pytest.mark.broker

WRONG = "not-the-password"


def options(user: str, password: str) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


@pytest.fixture(name="admin")
def _admin(secured: Broker) -> Iterator[KafkaBus]:
    bus = KafkaBus(secured.url, secured.options)
    yield bus
    bus.close()


def allow(secured: Broker, kind: ResourceType, name: str, *operations: ACLOperation) -> None:
    """Grant the worker this right on every name with this prefix."""
    admin = KafkaAdminClient(bootstrap_servers=secured.address, **secured.options)
    pattern = ResourcePattern(kind, name, ACLResourcePatternType.PREFIXED)
    result = admin.create_acls(
        [ACL(f"User:{WORKER}", "*", one, ACLPermissionType.ALLOW, pattern) for one in operations]
    )
    admin.close()
    assert not result["failed"]


def test_a_wrong_password_is_a_configuration_error_that_does_not_show_it(
    secured: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the operator from 'no broker answers', which points to the network, and guards the password
    itself."""
    with pytest.raises(ConfigurationError, match="Authentication") as caught:
        KafkaBus(secured.url, {**options(WORKER, WRONG), "connect_timeout_seconds": 12})
    assert WRONG not in str(caught.value)
    assert WRONG not in caplog.text


def test_every_missing_right_is_named_and_with_all_of_them_a_session_works(
    secured: Broker, admin: KafkaBus
) -> None:
    """Guards the start under access control: the client itself polls nothing for ever, or only says that
    something was denied."""
    run = uuid.uuid4().hex[:12]
    samples, outputs, group = f"samples-{run}", f"outputs-{run}", f"group-{run}"
    admin.create([TopicSpec(samples, 1, False), TopicSpec(outputs, 1, False)])
    admin.write([Outgoing(samples, None, b"a")])
    worker = KafkaBus(secured.url, options(WORKER, PASSWORDS[WORKER]))
    subscription = Subscription(group, (samples,))
    step = Step({(samples, 0): 1}, [Outgoing(outputs, None, b"x")])
    try:
        with pytest.raises(ConfigurationError, match=rf"Read .* on topic '{samples}'"):
            worker.session(subscription)
        allow(secured, ResourceType.TOPIC, samples, ACLOperation.READ)
        with pytest.raises(
            ConfigurationError, match=rf"Write on transactional ids with the prefix '{group}:'"
        ):
            worker.session(subscription)
        allow(secured, ResourceType.TRANSACTIONAL_ID, f"{group}:", ACLOperation.WRITE)
        session = worker.session(subscription)
        with pytest.raises(ConfigurationError, match=rf"Read on group '{group}'"):
            _poll_record(session)
        session.close()
        with pytest.raises(ConfigurationError, match=rf"Read on group '{group}'"):
            worker.committed(group)
        allow(secured, ResourceType.GROUP, group, ACLOperation.READ)

        session = worker.session(subscription)
        _poll_record(session)
        with pytest.raises(ConfigurationError, match=rf"Write .* on topic '{outputs}'"):
            session.commit(step)
        allow(secured, ResourceType.TOPIC, outputs, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS)
        _poll_record(session)
        with pytest.raises(ConfigurationError, match=rf"Write .* on topic '{outputs}'"):
            session.commit(step)
        allow(secured, ResourceType.TOPIC, outputs, ACLOperation.WRITE)
        _poll_record(session)
        session.commit(step)
        # A commit is decided before all partitions have its marker.
        eventually(lambda: [record.value for record in admin.read(outputs)], [b"x"])
        assert session.committed(samples, 0) == 1
        session.close()
    finally:
        worker.close()


def test_only_the_input_that_may_not_be_read_any_more_is_named(secured: Broker, admin: KafkaBus) -> None:
    """Protects the operator of a worker with several inputs: the cluster refuses their offsets together and
    names none, so the worker named them all, also those whose rights were there."""
    run = uuid.uuid4().hex[:12]
    kept, taken, group = f"kept-{run}", f"taken-{run}", f"group-{run}"
    admin.create([TopicSpec(kept, 1, False), TopicSpec(taken, 1, False)])
    allow(secured, ResourceType.TOPIC, kept, ACLOperation.READ)
    allow(secured, ResourceType.TOPIC, taken, ACLOperation.READ)
    allow(secured, ResourceType.TRANSACTIONAL_ID, f"{group}:", ACLOperation.WRITE)
    allow(secured, ResourceType.GROUP, group, ACLOperation.READ)
    worker = KafkaBus(secured.url, options(WORKER, PASSWORDS[WORKER]))
    session = worker.session(Subscription(group, (kept, taken)))
    try:
        admin.write([Outgoing(kept, None, b"a"), Outgoing(taken, None, b"a")])
        _poll_record(session)
        one = ResourcePatternFilter(ResourceType.TOPIC, taken, ACLResourcePatternType.PREFIXED)
        client = KafkaAdminClient(bootstrap_servers=secured.address, **secured.options)
        anything = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, one)
        client.delete_acls([anything])
        while client.describe_acls(anything)[0]:
            time.sleep(0.05)
        client.close()
        with pytest.raises(ConfigurationError, match=rf"on topic '{taken}'") as caught:
            session.commit(Step({(kept, 0): 1, (taken, 0): 1}, []))
        assert kept not in str(caught.value)
    finally:
        session.close()
        worker.close()


SETTINGS = """
[federation]
name = "secured"
clients = 2
features = 2

[bus]
url = "{url}"
connect_timeout_seconds = 12

[bus.options]
security_protocol = "SASL_PLAINTEXT"
sasl_mechanism = "PLAIN"
sasl_plain_username = "admin"

[role]
kind = "pofmkl-server"
"""


@pytest.mark.parametrize(("password", "code"), [(WRONG, 2), (PASSWORDS["admin"], 4)])
def test_the_password_comes_from_the_environment_and_is_never_printed(
    secured: Broker, tmp_path: Path, password: str, code: int
) -> None:
    """Guards the secret: it need not be in the settings file, and no command shows it."""
    path = tmp_path / "server.toml"
    path.write_text(SETTINGS.format(url=secured.url))
    environment = {**os.environ, "STREAMFL_BUS__OPTIONS__SASL_PLAIN_PASSWORD": password}
    result = run_streamfl("check", path, env=environment)
    assert result.returncode == code, result.stdout + result.stderr
    assert password not in result.stdout + result.stderr
    assert ("does not exist" if code == 4 else "Authentication") in result.stdout


def _poll_record(session: Any) -> Polled:
    for _ in range(150):
        polled: Polled = session.poll(0.2, 10)
        if polled.records:
            return polled
    raise AssertionError("no record came")
