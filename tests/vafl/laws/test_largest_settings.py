"""Parties and coordinators at the largest sizes that their settings allow: what they accept can be
written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from largest_settings import Case, check_what_is_accepted_can_be_written, written

from streamfl.contract.role import Record
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.testing.role_laws import Extreme
from streamfl.vafl.roles import ROLES

# One to come is refused, and there is no clock here.
EPOCH = 1


def settings(kind: str, **sections: dict[str, Any]) -> Any:
    """Of a federation "f" with what these sections say besides."""
    federation = {"name": "f", **sections.pop("federation", {})}
    return ROLES[kind].settings(federation=federation, role={"kind": kind}, **sections)


def party(precision: str) -> Case:
    """A party with as many inputs as it may have."""

    def make(number: int) -> Any:
        return settings(
            "vafl-party",
            federation={"parties": ["a", "b"], "embedding_size": 1, "precision": precision},
            party={"name": "a"},
            samples={"topic": "samples", "entity": "entity", "features": "x", "dimension": number},
            learning={"in_flight": 16, "batch_size": 16},
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        inputs = [extreme.number] + [0] * (made.samples.dimension - 1)
        samples = [
            written(b"k", {"entity": f"{place}{extreme.name}"[: len(extreme.name)], "x": inputs})
            for place in range(18)
        ]
        gradient = encode_array(np.full(1, extreme.number, precision))
        replies = [
            written(name.encode(), [VERSION, fingerprint, name, int(1e9), place + 1, gradient], "gradients")
            for place in range(3)
            for name in [f"{place}{extreme.name}"[: len(extreme.name)]]
        ]
        return [*samples, *replies]

    return Case(make, anybody)


def coordinator(precision: str, parties: int, loss: str, size: str) -> Case:
    """A coordinator with as large embeddings, or as many classes, as it may have."""

    def make(number: int) -> Any:
        classes = {"classes": number if size == "classes" else 2} if loss == "softmax" else {}
        names = [f"p{place}" for place in range(parties)]
        return settings(
            "vafl-coordinator",
            federation={
                "parties": names,
                "embedding_size": number if size == "embeddings" else 1,
                "precision": precision,
            },
            labels={"topic": "labels", "entity": "entity", "label": "y"},
            learning={"loss": loss, "wait_for": parties, **classes},
            head={"kind": "network"},
        )

    def anybody(made: Any, fingerprint: int, extreme: Extreme) -> Sequence[tuple[str, Record]]:
        name, names = extreme.name, made.federation.parties
        values = encode_array(np.full(made.federation.embedding_size, extreme.number, precision))
        embeddings = [
            written(
                name.encode(),
                [VERSION, fingerprint, name, EPOCH, place, extreme.whole, values],
                f"embeddings/{party}",
            )
            for place, party in enumerate([*names, *names], start=1)
        ]
        return [*embeddings, written(b"k", {"entity": name, "y": 1}, "labels"), *embeddings[:1]]

    return Case(make, anybody)


CASES = {
    "party-float64": party("float64"),
    "coordinator-many": coordinator("float64", 64, "logistic", "embeddings"),
    "coordinator-classes": coordinator("float32", 2, "softmax", "classes"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_accepted_can_be_written_at_the_limits_of_the_settings(case: Case) -> None:
    """Protects a role that its settings allow from ending at every start, or once it has learnt enough for
    its first snapshot."""
    check_what_is_accepted_can_be_written(case)
