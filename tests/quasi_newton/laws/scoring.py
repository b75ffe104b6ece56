"""Federations that score, and what they have said and published."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from quasi_newton.federations import Secrets
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.test_closed_loop import federation
from quasi_newton.makers import problem

from streamfl.quasi_newton.messages import Message, place_of
from streamfl.quasi_newton.scoring.party import ScoringParty
from streamfl.quasi_newton.training.training_progress import TRAINED

Floats = NDArray[np.float64]
ROWS, COLUMNS, MISSING = 150, 3, 7
# Entities that a guest and one host both know.
COMMON = ROWS - 2 * MISSING
# The formulas of tests are of standardised columns.
SHORT: dict[str, Any] = {"learning": {"epochs": 1}, "preprocessing": {"method": "standardise"}}
PREDICTIONS = "f.predictions"
SCORING = (".questions", ".answers")


def scoring_federation(
    hosts: int, rows: int = ROWS, secrets: Secrets | None = None, **sections: dict[str, Any]
) -> ClosedLoop:
    """Untrained. At each party other entities are missing. Calibration needs no more than 20 entities."""
    scoring = {"calibration_entities": 20, **sections.pop("scoring", {})}
    loop = federation(hosts, secrets, scoring=scoring, **{**SHORT, **sections})
    loop.write_table(rows, COLUMNS, hosts, missing=MISSING)
    return loop


def scored(
    hosts: int, rows: int = ROWS, secrets: Secrets | None = None, **sections: dict[str, Any]
) -> ClosedLoop:
    """Trained, and everybody scored."""
    loop = scoring_federation(hosts, rows, secrets, **sections)
    loop.settle()
    assert loop.party("g").progress.phase == TRAINED
    return loop


def parties(loop: ClosedLoop) -> list[str]:
    return [name for name in loop.members if name != "c"]


def scoring_party(loop: ClosedLoop, name: str) -> ScoringParty:
    party = loop.party(name)
    assert isinstance(party, ScoringParty)
    return party


def predictions(loop: ClosedLoop) -> list[dict[str, Any]]:
    """All that were committed, in their order."""
    return [msgspec.json.decode(value) for _, topic, value in loop.committed if topic == PREDICTIONS]


def said(loop: ClosedLoop, writes: list[tuple[str, str, bytes]]) -> Iterator[tuple[str, Message, bytes]]:
    """Messages about scores: who said it, the message, and its content with the seal taken off."""
    given = loop.party("g").given
    for sender, topic, value in writes:
        if topic.endswith(SCORING):
            message = given.codec.decode(value)
            host = topic.split(".")[1]
            yield sender, message, given.links[host].open(message.content, topic, place_of(message))


def new_version(loop: ClosedLoop, version: int) -> None:
    """A training has ended at all parties: the same columns with other weights."""
    for name in parties(loop):
        party = scoring_party(loop, name)
        assert party.trained is not None
        weights = party.trained.weights * -0.5
        party._latest.keep(dataclasses.replace(party.trained, version=version, weights=weights))
        party.progress.run = version
        party.exchange.remember()
        party.scoring.went_on()
        loop.commit(name)


def write_entity(
    loop: ClosedLoop, name: str, columns: dict[str, list[float]], label: int | None = None
) -> None:
    """Columns of an entity at some parties."""
    for party, numbers in columns.items():
        loop.write(
            f"{party}-samples",
            name,
            msgspec.json.encode({f"x{at}": value for at, value in enumerate(numbers)}),
        )
    if label is not None:
        loop.write("labels", name, msgspec.json.encode({"y": label}))


def table(hosts: int, rows: int = ROWS) -> tuple[dict[str, dict[str, Floats]], dict[str, float]]:
    """What was written: by party, columns of each entity that it has; and labels -1 and 1."""
    inputs, labels = problem(rows, COLUMNS * (hosts + 1), seed=3)
    names = ["g", *(f"h{number + 1}" for number in range(hosts))]
    columns = {
        name: {
            f"customer {row}": inputs[row, number * COLUMNS : (number + 1) * COLUMNS]
            for row in range(rows)
            if row // MISSING != number
        }
        for number, name in enumerate(names)
    }
    return columns, {f"customer {row}": float(labels[row]) for row in range(rows)}


def expected_outputs(loop: ClosedLoop, hosts: int, quantum: float) -> dict[str, float]:
    """u = u_B + sum over hosts of round(u_h / quantum) quantum, of the table standardised by the rows of the
    training."""
    columns, _ = table(hosts)
    common = sorted(set.intersection(*(set(own) for own in columns.values())))
    total = np.zeros(len(common))
    for name, own in columns.items():
        model = loop.party(name).trained
        assert model is not None
        learnt = np.array([own[one] for one in sorted(loop.party(name).learnt)])
        # None of the rows that are learnt from is far out: columns are cut at the range of all of them.
        rows = np.clip(np.array([own[one] for one in common]), learnt.min(axis=0), learnt.max(axis=0))
        ready = (rows - learnt.mean(axis=0)) / learnt.std(axis=0)
        ready = np.rint(np.clip(ready, -256, 256) * 256) / 256
        if name == "g":
            total += ready @ model.weights[:-1] + model.weights[-1]
        else:
            total += np.rint(ready @ model.weights / quantum) * quantum
    return dict(zip(common, total.tolist(), strict=True))
