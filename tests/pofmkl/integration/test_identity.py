"""A federation of members with keys on a real broker, and a forger who may write to its updates and its
model."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker
from identities import Keys
from msgspec.structs import replace
from scraped import scraped

from streamfl.contract.role import Record
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.identity import Identity, Member, PrivateKey
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    MARKER_KEY,
    SHARD_VERSION,
    SIGNED_KEY,
    SIGNED_VERSION,
    UPDATE,
    KernelParameters,
    kernel_key,
)
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.worker import Worker

pytestmark = pytest.mark.broker

SITES = {"a": "press", "b": "mill"}
CLIENTS, SHARDS, FEATURES = 4, 2, 4


class Federation:
    """A server and two sites, each with a key, a group and samples of its own; their workers take turns in
    this process."""

    def __init__(self, folder: Path, url: str) -> None:
        self.name = f"keyed-{uuid.uuid4().hex[:8]}"
        self.keys = Keys(folder, self.name)
        self.keys.add("server", "pofmkl-server")
        for site, kind in SITES.items():
            self.keys.add(site, "pofmkl-client", speaks_for=(f"{kind}-*",))
        # Its key was stolen, and revoked.
        self.stolen = self.keys.add("left", "pofmkl-client", speaks_for=("*",))
        self.keys.change(replace(self.keys.member("left"), revoked=True))
        self._url = url
        self._buses: list[Bus] = []
        self.given = self.taken_before = 0
        self.workers = {member: self._worker(member) for member in ("server", *SITES)}

    def _worker(self, member: str) -> Worker:
        sections = self.keys.sections(member)
        content: dict[str, Any] = {
            **sections,
            "federation": {
                "name": self.name,
                "clients": 2 * CLIENTS,
                "shards": SHARDS,
                "features": ["x"],
                **sections["federation"],
            },
            "role": {"kind": "pofmkl-server" if member == "server" else "pofmkl-client"},
            "bus": {"url": self._url, "group": f"{self.name}.{member}"},
            "learning": {
                "preset": "paper",
                "staleness": "async",
                "features_per_kernel": FEATURES,
                "learning_rate": 0.2,
            },
            "kernels": {"bandwidths": [0.5, 1.0]},
        }
        if member != "server":
            content["samples"] = {
                "topic": f"{self.name}-of-{member}",
                "client": "c",
                "features": ["x"],
                "label": "y",
            }
        settings = PofmklSettings(**content)
        bus = connect(self._url, {})
        self._buses.append(bus)
        specs = find_kind(settings.role.kind).topics(settings)
        known = bus.describe([spec.name for spec in specs])
        bus.create(
            [with_fields(spec, partitions=spec.partitions or 1) for spec in specs if spec.name not in known]
        )
        return build_worker(settings, bus)

    def until(self, happened: Callable[[], bool], what: str, seconds: float = 90.0) -> None:
        """The workers take turns until it has happened."""
        deadline = time.monotonic() + seconds
        while not happened():
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
            for worker in self.workers.values():
                worker.step(0.05)

    def learn(self, bus: Bus, samples: int) -> None:
        """So many samples of each client are predicted, and every update that was sent has reached the
        server."""
        self.given += samples * 2 * CLIENTS
        for site, kind in SITES.items():
            values = [
                json.dumps({"c": f"{kind}-{n % CLIENTS}", "x": n % 7 / 7, "y": n % 7 / 14})
                for n in range(samples * CLIENTS)
            ]
            bus.write([Outgoing(f"{self.name}-of-{site}", b"k", value.encode(), 0) for value in values])
        self.until(
            lambda: sum(self.figure(site, "samples") for site in SITES) >= self.given, f"{self.given} samples"
        )
        # What is gathered in an upload leaves after an interval.
        idle = time.monotonic() + 3.0
        self.until(
            lambda: time.monotonic() > idle and self.heard() == len(list(bus.read(f"{self.name}.updates"))),
            "updates heard",
        )

    def heard(self) -> int:
        """Records of the updates that servers of this test have taken."""
        return self.taken_before + int(self.counted("server", "records"))

    def counted(self, member: str, name: str) -> float:
        """A counter of the worker itself."""
        return scraped(self.workers[member].metrics.render().decode(), f"{name}_total")

    def restart(self, member: str) -> None:
        self.taken_before += int(self.counted(member, "records"))
        self.workers[member].close()
        self.workers[member] = self._worker(member)

    def figure(self, member: str, name: str, **labels: str) -> float:
        found = self.workers[member].measure()
        return sum(
            one.value for one in found if one.name == name and labels.items() <= dict(one.labels).items()
        )

    def refused(self, bus: Bus) -> Counter[str]:
        return Counter(
            dict(letter.headers)["error"].decode() for letter in bus.read(f"{self.name}.dead-letters")
        )

    def versions(self) -> dict[str, tuple[int, ...]]:
        return {site: self.workers[site].role.model.versions for site in SITES}  # type: ignore[attr-defined]

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        for bus in self._buses:
            bus.close()


@pytest.fixture
def federation(broker: Broker, tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, broker.url)
    yield made
    made.close()


def forgeries(federation: Federation, honest: list[Record]) -> list[tuple[str, Outgoing]]:
    """What the forger makes of the updates that it has read, with the reason for which each is to be
    refused."""
    topic = f"{federation.name}.updates"
    known = federation.keys.members
    stolen = replace(federation.keys.member("left"), revoked=False)
    thief = Identity((federation.stolen,), known.replaced(stolen), "pofmkl-client").seal(
        topic, "pofmkl-server"
    )
    own = PrivateKey.generate()
    newcomer = Member("newcomer", ("pofmkl-client",), (own.public.text,), ("*",))
    stranger = Identity((own,), known.replaced(newcomer), "pofmkl-client").seal(topic, "pofmkl-server")
    site = federation.keys.identity("a", "pofmkl-client").seal(topic, "pofmkl-server")
    made = []
    for record in honest:
        update = UPDATE.decode(record.value)
        silencing = UPDATE.encode(replace(update, epoch=2**53 - 1, sequence=2**53 - 1))
        key, partition = record.key, record.partition
        made += [
            ("unsigned", Outgoing(topic, key, silencing, partition)),
            ("forged", Outgoing(topic, key, silencing, partition, record.headers)),
            ("forged", Outgoing(topic, key, record.value, (partition + 1) % SHARDS, record.headers)),
            (
                "forged",
                Outgoing(
                    topic,
                    b"mill-0" if key != b"mill-0" else b"mill-1",
                    record.value,
                    partition,
                    record.headers,
                ),
            ),
            ("revoked", Outgoing(topic, key, silencing, partition, thief(key, silencing, partition))),
            ("not_a_member", Outgoing(topic, key, silencing, partition, stranger(key, silencing, partition))),
        ]
        if (key or b"").startswith(b"mill"):
            made.append(
                (
                    "not_its_client",
                    Outgoing(topic, key, silencing, partition, site(key, silencing, partition)),
                )
            )
    return made


def test_a_forger_with_write_on_the_topics_changes_nothing(broker: Broker, federation: Federation) -> None:
    """Protects the federation from whoever may write to its topics: all is refused and counted, and the
    honest learn on."""
    with closing(connect(broker.url, {})) as bus:
        federation.learn(bus, 5)
        honest = list(bus.read(f"{federation.name}.updates"))
        assert honest
        assert not federation.refused(bus)
        applied, before = federation.figure("server", "updates_applied"), federation.versions()

        attacks = forgeries(federation, honest)
        replays = [Outgoing(one.topic, one.key, one.value, one.partition, one.headers) for one in honest]
        bus.write([one for _, one in attacks] + replays)
        federation.until(
            lambda: federation.counted("server", "records") >= len(honest) + len(attacks) + len(replays),
            "the forger is heard",
        )
        assert federation.refused(bus) == Counter(reason for reason, _ in attacks)
        assert federation.figure("server", "ignored_updates", reason="duplicate") == len(replays)
        assert federation.figure("server", "updates_applied") == applied
        assert federation.versions() == before

        # The model's topic: parameters that nobody signed, and versions far ahead, unsigned and under an old
        # signature.
        topic = f"{federation.name}.model"
        last = [record for record in bus.read(topic) if record.key == SIGNED_KEY and record.partition == 0][
            -1
        ]
        content = SIGNED_VERSION.decode(last.value)
        far = replace(content.marker, model_version=10**6, updates=10**6)
        wrong = KERNEL_PARAMETERS.encode(
            KernelParameters(VERSION, 0, encode_array(np.full(2 * FEATURES, 1e17, np.float32)))
        )
        bus.write(
            [
                Outgoing(topic, kernel_key(0), wrong, 0),
                Outgoing(topic, MARKER_KEY, SHARD_VERSION.encode(far), 0),
                Outgoing(topic, SIGNED_KEY, SIGNED_VERSION.encode(replace(content, marker=far)), 0),
            ]
        )
        federation.until(
            lambda: all(federation.workers[site].role.trouble for site in SITES), "the sites turn red"
        )
        assert federation.versions() == before
        federation.learn(bus, 5)
        federation.until(
            lambda: not any(federation.workers[site].role.trouble for site in SITES),
            "the sites are well again",
        )
        assert federation.figure("server", "updates_applied") > applied
        assert all(
            after > versions
            for after, versions in zip(federation.versions().values(), before.values(), strict=True)
        )
        found = [json.loads(record.value or b"") for record in bus.read(f"{federation.name}.predictions")]
        assert max(abs(one["prediction"]) for one in found) < 10
        assert sum(federation.refused(bus).values()) == len(attacks)

        # A server that starts anew takes back its own model, whatever lies between its records.
        ours = federation.versions()
        federation.restart("server")
        federation.learn(bus, 2)
        federation.until(
            lambda: all(after > ours[site] for site, after in federation.versions().items()), "newer versions"
        )
        assert sum(federation.refused(bus).values()) == len(attacks)
