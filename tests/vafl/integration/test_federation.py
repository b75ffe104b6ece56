"""A vertical federation of processes on a real broker: late labels, a party that is killed, and one that
stands still."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.vafl.messages import EMBEDDING, REPLY

PARTIES = ("bank", "shop", "phone")
ENTITIES, LABELS_LATER, PARTITIONS, QUORUM = 750, 100, 2, 2
# Far longer than a session.
PAUSE_SECONDS = 20.0
# What each party fails to see.
UNSEEN = {"bank": 11, "shop": 7, "phone": 5}

SHARED = """
[federation]
name = "{name}"
parties = ["bank", "shop", "phone"]
embedding_size = 1
[bus]
url = "{url}"
options = {{ session_timeout_ms = 6000 }}
"""

PARTY = """
[role]
kind = "vafl-party"
[party]
name = "{party}"
[samples]
topic = "{name}-{party}"
features = ["x0", "x1"]
[learning]
batch_size = 8
"""

COORDINATOR = """
[role]
kind = "vafl-coordinator"
[labels]
topic = "{name}-results"
label = "outcome"
[learning]
loss = "logistic"
quorum = 2
[alignment]
quorum = 2
# Longer than the test: nobody is learnt from alone.
reply_seconds = 3000
"""


class Federation:
    """Its members' settings and processes."""

    def __init__(self, folder: Path, url: str) -> None:
        self.name = f"vertical-{uuid.uuid4().hex[:8]}"
        self.url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        for member, text in {"coordinator": COORDINATOR, **dict.fromkeys(PARTIES, PARTY)}.items():
            content = (SHARED + text).format(name=self.name, url=url, party=member)
            (folder / f"{member}.toml").write_text(content)
            make_topics(folder / f"{member}.toml", PARTITIONS)

    def start(self, member: str) -> subprocess.Popen[bytes]:
        log = (self._folder / f"{member}.log").open("ab")
        process = start_streamfl("run", self._folder / f"{member}.toml", stdout=log, stderr=log)
        log.close()
        self._processes.append(process)
        return process

    def stop(self) -> list[int]:
        running = [process for process in self._processes if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        try:
            return [process.wait(60) for process in running]
        finally:
            for process in self._processes:
                process.kill()

    def log(self) -> str:
        return "".join(
            f"{one.name}:\n{one.read_text(errors='replace')[-2000:]}\n" for one in self._folder.glob("*.log")
        )

    def predicted(self, bus: Bus) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for record in bus.read(f"{self.name}.predictions"):
            one = json.loads(record.value or b"")
            found[one["entity"]].append(one)
        return found

    def wait(self, bus: Bus, entities: int, seconds: float = 180.0) -> None:
        """Until so many entities are predicted."""
        deadline = time.monotonic() + seconds
        while (found := len(self.predicted(bus))) < entities:
            assert time.monotonic() < deadline, (
                f"{found} of {entities} entities predicted; the processes said:\n{self.log()}"
            )
            time.sleep(0.5)


@pytest.fixture
def federation(tmp_path: Path, broker: Broker) -> Iterator[Federation]:
    made = Federation(tmp_path, broker.url)
    yield made
    made.stop()


def sees(party: str, entity: int) -> bool:
    return entity % UNSEEN[party] != 0


def test_nobody_waits_for_whoever_is_killed_or_stands_still(federation: Federation) -> None:
    """Protects the others' progress and every count: each entity that met its quorum is predicted, each
    embedding is sent and answered once, through a kill -9 and a pause.
    """
    generator = np.random.default_rng(2)
    inputs = {party: generator.normal(size=(ENTITIES, 2)) for party in PARTIES}
    outcomes = (sum(one[:, 0] for one in inputs.values()) > 0).astype(float)
    federation.start("coordinator")
    victim, sleeper, _ = (federation.start(party) for party in PARTIES)
    with closing(connect(federation.url, {})) as bus:

        def write(entities: range) -> None:
            records = []
            for entity in entities:
                for party in PARTIES:
                    if sees(party, entity):
                        content = dict(zip(("x0", "x1"), inputs[party][entity].tolist(), strict=True))
                        records.append(
                            Outgoing(
                                f"{federation.name}-{party}", b"%d" % entity, json.dumps(content).encode()
                            )
                        )
                if entity >= LABELS_LATER:
                    records.append(label(entity - LABELS_LATER))
            bus.write(records)

        def label(entity: int) -> Outgoing:
            return Outgoing(
                f"{federation.name}-results",
                b"%d" % entity,
                json.dumps({"outcome": outcomes[entity]}).encode(),
            )

        third = ENTITIES // 3
        write(range(third))
        met = [
            entity for entity in range(ENTITIES) if sum(sees(party, entity) for party in PARTIES) >= QUORUM
        ]
        federation.wait(bus, sum(entity < third for entity in met))

        victim.kill()
        sleeper.send_signal(signal.SIGSTOP)
        paused = time.monotonic()
        federation.start("bank")
        write(range(third, 2 * third))
        # phone, and bank in its new process, make the quorum without shop.
        without_shop = [
            entity for entity in met if entity < third or (sees("bank", entity) and sees("phone", entity))
        ]
        # However long they take: shop stands still until they are through, and for the pause at least.
        federation.wait(bus, sum(entity < 2 * third for entity in without_shop))
        time.sleep(max(0.0, paused + PAUSE_SECONDS - time.monotonic()))
        sleeper.send_signal(signal.SIGCONT)

        write(range(2 * third, ENTITIES))
        federation.wait(bus, len(met))
        bus.write([label(entity) for entity in range(ENTITIES - LABELS_LATER, ENTITIES)])
        # Of an entity without a quorum no prediction comes, and of its embedding no answer: it may be the
        # last that is sent.
        expected = {
            (party, str(entity)): 1 for party in PARTIES for entity in range(ENTITIES) if sees(party, entity)
        }
        deadline = time.monotonic() + 120
        while sum(1 for party in PARTIES for _ in bus.read(f"{federation.name}.{party}.embeddings")) < len(
            expected
        ):
            assert time.monotonic() < deadline, f"not every embedding is sent:\n{federation.log()}"
            time.sleep(0.5)
        # Every embedding is answered in the end, for every label came.
        shown = {(party, str(entity)): 1 for party in PARTIES for entity in met if sees(party, entity)}
        deadline = time.monotonic() + 120
        while (
            answers := sum(1 for party in PARTIES for _ in bus.read(f"{federation.name}.{party}.gradients"))
        ) < len(shown):
            assert time.monotonic() < deadline, (
                f"{answers} of {len(shown)} embeddings answered:\n{federation.log()}"
            )
            time.sleep(0.5)
        assert federation.stop() == [0] * 4

        predictions = federation.predicted(bus)
        assert set(predictions) == {str(entity) for entity in met}
        for entity, revisions in predictions.items():
            assert [one["revision"] for one in revisions] == list(range(len(revisions))), entity
            assert revisions[0]["embeddings"] == QUORUM
        sent = Counter()
        replies = Counter()
        for party in PARTIES:
            for record in bus.read(f"{federation.name}.{party}.embeddings"):
                sent[party, EMBEDDING.decode(record.value).entity] += 1
            for record in bus.read(f"{federation.name}.{party}.gradients"):
                reply = REPLY.decode(record.value)
                replies[party, reply.entity] += bool(reply.gradient)
            assert not list(bus.read(f"{federation.name}.{party}.dead-letters"))
        assert not list(bus.read(f"{federation.name}.vafl-coordinator.dead-letters"))
        assert sent == expected
        assert replies == shown
        right = [
            (revisions[-1]["prediction"] > 0.5) == outcomes[int(entity)]
            for entity, revisions in predictions.items()
            if int(entity) >= 2 * third
        ]
        assert np.mean(right) > 0.8
