"""The soak's verdict on POF-MKL: what is lost, doubled or altered is said in words that tell what it was."""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from pofmkl.soak import READINGS, SOAK
from soak.calm import left_calmly
from soak.subject import Left, Plan
from soak.verdict import judge_topics

from streamfl.contract.role import Record
from streamfl.runtime.tasks import POSITION_KEY

Topics = dict[str, list[Record]]

UPDATES, MODEL, STATE = "soak.updates", "soak.model", "soak.pofmkl-client.state"


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
    "samples without a prediction": lambda topics: without(topics, "soak.predictions"),
    "predictions too many": lambda topics: twice(topics, "soak.predictions"),
    "labels in its uploads": lambda topics: without(topics, UPDATES),
    "sequence numbers have gaps": lambda topics: without(topics, UPDATES, 0),
    "updates sent twice": lambda topics: twice(topics, UPDATES),
    "updates applied": lambda topics: without(topics, MODEL),
    "model, .* not as after a calm run": lambda topics: altered(topics, MODEL, b"kernel/"),
    "state, .* not as after a calm run": lambda topics: altered(topics, STATE, b"part/"),
    "the state reflects": lambda topics: altered(topics, STATE, POSITION_KEY + READINGS.encode()),
    "dead letters": lambda topics: topics["soak.dead-letters"].append(topics[READINGS][0]),
}


@pytest.fixture(name="calm", scope="module")
def _calm(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """A short lockstep run without faults on the memory bus, which the verdict calls sound."""
    left = left_calmly(SOAK, Plan("lockstep"), tmp_path_factory.mktemp("soak"), samples=100, at_once=100)
    assert judge_topics(SOAK, left).wrong == []
    return left


@pytest.mark.parametrize("found", DAMAGE)
def test_the_verdict_finds(found: str, calm: Left) -> None:
    """Protects the soak from finding nothing: what is lost, doubled or altered is said."""
    topics = {name: list(records) for name, records in calm.topics.items()}
    DAMAGE[found](topics)
    wrong = judge_topics(SOAK, Left(calm.plan, calm.settings, topics)).wrong
    assert any(re.search(found, text) for text in wrong), wrong
