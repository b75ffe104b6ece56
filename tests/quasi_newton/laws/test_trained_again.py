"""What a host can find out of labels from everything that roles told it, over a training and three more."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.gradient_attacks import Equations, Federation, label_auc, make, own_model
from streamfl.quasi_newton.encryption.scheme import to_numbers
from streamfl.quasi_newton.messages import codec, place_of
from streamfl.quasi_newton.training.training_progress import TRAINED

BATCH, COLUMNS, EPOCHS = 200, 10, 4
# The first fill five batches and leave 5 over. There is room for six batches.
ENDS = (1_005, 1_110, 1_260, 1_610)
LIMIT = 1_200


@cache
def table() -> Federation:
    return make(ENDS[-1], ENDS[0], COLUMNS)


def federation(seed: int, epochs: int = EPOCHS) -> ClosedLoop:
    sections = {
        "federation": {"name": "f", "parties": ["g", "h1"], "seed": seed},
        "learning": {"batch": BATCH, "memory": 24, "epochs": epochs, "tolerance": 0.0},
        "alignment": {"entities": BATCH, "limit": LIMIT},
        "retraining": {"every_seconds": 10.0, "entities": 50},
    }
    # The guest's intercept is a column as well.
    columns = {"g": COLUMNS - 1, "h1": COLUMNS, "c": 0}
    return ClosedLoop({name: settings_of(name, 1, columns=own, **sections) for name, own in columns.items()})


def write(loop: ClosedLoop, rows: range) -> None:
    for row in rows:
        for party, inputs in (("g", table().guest[:, 1:]), ("h1", table().host)):
            content = {f"x{column}": float(value) for column, value in enumerate(inputs[row])}
            loop.write(f"{party}-samples", str(row), msgspec.json.encode(content))
        loop.write("labels", str(row), msgspec.json.encode({"y": int(table().labels[row] > 0)}))


class Host:
    """A host that keeps all that it was told, and every batch that it was in.

    inputs: its columns as they were learnt from, by customer.
    """

    def __init__(self) -> None:
        self.inputs = np.zeros((ENDS[-1], COLUMNS))
        self.rows: list[NDArray[np.intp]] = []
        self.sums: list[NDArray[np.float64]] = []
        self.runs: list[list[list[int]]] = []

    def listen(self, loop: ClosedLoop) -> None:
        """To the latest training."""
        party = loop.party("h1")
        assert party.progress.phase == TRAINED, party.progress.failure
        numbers, names = party.settings.kinds, [int(name) for name in party.rows.batches]
        integers = party.iterates.own.integers
        self.inputs[names] = numbers.inputs.decode(integers)
        self.runs.append([names[at : at + BATCH] for at in range(0, len(names), BATCH)])
        own, told = codec(loop.members["h1"].settings.message_bytes), {}
        for _, topic, value in loop.writes:
            if topic not in ("f.h1.outputs", "f.h1.uploads"):
                continue
            message = own.decode(value)
            if (
                message.run != party.progress.run
                or message.round % 2
                or message.kind not in ("outputs", "gradient")
            ):
                continue
            content = message.content
            if message.kind == "outputs":
                content = loop.party("g").given.links["h1"].open(content, topic, place_of(message))
            told[message.kind, message.round] = np.array(to_numbers(content), dtype=object)
        for kind, number in told:
            if kind == "gradient":
                place = number // 2 % len(self.runs[-1]) * BATCH
                rows = slice(place, place + BATCH)
                mine = integers[rows].astype(object).T @ told["outputs", number]
                self.sums.append(numbers.gradients.decode(told["gradient", number] - mine))
                self.rows.append(np.array(names[rows], dtype=np.intp))

    def found(self, once: bool = False) -> float:
        """AUC of labels. once: by the first visit to each batch alone."""
        seen, rows, sums = set(), [], []
        for batch, total in zip(self.rows, self.sums, strict=True):
            if not once or tuple(batch) not in seen:
                seen.add(tuple(batch))
                rows.append(batch)
                sums.append(total)
        known = 1 + max(int(batch.max()) for batch in rows)
        return label_auc(Equations(rows, sums), self.inputs[:known], table().labels[:known])


@pytest.mark.long
def test_three_more_trainings_of_roles_tell_no_more_labels_than_one_visit() -> None:
    """Protects labels over a federation's life: customers come, batches go, some wait, and no customer
    changes its batch."""
    loop, host, known = federation(0), Host(), 0
    for end in ENDS:
        write(loop, range(known, end))
        loop.settle()
        host.listen(loop)
        known = end
    # All of them come once more: whoever was in a batch that is gone comes into no other.
    write(loop, range(known))
    loop.settle()
    assert loop.party("h1").progress.run == len(host.runs) == 4
    # 5, 110, 60 and 10 waited, and two batches gave way.
    assert [len(batches) for batches in host.runs] == [5, 5, 6, 6]
    batches = {tuple(batch) for run in host.runs for batch in run}
    assert len({customer for batch in batches for customer in batch}) == 8 * BATCH == len(batches) * BATCH
    assert len(host.rows) == EPOCHS * (5 + 5 + 6 + 6)
    once = host.found(once=True)
    assert host.found() <= once + 0.02
    assert own_model(table()) < once < own_model(table()) + 0.06


@pytest.mark.long
def test_trainings_from_the_beginning_tell_more() -> None:
    """Protects the test above, and shows why state is kept: federations whose state was lost draw other
    batches each time."""
    host = Host()
    for seed in range(5):
        loop = federation(seed, epochs=1)
        write(loop, range(4 * BATCH))
        loop.settle()
        host.listen(loop)
    first = Host()
    first.inputs, first.rows, first.sums = host.inputs, host.rows[:4], host.sums[:4]
    assert host.found() > first.found() + 0.04
