"""The soak of DP Frank-Wolfe without a cluster: a calm run is right, and what must not be is found."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from dp_frank_wolfe.soak import SOAK
from soak.calm import left_calmly
from soak.subject import Left, Plan
from soak.verdict import judge_topics

from streamfl.contract.role import Record

SAMPLES = 120


@pytest.fixture(name="calm", scope="module")
def _calm(tmp_path_factory: pytest.TempPathFactory) -> Left:
    """What a short load leaves behind."""
    return left_calmly(SOAK, Plan("two-round", seed=7), tmp_path_factory.mktemp("soak"), SAMPLES, at_once=40)


def charged_again(value: bytes) -> bytes:
    spent, times = msgspec.msgpack.decode(value)
    return msgspec.msgpack.encode([2 * spent, times + 1])


def another_release(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


DAMAGE: dict[str, tuple[str, Callable[[Record], bool], Callable[[bytes], bytes], bool]] = {
    "charged twice": (
        "ledger-clinic.ledger",
        lambda one: (one.key or b"").startswith(b"spent/"),
        charged_again,
        True,
    ),
    "said twice": (
        "soak.insurer.releases",
        lambda one: b"products" in (one.value or b""),
        another_release,
        False,
    ),
    "predictions too many": ("soak.predictions", lambda one: True, lambda value: value, False),
}


@pytest.mark.parametrize("found", DAMAGE)
def test_the_verdict_finds(found: str, calm: Left) -> None:
    """Protects the soak from finding nothing."""
    topic, chosen, change, instead = DAMAGE[found]
    records = list(calm.topics[topic])
    place = max(place for place, one in enumerate(records) if chosen(one))
    other = msgspec.structs.replace(records[place], value=change(records[place].value or b""))
    records = [
        *records[:place],
        *([other] if instead else [records[place], *(4 * [other])]),
        *records[place + 1 :],
    ]
    wrong = judge_topics(SOAK, Left(calm.plan, calm.settings, {**calm.topics, topic: records})).wrong
    assert any(found in text for text in wrong), wrong
