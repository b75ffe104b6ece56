"""The soak's verdict on VAFL: what is learnt twice, or remembered otherwise than it was told, is found in
what members remember."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from soak.calm import left_calmly
from soak.subject import Left, Plan
from soak.verdict import judge_topics
from vafl.soak import SOAK

from streamfl.contract.role import Record
from streamfl.vafl.coordinator.learning_head import HeadCounters
from streamfl.vafl.coordinator.remembered_entity import RememberedEntity
from streamfl.vafl.state import HEAD_COUNTERS

COORDINATOR, PARTY = "soak.vafl-coordinator.state", "soak.bank.state"


def learnt_once_more(value: bytes) -> bytes:
    """A head that counts one entity more."""
    counters = msgspec.msgpack.decode(value, type=HeadCounters)
    counters.gathered += 1
    return msgspec.msgpack.encode(counters)


def learnt_a_batch_less(value: bytes) -> bytes:
    """A head that has taken none of its steps."""
    counters = msgspec.msgpack.decode(value, type=HeadCounters)
    counters.steps = 0
    return msgspec.msgpack.encode(counters)


def of_the_other_label(value: bytes) -> bytes:
    """An entity with the label that came second."""
    entity = msgspec.msgpack.decode(value, type=RememberedEntity)
    entity.label = 1 - (entity.label or 0.0)
    return msgspec.msgpack.encode(entity)


def of_other_parameters(value: bytes) -> bytes:
    """A model of which one number differs."""
    numbers = np.frombuffer(value, "<f8").copy()
    numbers[0] += 1e-4
    return numbers.tobytes()


# What the verdict says; of which mode, topic and kind of key; and what is done to the last such record.
DAMAGE: dict[str, tuple[str, str, bytes, Callable[[bytes], bytes]]] = {
    "times learnt": ("lockstep", COORDINATOR, HEAD_COUNTERS.prefix, learnt_once_more),
    "times learnt, of": ("async", COORDINATOR, HEAD_COUNTERS.prefix, learnt_a_batch_less),
    "labels are not the first": ("async", COORDINATOR, b"entity/", of_the_other_label),
    "from what its gradients make": ("async", PARTY, b"array/parameters/", of_other_parameters),
    "from that of a run without faults": ("lockstep", COORDINATOR, b"array/parameters/", of_other_parameters),
}


@pytest.fixture(name="calm", scope="module")
def _calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Left]:
    """By mode, what a short load leaves behind. The verdict calls it sound."""
    found = {mode: left_calmly(SOAK, Plan(mode), tmp_path_factory.mktemp("soak"), 240) for mode in SOAK.modes}
    assert all(judge_topics(SOAK, left).wrong == [] for left in found.values())
    return found


@pytest.mark.parametrize("found", DAMAGE)
def test_the_verdict_finds(found: str, calm: dict[str, Left]) -> None:
    """Protects the soak of VAFL from finding nothing: a label that counts twice shows in no message, only in
    what is remembered."""
    mode, topic, key, damage = DAMAGE[found]
    left = calm[mode]
    records: list[Record] = list(left.topics[topic])
    place = max(
        place for place, record in enumerate(records) if (record.key or b"").startswith(key) and record.value
    )
    records[place] = msgspec.structs.replace(records[place], value=damage(records[place].value or b""))
    wrong = judge_topics(SOAK, Left(left.plan, left.settings, {**left.topics, topic: records})).wrong
    assert any(found in text for text in wrong), wrong


def test_a_load_without_lockstep_has_all_that_can_happen(calm: dict[str, Left]) -> None:
    """Protects the soak from a load that asks for nothing: revisions, requests, late labels and labels that
    come again."""
    left = calm["async"]
    counts = judge_topics(SOAK, left).counts
    assert counts["predictions"] > 240
    assert counts["requests"] > 0
    assert counts["labels"] > counts["entities_learnt"]
    assert counts["times_learnt"] > counts["entities_learnt"]
