"""Samples and their labels on two topics of a real broker, with processes that are killed in between."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from broker import Broker
from command_line import make_topics
from pofmkl.integration.test_federation import Deployment

from streamfl.pofmkl.messages import UPDATE
from streamfl.runtime.bus import Outgoing

CLIENTS, ROUNDS, DELAY = 16, 40, 15

CONFIGURATION = """
[federation]
name = "{name}"
seed = 7
clients = {clients}
features = ["x0", "x1"]
[bus]
url = "{url}"
options = {{ session_timeout_ms = 6000 }}
[role]
kind = "pofmkl-client"
[samples]
topic = "{name}.readings"
sample_id = "id"
label_range = [-2, 2]
[labels]
topic = "{name}.results"
client = "device"
sample_id = "reading"
label = "lever"
[learning]
staleness = "async"
[uplink]
kernels_per_upload = 1
"""


@pytest.fixture(params=["kafka"])
def deployment(request: pytest.FixtureRequest, broker: Broker, tmp_path: Path) -> Iterator[Deployment]:
    """A federation whose labels have a topic of their own, its topics made; a process that is killed is
    missed soon."""
    url = f"{request.param}://{broker.address}"
    made = Deployment(tmp_path, url, np.ones((2, 2)), np.array([-2.0, 2.0]), "default")
    made.configuration.write_text(CONFIGURATION.format(name=made.name, clients=CLIENTS, url=url))
    make_topics(made.configuration)
    make_topics(made.configuration, kind="pofmkl-server")
    yield made
    made.stop()


def is_never(number: int, client: int) -> bool:
    """Whether nobody sends a label for this sample; the last round has all, so that one ends each
    partition."""
    return (number + client) % 13 == 0 and number < ROUNDS - 1


def schedule(name: str) -> list[list[Outgoing]]:
    """What is written in each round: a sample of every client, and labels late, some early, some twice, some
    never."""
    generator = np.random.default_rng(3)
    rounds: list[list[Outgoing]] = [[] for _ in range(ROUNDS + DELAY)]
    for number in range(ROUNDS):
        for client in range(CLIENTS):
            device, (first, second) = f"press-{client}", generator.normal(size=2).tolist()
            sample = {"id": f"r-{number}", "x0": first, "x1": second}
            rounds[number].append(Outgoing(f"{name}.readings", device.encode(), json.dumps(sample).encode()))
            if is_never(number, client):
                continue
            label = {
                "device": device,
                "reading": f"r-{number}",
                "lever": float(np.sin(first) + 0.5 * np.tanh(second)),
            }
            record = Outgoing(f"{name}.results", device.encode(), json.dumps(label).encode())
            last = number == ROUNDS - 1
            early = (number + client) % 5 == 0 and not last
            rounds[max(0, number - 3) if early else number + DELAY].append(record)
            if (number + client) % 7 == 0 and not last:
                rounds[number + DELAY // 2].append(record)
    return rounds


def wait_for_processes(deployment: Deployment, count: int) -> None:
    """Until so many have said that they run."""
    deadline = time.monotonic() + 120
    while len(re.findall(r" running +role=", deployment.log())) < count:
        assert time.monotonic() < deadline, deployment.log()[-5000:]
        time.sleep(0.2)


def test_labels_late_early_twice_and_never_through_a_kill(deployment: Deployment) -> None:
    """Protects the join across processes: each sample predicted once, each label with a sample learnt once,
    kill -9 or not."""
    deployment.start("pofmkl-server")
    victim = deployment.start("pofmkl-client")
    deployment.start("pofmkl-client")
    with closing(deployment.bus()) as bus:
        for number, records in enumerate(schedule(deployment.name)):
            bus.write(records)
            if number == ROUNDS // 3:
                deployment.wait(bus, number * CLIENTS)
            if number == ROUNDS // 2:
                # In the middle of ten rounds, and with samples that wait for their labels; the server's and
                # both clients'.
                deployment.wait_for_assignments(3)
                victim.kill()
                deployment.start("pofmkl-client")
                wait_for_processes(deployment, 4)
        deployment.wait(bus, ROUNDS * CLIENTS)
        expected = Counter(
            {f"press-{k}": sum(not is_never(number, k) for number in range(ROUNDS)) for k in range(CLIENTS)}
        )
        deadline = time.monotonic() + 120
        while deployment.applied(bus)[1] < expected.total() and time.monotonic() < deadline:
            time.sleep(0.5)
        assert deployment.applied(bus)[1] == expected.total()
        updates = [UPDATE.decode(record.value) for record in bus.read(f"{deployment.name}.updates")]
        assert deployment.stop() == [0, 0, 0]
        found = deployment.predictions(bus)
        assert deployment.applied(bus)[1] == expected.total()
    names = [(prediction["client"], prediction["sample"]) for prediction in found]
    assert sorted(names) == sorted(
        (f"press-{k}", f"r-{number}") for k in range(CLIENTS) for number in range(ROUNDS)
    )
    assert Counter(update.client for update in updates) == expected
    # One life of every client, whichever processes it was in.
    assert len({(update.client, update.epoch) for update in updates}) == CLIENTS
    # Of four partitions at the clients and one at the server some had more than one process.
    moves = re.findall(r"partitions moved +revoked=\[[^]]*\] assigned=\[([^]]+)\]", deployment.log())
    assert sum(len(move.split(",")) for move in moves) > 4 + 1


@pytest.mark.parametrize("deployment", ["kafka", "kafka+librdkafka"], indirect=True)
def test_a_history_is_learnt_while_it_is_predicted(deployment: Deployment) -> None:
    """Protects whoever points clients at topics with a history: each client library has its own order of
    topics and partitions, and its samples were all predicted by a model that had learnt nothing."""
    written = [one for records in schedule(deployment.name) for one in records]
    samples, labels = (
        [one for one in written if one.topic == f"{deployment.name}.{topic}"][: 30 * CLIENTS]
        for topic in ("readings", "results")
    )
    with closing(deployment.bus()) as bus:
        bus.write(samples)
        bus.write(labels)
        deployment.start("pofmkl-server")
        deployment.start("pofmkl-client")
        found = deployment.wait(bus, len(samples))
        assert deployment.stop() == [0, 0]
    assert len(found) == len(samples)
    on_version_zero = sum(prediction["model_version"] == 0 for prediction in found)
    assert on_version_zero < len(samples) / 10, f"{on_version_zero} of {len(samples)}"
