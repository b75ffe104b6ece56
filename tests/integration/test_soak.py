"""A federation under load while its processes and its cluster are killed, stopped and away: the short form of ``make soak``."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from soak.campaign import run
from soak.federation import PARTITIONS, Plan, configuration_of, sample
from soak.verdict import TOPICS, judge_topics
from soak.verdict import replay as run_calmly

from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import Record
from streamfl.runtime.tasks import POSITION_KEY
from streamfl.settings import load_settings

Topics = dict[str, list[Record]]

# Beyond what a process has before: its client libraries may be made anew, but nothing may pile up.
MOST_GROWTH_MB = 100.0


def test_faults_lose_and_double_nothing() -> None:
    """Protects exactly-once, the changelogs and the recovery by itself: each sample is predicted once, each update applied once,
    the state as of a run without faults; and while the cluster is away readiness says so and memory does not grow.
    """
    plan = Plan(scheme="kafka", staleness="lockstep", rate=10.0)
    report = run(plan, 0.0, 25.0, ["worker killed", "worker stopped past its transaction", "cluster and worker killed"])
    assert report["wrong"] == []
    assert (report["lost"], report["doubled"]) == (0, 0)
    assert report["samples"] == report["samples_written"] > 200
    assert report["updates_applied"] == report["updates_sent"] > 0
    assert report["state_compared"] > 0
    outage = report["outages"][0]
    processes = set(outage["before"])
    assert len(processes) == plan.client_processes + plan.server_processes
    assert set(outage["red_after"]) == processes
    assert set(outage["green_after"]) == processes
    for name in processes:
        assert max(outage["during"][name], outage["after"][name]) < outage["before"][name] + MOST_GROWTH_MB


def without(topics: Topics, name: str, place: int = -1) -> None:
    del topics[name][place]


def twice(topics: Topics, name: str) -> None:
    topics[name].append(topics[name][-1])


def altered(topics: Topics, name: str, key: bytes) -> None:
    """The last record under a key that begins so, with its last number another."""
    place = max(place for place, record in enumerate(topics[name]) if (record.key or b"").startswith(key))
    record = topics[name][place]
    value = record.value or bytes(8)
    number = np.frombuffer(value[-8:], "<f8") + 0.01
    topics[name][place] = msgspec.structs.replace(record, value=value[:-8] + number.astype("<f8").tobytes())


DAMAGE: dict[str, Callable[[Topics], None]] = {
    "samples without a prediction": lambda topics: without(topics, "predictions"),
    "predictions too many": lambda topics: twice(topics, "predictions"),
    "labels in its uploads": lambda topics: without(topics, "updates"),
    "sequence numbers have gaps": lambda topics: without(topics, "updates", 0),
    "updates sent twice": lambda topics: twice(topics, "updates"),
    "updates applied": lambda topics: without(topics, "model"),
    "model, .* not as after a calm run": lambda topics: altered(topics, "model", b"kernel/"),
    "state, .* not as after a calm run": lambda topics: altered(topics, "pofmkl-client.state", b"part/"),
    "the state reflects": lambda topics: altered(topics, "pofmkl-client.state", POSITION_KEY),
    "dead letters": lambda topics: topics["dead-letters"].append(topics["readings"][0]),
}


@pytest.fixture(name="calm", scope="module")
def _calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[PofmklSettings, Topics]:
    """A short lockstep run without faults on the memory bus, which the verdict calls sound."""
    path = tmp_path_factory.mktemp("soak") / "soak.toml"
    plan = Plan(clients=3)
    path.write_text(configuration_of(plan, "kafka://127.0.0.1:1"))
    settings = load_settings(path, PofmklSettings)
    draws = np.random.default_rng(0)
    readings = [
        Record("soak.readings", number % plan.clients, number // plan.clients, b"client-%d" % client, sample(draws, client, number))
        for number in range(60)
        for client in [number % plan.clients]
    ]
    assert plan.clients <= PARTITIONS
    bus = run_calmly(settings, readings)
    topics = {name: list(bus.read(f"soak.{name}")) for name in TOPICS}
    assert judge_topics(settings, topics).wrong == []
    return settings, topics


@pytest.mark.parametrize("found", DAMAGE)
def test_the_verdict_finds(found: str, calm: tuple[PofmklSettings, Topics]) -> None:
    """Protects the soak from finding nothing: what is lost, doubled or altered is said."""
    settings, topics = calm
    damaged = {name: list(records) for name, records in topics.items()}
    DAMAGE[found](damaged)
    wrong = judge_topics(settings, damaged).wrong
    assert any(re.search(found, text) for text in wrong), wrong
