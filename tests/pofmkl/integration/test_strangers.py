"""What a stranger with the right to write can do to a federation on a real broker: not for long, and never in
silence."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from broker import Broker
from kafka import KafkaAdminClient
from streamfl_process import run_streamfl

from streamfl.contract.channels import TopicSpec
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    MARKER_KEY,
    SHARD_VERSION,
    UPDATE,
    KernelParameters,
    Prediction,
    ShardVersion,
    Update,
    kernel_key,
)
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker

SECONDS = 90.0
FOR_EVER = 2**63


class Plant:
    """A federation of two clients whose workers are stepped in turn, so that the test says when something
    happens."""

    def __init__(self, bus: Bus, broker: Broker, preset: str) -> None:
        self.bus = bus
        self._address = broker.address
        self.name = f"plant-{uuid.uuid4().hex[:8]}"
        content: dict[str, Any] = {
            "federation": {"name": self.name, "clients": 2, "features": ["t1", "t2"]},
            "bus": {"url": broker.url},
            "samples": {"topic": f"{self.name}.readings", "label": "y"},
            "learning": {
                "preset": preset,
                "staleness": "async",
                "features_per_kernel": 4,
                "upload_interval_ms": 100,
            },
            "kernels": {"bandwidths": [0.7, 2.8]},
        }
        self.settings = {
            kind: PofmklSettings.model_validate({**content, "role": {"kind": f"pofmkl-{kind}"}})
            for kind in ("client", "server")
        }
        specs = {
            spec.name: spec
            for kind in self.settings
            for spec in find_kind(f"pofmkl-{kind}").topics(self.settings[kind])
        }
        bus.create([with_partitions(spec) for spec in specs.values()])
        self.workers = {kind: build_worker(own, bus) for kind, own in self.settings.items()}
        self.written = 0
        self._draws = np.random.default_rng(0)

    @property
    def client(self) -> PofmklClient:
        return cast(PofmklClient, self.workers["client"].role)

    @property
    def server(self) -> PofmklServer:
        return cast(PofmklServer, self.workers["server"].role)

    def samples(self, count: int) -> None:
        records = []
        for _ in range(count):
            x, y = self._draws.normal(size=2).tolist()
            content = {"t1": x, "t2": y, "y": float(np.clip(0.5 + 0.2 * x - 0.1 * y, 0, 1))}
            client = b"ab"[self.written % 2 : self.written % 2 + 1]
            records.append(Outgoing(f"{self.name}.readings", client, msgspec.json.encode(content)))
            self.written += 1
        self.bus.write(records)

    def model(self, key: bytes, value: bytes) -> None:
        self.bus.write([Outgoing(f"{self.name}.model", key, value, 0)])

    def speaks_for(self, client: str, epoch: int, sequence: int, kernels: tuple[int, ...] = ()) -> None:
        steps = encode_array(np.zeros((len(kernels), 8), np.float32))
        message = Update(VERSION, self.server.fingerprint, 2, client, epoch, sequence, 0, 1, kernels, steps)
        self.bus.write([Outgoing(f"{self.name}.updates", client.encode(), UPDATE.encode(message), 0)])

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"after {SECONDS} s not so: {what}"
            for worker in self.workers.values():
                worker.step(0.05)

    def predicted(self) -> list[Prediction]:
        return [
            msgspec.json.decode(one.value or b"", type=Prediction)
            for one in self.bus.read(f"{self.name}.predictions")
        ]

    def markers(self) -> list[ShardVersion]:
        return [
            SHARD_VERSION.decode(one.value)
            for one in self.bus.read(f"{self.name}.model")
            if one.key == MARKER_KEY
        ]

    def settle(self) -> None:
        """Until every sample is predicted, all updates are sent and read, and the client uses the server's
        version."""
        self.until(lambda: len(self.predicted()) == self.written, "all is predicted")
        self.until(lambda: self.client.wake_at is None, "all updates are sent")
        self.until(self.heard, "all updates are read")
        self.until(lambda: self.client.model.versions == (self.version,), "the client is where the server is")
        assert self.client.trouble is None

    @property
    def version(self) -> int:
        return int(figure(self.workers["server"], "model_version"))

    def heard(self) -> bool:
        """Whether the server has committed past the last update; the lag that it measures is as old as a
        broker's last answer."""
        group = self.settings["server"].group
        with closing(KafkaAdminClient(bootstrap_servers=self._address)) as admin:
            committed = {
                place.partition: one.offset
                for place, one in admin.list_group_offsets({group: None})[group].items()
            }
        return all(
            committed.get(one.partition, 0) > one.offset for one in self.bus.read(f"{self.name}.updates")
        )

    def restart_server(self) -> None:
        self.workers["server"].close()
        self.workers["server"] = build_worker(self.settings["server"], self.bus)
        self.until(lambda: bool(figure(self.workers["server"], "partitions")), "the server is back")

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()


def with_partitions(spec: TopicSpec) -> TopicSpec:
    """The topic with one partition where any number will do."""
    return replace(spec, partitions=spec.partitions or 1)


def figure(worker: Worker, name: str) -> float:
    return sum(one.value for one in worker.measure() if one.name == name)


@pytest.fixture
def bus(broker: Broker) -> Iterator[Bus]:
    connected = connect(broker.url)
    yield connected
    connected.close()


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_one_record_of_a_stranger_spoils_nothing_for_good(bus: Bus, broker: Broker, preset: str) -> None:
    """Protects learning and predictions from one update, or one model record, by whoever may write to these
    topics."""
    plant = Plant(bus, broker, preset)
    try:
        plant.samples(20)
        plant.settle()
        before = plant.version
        for epoch, sequence in ((FOR_EVER, 1), (1, FOR_EVER), (1, 2**52), (int(time.time() * 1e6), 5)):
            plant.speaks_for("a", epoch, sequence)
            plant.speaks_for("a", epoch, sequence, (0,))
        plant.samples(20)
        plant.settle()
        # Its own updates, not those that others spoke: of these two at most were taken.
        assert plant.version >= before + 4
        assert figure(plant.workers["server"], "ignored_updates") >= 2

        huge = encode_array(np.full(8, 1e18, np.float32))
        large = encode_array(np.full(8, 1e4, np.float32))
        for row in (huge, large):
            plant.model(kernel_key(0), KERNEL_PARAMETERS.encode(KernelParameters(VERSION, 0, row)))
            marker = ShardVersion(VERSION, plant.server.fingerprint, 2, 0, 10**6, 10**6)
            plant.model(MARKER_KEY, SHARD_VERSION.encode(marker))
        plant.until(
            lambda: plant.client.model.versions == (10**6,) or plant.client.trouble is not None,
            "the client has heard it",
        )
        plant.samples(40)
        plant.settle()
        assert plant.version < 1000
        assert all(-1.0 <= one.prediction <= 2.0 for one in plant.predicted())

        right = plant.server.snapshot()[0].parameters
        version = plant.version
        plant.workers["server"].close()
        plant.model(kernel_key(0), b"rubbish")
        plant.model(
            MARKER_KEY, SHARD_VERSION.encode(ShardVersion(VERSION, plant.server.fingerprint, 2, 0, 2, 2))
        )
        plant.restart_server()
        plant.until(lambda: plant.version == version, "the version is the server's own")
        assert [one.updates for one in plant.markers()][-1] == version
        # Again where the commit of a repair was refused: on a busy machine the group may have taken the
        # server for gone.
        assert figure(plant.workers["server"], "model_repairs") >= 1
        np.testing.assert_array_equal(plant.server.snapshot()[0].parameters[1:], right[1:])
        plant.samples(10)
        plant.settle()
        assert version < plant.version < 1000
        letters = [dict(letter.headers)["error"] for letter in bus.read(f"{plant.name}.dead-letters")]
        assert set(letters) <= {b"implausible", b"malformed", b"unknown_version"}
    finally:
        plant.close()


def test_a_new_server_ends_with_what_to_add(bus: Bus, broker: Broker, tmp_path: Path) -> None:
    """Protects a new federation: `streamfl run` says at once that federation.features is missing, before
    anybody can decide it."""
    name = f"plant-{uuid.uuid4().hex[:8]}"
    path = tmp_path / "server.toml"
    path.write_text(
        f'[federation]\nname = "{name}"\nclients = 2\n[bus]\nurl = "{broker.url}"\n[role]\nkind = '
        '"pofmkl-server"\n'
    )
    settings = PofmklSettings.model_validate(
        {"federation": {"name": name, "clients": 2}, "role": {"kind": "pofmkl-server"}}
    )
    bus.create([with_partitions(spec) for spec in find_kind("pofmkl-server").topics(settings)])
    ended = run_streamfl("run", path)
    assert ended.returncode == 2, ended.stderr
    assert "federation.features is missing" in ended.stderr
    assert "Traceback" not in ended.stderr
