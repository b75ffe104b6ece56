"""Three parties as processes on a real broker, with keys: one is killed, one stands still; every
count is exact."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from identities import Keys
from streamfl_process import start_streamfl

from streamfl.fdskl.messages import PARTIAL_SUM, ROUND, TURN, PartialSum, Round, Turn
from streamfl.runtime.bus import Bus, Outgoing, connect

pytestmark = pytest.mark.broker

PARTIES = ("bank", "shop", "phone")
ENTITIES, PARTITIONS = 600, 2
# Far longer than a session.
PAUSE_SECONDS = 20.0

CONFIGURATION = """
[federation]
name = "{name}"
parties = ["bank", "shop", "phone"]
members = "{folder}/members.toml"
[identity]
key_file = "{folder}/{party}.key"
[bus]
url = "{url}"
options = {{ session_timeout_ms = 6000 }}
[role]
kind = "fdskl-worker"
[party]
name = "{party}"
[samples]
topic = "{name}-{party}"
features = ["{party}-0", "{party}-1"]
[learning]
block_instances = 40
block_features = 16
features_limit = 64
regularisation = 1e-4
[aggregation]
# What stands still is asked again and again, and not once in half a minute.
round_seconds = 5
[alignment]
reply_seconds = 4
[standardisation]
first_entities = 20
"""
LABELS = """
[labels]
topic = "{labels}"
label = "outcome"
"""


class Federation:
    """Its members' settings, keys and processes. active: who has labels, the first topic of them without a
    name of its own."""

    def __init__(self, folder: Path, url: str, active: Sequence[str] = PARTIES[:1]) -> None:
        self.name = f"kernel-{uuid.uuid4().hex[:8]}"
        self.url = url
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        keys = Keys(folder, self.name)
        for party in PARTIES:
            keys.add(party, "fdskl-worker", speaks_for=(party,))
        for party in PARTIES:
            text = (CONFIGURATION + (LABELS if party in active else "")).format(
                name=self.name, url=url, party=party, folder=folder, labels=self.labels_of(party)
            )
            if len(active) > 1:
                text = text.replace("[identity]", f"active = {json.dumps(list(active))}\n[identity]")
                text = text.replace(
                    "block_instances = 40",
                    'solver = "sgd"\nstep = 10.0\nbandwidth = 2.0\nblock_instances = 20',
                )
            (folder / f"{party}.toml").write_text(text)
        for party in PARTIES:
            make_topics(folder / f"{party}.toml", PARTITIONS)

    def labels_of(self, party: str) -> str:
        """The topic of an active party's labels."""
        return f"{self.name}-results" + ("" if party == PARTIES[0] else f"-{party}")

    def start(self, party: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{party}.log").open("ab") as log:
            process = start_streamfl("run", self._folder / f"{party}.toml", stdout=log, stderr=log)
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
            f"{one.name}:\n{one.read_text(errors='replace')[-3000:]}\n" for one in self._folder.glob("*.log")
        )

    def predictions(self, bus: Bus) -> list[dict[str, Any]]:
        return [json.loads(record.value or b"") for record in bus.read(f"{self.name}.predictions")]

    def wait(self, found: Callable[[], int], count: int, what: str, seconds: float = 180.0) -> None:
        deadline = time.monotonic() + seconds
        while (number := found()) < count:
            assert time.monotonic() < deadline, (
                f"{number} of {count} {what}; the processes said:\n{self.log()}"
            )
            time.sleep(0.5)


@pytest.fixture
def federation(tmp_path: Path, broker: Broker) -> Iterator[Federation]:
    made = Federation(tmp_path, broker.url)
    yield made
    made.stop()


def test_who_is_killed_or_stands_still_costs_rounds_and_nothing_else(federation: Federation) -> None:
    """Protects every count through a kill -9 and a pause: each entity is predicted once and its label counted
    once, no round is announced twice and no masked sum is sent twice, and the model learns.
    """
    generator = np.random.default_rng(2)
    inputs = {party: generator.normal(size=(ENTITIES, 2)) for party in PARTIES}
    outcomes = (inputs["bank"][:, 0] + inputs["shop"][:, 1] * np.sign(inputs["phone"][:, 0]) > 0).astype(
        float
    )
    _, victim, sleeper = (federation.start(party) for party in PARTIES)
    with closing(connect(federation.url, {})) as bus:

        def write(entities: range) -> None:
            bus.write(
                [
                    Outgoing(
                        f"{federation.name}-{party}",
                        b"%d" % entity,
                        json.dumps(
                            {f"{party}-0": inputs[party][entity, 0], f"{party}-1": inputs[party][entity, 1]}
                        ).encode(),
                    )
                    for entity in entities
                    for party in PARTIES
                ]
            )

        def write_labels(entities: range) -> None:
            bus.write(
                [
                    Outgoing(
                        f"{federation.name}-results",
                        b"%d" % entity,
                        json.dumps({"outcome": outcomes[entity]}).encode(),
                    )
                    for entity in entities
                ]
            )

        def predicted() -> int:
            return len(federation.predictions(bus))

        third = ENTITIES // 3
        write(range(third))
        federation.wait(predicted, third, "entities predicted")
        write_labels(range(third))
        federation.wait(lambda: iterations(bus, federation), 4, "iterations of learning")

        victim.kill()
        sleeper.send_signal(signal.SIGSTOP)
        paused = time.monotonic()
        federation.start("shop")
        write(range(third, 2 * third))
        time.sleep(max(0.0, paused + PAUSE_SECONDS - time.monotonic()))
        sleeper.send_signal(signal.SIGCONT)
        federation.wait(predicted, 2 * third, "entities predicted")
        write_labels(range(third, 2 * third))
        federation.wait(lambda: iterations(bus, federation), 8, "iterations of learning")

        write(range(2 * third, ENTITIES))
        federation.wait(predicted, ENTITIES, "entities predicted")
        write_labels(range(2 * third, ENTITIES))
        federation.wait(lambda: counted(bus, federation), ENTITIES, "labels counted")
        assert federation.stop() == [0] * 3

        found = federation.predictions(bus)
        assert Counter(one["entity"] for one in found) == {str(entity): 1 for entity in range(ENTITIES)}
        assert {one["parties"] for one in found if one["model"]} == {len(PARTIES)}
        for party in PARTIES:
            assert not list(bus.read(f"{federation.name}.{party}.dead-letters")), party
        check_rounds(bus, federation)
        right = [
            (one["prediction"] > 0.5) == outcomes[int(one["entity"])]
            for one in found
            if int(one["entity"]) >= 2 * third
        ]
        assert np.mean(right) > 0.75


def test_two_active_parties_with_keys_take_turns(tmp_path: Path, broker: Broker) -> None:
    """Protects several active parties on a real cluster: one is killed, and every turn is signed, taken once
    and in one order."""
    made, entities, size = Federation(tmp_path, broker.url, ("bank", "shop")), 280, 20
    generator = np.random.default_rng(3)
    with closing(connect(made.url, {})) as bus:
        try:
            _, victim, _ = (made.start(party) for party in PARTIES)
            for party in PARTIES:
                names = (f"{party}-0", f"{party}-1")
                rows = [
                    dict(zip(names, row, strict=True))
                    for row in generator.normal(size=(entities, 2)).tolist()
                ]
                topic = f"{made.name}-{party}"
                bus.write(
                    [
                        Outgoing(topic, b"%d" % number, json.dumps(row).encode())
                        for number, row in enumerate(rows)
                    ]
                )
            made.wait(lambda: len(made.predictions(bus)), entities, "entities predicted")

            def write_labels(numbers: range) -> None:
                for number in numbers:
                    content = json.dumps({"outcome": number % 3 % 2}).encode()
                    bus.write(
                        [Outgoing(made.labels_of(("bank", "shop")[number % 2]), b"%d" % number, content)]
                    )

            write_labels(range(entities // 2))
            made.wait(lambda: len(learnt(bus, made)), 4, "iterations of learning")
            victim.kill()
            write_labels(range(entities // 2, entities))
            made.start("shop")
            made.wait(
                lambda: counted(bus, made, "bank") + counted(bus, made, "shop"), entities, "labels counted"
            )
            # In each partition of each party fewer labels than an iteration's are left.
            made.wait(lambda: len(learnt(bus, made)) * size, entities - 4 * (size - 1), "labels learnt from")
            assert made.stop() == [0] * 3
        finally:
            made.stop()
        turns = learnt(bus, made)
        assert {message.sender for _, message in turns} == {"bank", "shop"}
        assert all(message.signature for _, message in turns)
        for partition in range(PARTITIONS):
            own = [message for place, message in turns if place == partition]
            assert [message.model for message in own] == list(range(len(own)))
            assert len({(message.sender, message.number) for message in own}) == len(own)
        for party in PARTIES:
            assert not list(bus.read(f"{made.name}.{party}.dead-letters")), party
        assert Counter(one["entity"] for one in made.predictions(bus)) == {
            str(entity): 1 for entity in range(entities)
        }


def learnt(bus: Bus, federation: Federation) -> list[tuple[int, Turn]]:
    """By partition, iterations that several active parties have made, in the log's order."""
    records = bus.read(f"{federation.name}.turns")
    said = [(record.partition, TURN.decode(record.value)) for record in records]
    return [(partition, message) for partition, message in said if message.learnt]


def counted(bus: Bus, federation: Federation, party: str = "bank") -> int:
    """Labels that an active party remembers to have taken, of all partitions."""
    latest: dict[int, int] = {}
    for record in bus.read(f"{federation.name}.{party}.state"):
        if record.key == b"labels" and record.value is not None:
            latest[record.partition] = msgspec.msgpack.decode(record.value)[0]
    return sum(latest.values())


def iterations(bus: Bus, federation: Federation) -> int:
    """How often the models of all partitions have changed."""
    latest: dict[int, int] = {}
    for record in bus.read(f"{federation.name}.bank.state"):
        if record.key == b"model" and record.value is not None:
            latest[record.partition] = msgspec.msgpack.decode(record.value)[0]
    return sum(latest.values())


def check_rounds(bus: Bus, federation: Federation) -> None:
    """Each announcement is another round, and each party answers each round once at most, never with the same
    numbers."""
    rounds: Counter[tuple[int, int, int]] = Counter()
    for record in bus.read(f"{federation.name}.shop.rounds"):
        one: Round = ROUND.decode(record.value)
        rounds[record.partition, one.incarnations[0], one.number] += 1
    assert rounds
    assert set(rounds.values()) == {1}
    answers: Counter[tuple[int, str, bytes]] = Counter()
    contents: Counter[bytes] = Counter()
    # The last party of the tree is a leaf, and has no such topic.
    for receiver in PARTIES[:-1]:
        for record in bus.read(f"{federation.name}.{receiver}.sums"):
            part: PartialSum = PARTIAL_SUM.decode(record.value)
            answers[record.partition, part.sender, part.round] += 1
            contents[part.values] += 1
    assert set(answers.values()) == {1}
    assert set(contents.values()) == {1}
