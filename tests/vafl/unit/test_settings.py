"""The sizes that a vertical federation's settings allow: whatever its members remember or send fits into a
record."""

from __future__ import annotations

from typing import Any, Literal, cast

import numpy as np
import pytest

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import ConfigurationError, Received, Record, Role, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import EMBEDDING, Embedding, Reply
from streamfl.vafl.party.role import VaflParty

PARTY, COORDINATOR = "vafl-party", "vafl-coordinator"
# As long as an entity's name may be, of characters that take the most bytes.
LONGEST_ENTITY = "\N{EARTH GLOBE EUROPE-AFRICA}" * 256
# Kafka's default of what a record batch may be, which is never less than the one record in it.
KAFKA_LIMIT = 1_048_588
CLASSES = {"learning": {"loss": "softmax", "classes": 41_496}}
NETWORK = {"head": {"kind": "network"}}


def vertical(
    kind: str, parties: int, size: int, sections: dict[str, Any], precision: str = "float32"
) -> VaflSettings:
    """A member's settings, with what it cannot do without, as a command loads them."""
    names = [f"p{number}" for number in range(parties)]
    federation = {"name": "f", "parties": names, "embedding_size": size, "precision": precision}
    own: dict[str, Any] = {"labels": {"topic": "t", "label": "y"}}
    if kind == PARTY:
        own = {"party": {"name": "p0"}, "samples": {"topic": "t", "features": ["x"]}}
    return load_settings(
        None, VaflSettings, {"federation": federation, "role": {"kind": kind}, **own, **sections}
    )


def written(role: Role, channel: str, message: Any) -> list[int]:
    """Sizes of the records that a role writes because of one message about the entity with the longest
    name."""
    record = Record("t", 0, 0, LONGEST_ENTITY.encode(), b"")
    replies = role.receive([Received(channel, message, record)], 1e9)
    sends = [said for said in replies if isinstance(said, Send)]
    assert len(sends) == len(replies), replies
    records = [(said.key or b"", said.value) for said in sends]
    records += [(change.key, change.value or b"") for change in role.changed_state()]
    return [len(key) + len(value) for key, value in records]


@pytest.mark.parametrize(
    ("parties", "size", "precision", "sections"),
    [
        (3, 41_487, "float64", NETWORK),
        (64, 1207, "float64", CLASSES | {"head": {"kind": "network", "hidden": [1]}}),
    ],
)
def test_the_largest_vertical_federations_fit_into_records(
    parties: int, size: int, precision: Literal["float32", "float64"], sections: dict[str, Any]
) -> None:
    """Protects a coordinator from records that Kafka refuses, which would stop it for good: with the most
    that its settings allow it writes what is smaller, of any name, and no far smaller federation is refused.
    """
    settings = vertical(COORDINATOR, parties, size, sections | {"alignment": {"quorum": parties}}, precision)
    role = cast(VaflCoordinator, find_kind(COORDINATOR).build(settings))
    role.open(0)
    draws = np.random.default_rng(0)
    sizes: list[int] = []
    for number in range(parties):
        values = encode_array(draws.normal(size=size).astype(precision))
        embedding = Embedding(VERSION, role.fingerprint, LONGEST_ENTITY, 10**15, 2**52, 2**52, values)
        assert len(EMBEDDING.encode(embedding)) < KAFKA_LIMIT
        sizes += written(role, f"embeddings/p{number}", embedding)
    label = Label(LONGEST_ENTITY, LONGEST_ENTITY, 1.0)
    assert 0.85 * KAFKA_LIMIT < max(sizes + written(role, "labels", label)) < KAFKA_LIMIT


@pytest.mark.parametrize(
    ("kind", "parties", "size", "precision", "sections", "words"),
    [
        (
            PARTY,
            64,
            3875,
            "float32",
            {},
            ["federation.embedding_size = 3875", "64 parties", "at most 3874", "name fewer parties"],
        ),
        (COORDINATOR, 3, 41_488, "float64", NETWORK, ["at most 41487", 'federation.precision = "float32"']),
        (COORDINATOR, 4, 41_496, "float32", CLASSES, ["at most 38886", 'head.kind = "network" takes any']),
        (
            COORDINATOR,
            2,
            1,
            "float32",
            NETWORK | {"learning": {"loss": "softmax", "classes": 41_497}},
            ["learning.classes = 41497", "probability of each", "at most 41496"],
        ),
    ],
)
def test_vertical_federations_too_large_for_records_are_refused(
    kind: str, parties: int, size: int, precision: str, sections: dict[str, Any], words: list[str]
) -> None:
    """Protects members from a start that can only end in a record that Kafka refuses: the text says which
    number is too large, how large it may be, and what else would help.
    """
    with pytest.raises(ConfigurationError) as caught:
        vertical(kind, parties, size, sections, precision)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_partys_memory_of_an_entity_fits_into_a_record() -> None:
    """Protects a party with very many inputs from a record that Kafka refuses: of an entity that waits for
    its step it remembers the inputs and the gradient in one.
    """

    def settings(inputs: int) -> VaflSettings:
        samples = {"topic": "t", "features": "x", "dimension": inputs}
        # Of one hidden unit: without, so many inputs and outputs would make a network of gigabytes.
        sections = {"samples": samples, "embedding": {"hidden": [1]}, "learning": {"batch_size": 2}}
        return vertical(PARTY, 1, 40_000, sections, "float64")

    with pytest.raises(ConfigurationError) as caught:
        find_kind(PARTY).build(settings(84_489))
    assert "samples.features" in str(caught.value)
    assert "at most 84,488 inputs" in str(caught.value)
    assert 'or set federation.precision = "float32"' in str(caught.value)
    role = cast(VaflParty, find_kind(PARTY).build(settings(84_488)))
    role.open(0)
    sizes = written(role, "samples", Sample(LONGEST_ENTITY, LONGEST_ENTITY, (0.5,) * 84_488, None))
    reply = Reply(VERSION, role.fingerprint, LONGEST_ENTITY, 10**15, 1, encode_array(np.ones(40_000)))
    sizes += written(role, "gradients", reply)
    assert 0.85 * KAFKA_LIMIT < max(sizes) < KAFKA_LIMIT
