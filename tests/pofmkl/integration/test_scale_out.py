"""Processes that come and go while samples flow, of clients and of the sharded server, on a real broker."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from pofmkl.integration.test_federation import CLIENTS, Deployment, check_predictions

from streamfl.pofmkl.messages import MARKER_KEY, SHARD_VERSION
from streamfl.runtime.bus import Bus, Outgoing, Session, Step, connect
from streamfl.testing.bus_laws.members import Owned, joined, new_topic

PARTITIONS, SHARDS = 4, 4
ROWS = 800
SECONDS = 60.0


@pytest.fixture
def deployment(tmp_path: Path, broker: Broker) -> Iterator[Deployment]:
    """Like the federation's, with a server of several shards and samples on several partitions."""
    made = Deployment(tmp_path, f"kafka://{broker.address}", *stream(), "default")
    text = made.configuration.read_text()
    made.configuration.write_text(text.replace("[federation]\n", f"[federation]\nshards = {SHARDS}\n"))
    make_topics(made.configuration, PARTITIONS)
    make_topics(made.configuration, kind="pofmkl-server")
    yield made
    made.stop()


def stream() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(ROWS, 5))
    return inputs, np.sin(inputs[:, 0]) + 0.5 * inputs[:, 1]


def versions(bus: Bus, name: str) -> dict[int, tuple[int, int]]:
    """Each shard's newest version and the uploads that it is made of."""
    markers = [
        SHARD_VERSION.decode(record.value) for record in bus.read(f"{name}.model") if record.key == MARKER_KEY
    ]
    return {
        marker.shard: (marker.model_version, marker.updates)
        for marker in sorted(markers, key=lambda one: one.model_version)
    }


def check_outcome(
    found: list[dict[str, Any]], deployment: Deployment, inputs: np.ndarray, labels: np.ndarray
) -> None:
    """Each sample once, with the same round of every shard, and what the memory bus predicts."""
    for prediction in found:
        vector = prediction["model_version"]
        assert len(vector) == SHARDS
        assert len(set(vector)) == 1
        prediction["model_version"] = vector[0]
    check_predictions(found, deployment.simulated(inputs, labels), ROWS, labels.min(), labels.max())


def check_model(deployment: Deployment, bus: Bus) -> None:
    """Every shard has closed every round, each with the uploads of all clients once."""
    wanted = dict.fromkeys(range(SHARDS), (ROWS // CLIENTS, ROWS))
    deadline = time.monotonic() + SECONDS
    while versions(bus, deployment.name) != wanted and time.monotonic() < deadline:
        time.sleep(0.5)
    assert versions(bus, deployment.name) == wanted


def test_clients_and_servers_come_and_go_while_samples_flow(deployment: Deployment) -> None:
    """Protects scale-out: state moves with its partition or shard, whether a process ends or is killed, each
    sample is predicted once, and lockstep is exact, as the memory bus predicts."""
    inputs, labels = stream()
    victim = deployment.start("pofmkl-server")
    deployment.start("pofmkl-server")
    first = deployment.start("pofmkl-client")
    deployment.command("replay", "--data", str(deployment.data))
    with closing(deployment.bus()) as bus:
        deployment.wait(bus, ROWS // 5)
        deployment.start("pofmkl-client")
        deployment.wait(bus, 2 * ROWS // 5)
        deployment.start("pofmkl-server")
        victim.kill()
        deployment.wait(bus, 3 * ROWS // 5)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        deployment.wait(bus, 4 * ROWS // 5)
        deployment.start("pofmkl-client")
        found = deployment.wait(bus, ROWS)
        check_outcome(found, deployment, inputs, labels)
        check_model(deployment, bus)
    # The last to come may join its group after the last sample.
    deployment.wait_for_assignments(5)
    assert deployment.stop() == [0, 0, 0, 0]


class Member(Owned):
    """Commits what it reads at once, and keeps what was taken from it."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.revoked: list[int] = []

    def poll(self) -> None:
        polled = self.session.poll(0.02, 100)
        self.revoked += polled.revoked
        self.partitions = (self.partitions - set(polled.revoked)) | set(polled.assigned)
        self.records += polled.records
        self.session.commit(Step({(one.topic, one.partition): one.offset + 1 for one in polled.records}))


def test_kept_partitions_go_on_while_the_group_changes(broker: Broker) -> None:
    """Protects the stream from standing still: a join and a leave take nothing from a member but what moves,
    refuse no commit, and kept partitions are read while the group is still at it.
    """
    with closing(connect(broker.url)) as bus:
        samples = new_topic(bus, PARTITIONS)

        def flow(members: list[Member], enough: Callable[[], bool]) -> None:
            deadline = time.monotonic() + SECONDS
            while not enough():
                assert time.monotonic() < deadline, [(one.partitions, one.revoked) for one in members]
                bus.write([Outgoing(samples, None, b"x", number) for number in range(PARTITIONS)])
                for member in members:
                    member.poll()

        with joined(bus, samples) as (one, group):
            first = Member(one)
            flow([first], lambda: len(first.partitions) == PARTITIONS and bool(first.records))
            with joined(bus, samples, group=group) as (other, _):
                second = Member(other)
                # Long enough for the group to hear of a member that then holds everybody up.
                second.poll()
                until, before = time.monotonic() + 2.0, len(first.records)
                flow([first], lambda: time.monotonic() > until)
                assert len(first.records) > before + PARTITIONS
                flow([first, second], lambda: len(first.partitions) == 2 and bool(second.records))
                kept = set(second.partitions)
                assert sorted(first.revoked) == sorted(kept)
                first.session.close()
                flow([second], lambda: len(second.partitions) == PARTITIONS)
                assert second.revoked == []
                assert kept < second.partitions
