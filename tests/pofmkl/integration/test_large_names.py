"""A name that compression makes fit into a message, on a real broker: what was remembered of it could not be
written."""

from __future__ import annotations

import uuid
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from broker import Broker
from kafka import KafkaProducer

from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import MARKER_KEY, SHARD_VERSION
from streamfl.pofmkl.roles import ROLES
from streamfl.runtime.bus import Bus, connect
from streamfl.runtime.kinds import build_worker

pytestmark = pytest.mark.broker

FEATURES = 4


def run(settings: PofmklSettings, bus: Bus, letters: int, version: int) -> None:
    """A server until there are so many dead letters and this version of the model; it fails if the worker
    does."""
    worker = build_worker(settings, bus)
    for _ in range(200):
        worker.step(0.5)
        found = [
            record.value
            for record in bus.read(f"{settings.federation.name}.model")
            if record.key == MARKER_KEY
        ]
        done = bool(found) and SHARD_VERSION.decode(found[-1]).model_version >= version
        if done and len(list(bus.read(settings.dead_letters))) >= letters:
            break
    else:
        pytest.fail(f"{letters} dead letters and version {version} were awaited")
    worker.close()


def test_a_name_that_no_record_holds_is_a_dead_letter(broker: Broker) -> None:
    """Protects a server from ending at every start: an update under a name of 990,000 bytes is refused, and
    it goes on.

    Before and after it comes an honest update, and the server starts a second time.
    """
    name = f"names-{uuid.uuid4().hex[:8]}"
    settings = PofmklSettings(
        federation={"name": name, "clients": 2, "features": 2},  # type: ignore[arg-type]
        role={"kind": "pofmkl-server"},  # type: ignore[arg-type]
        bus={"url": broker.url},  # type: ignore[arg-type]
        learning={"staleness": "async", "features_per_kernel": FEATURES},  # type: ignore[arg-type]
    )
    kind = ROLES["pofmkl-server"]
    fingerprint = kind.build(settings).fingerprint

    def update(client: str, sequence: int) -> bytes:
        steps = encode_array(np.full((1, 2 * FEATURES), 0.1, np.float32))
        return msgspec.msgpack.encode([VERSION, fingerprint, 2, client, 1, sequence, 0, 1, [0], steps])

    with closing(connect(broker.url)) as bus:
        bus.create([replace(spec, partitions=spec.partitions or 1) for spec in kind.topics(settings)])
        producer = KafkaProducer(
            bootstrap_servers=broker.address,
            compression_type="gzip",
            max_request_size=4_000_000,
            batch_size=4_000_000,
        )
        with closing(producer):
            for client, sequence in (("press-1", 1), ("x" * 990_000, 1), ("press-1", 2)):
                producer.send(f"{name}.updates", update(client, sequence), client.encode()).get(30)
            run(settings, bus, 1, 2)
            producer.send(f"{name}.updates", update("press-1", 3), b"press-1").get(30)
            run(settings, bus, 1, 3)
        (letter,) = bus.read(settings.dead_letters)
        headers = dict(letter.headers)
    assert (headers["error"], headers["offset"]) == (b"malformed", b"1")
    assert int(headers["truncated_from"]) > 1_980_000
