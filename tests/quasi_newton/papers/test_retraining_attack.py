"""What a host finds out about labels from all that the roles ever let it see, over three retrainings."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.quasi_newton.gradient_attacks import Equations, Federation, label_auc, make
from streamfl.quasi_newton.members import guest
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.rounds import TrainingRounds
from streamfl.quasi_newton.rows import batches
from streamfl.quasi_newton.rows.batches import FrozenBatches
from streamfl.quasi_newton.rows.learnt_batches import LearntBatches
from streamfl.state.changelog import ChangedParts

COLUMNS, BATCH, EVERY = 10, 100, 1000.0
Floats = NDArray[np.float64]
SECTIONS: dict[str, Any] = {
    "learning": {
        "batch": BATCH,
        "min_batch": BATCH,
        "memory": 24,
        "curvature_every": 4,
        "regularisation": 0.0,
        "epochs": 5,
    },
    "alignment": {"entities": BATCH, "limit": 1050},
    "retraining": {"every_seconds": EVERY, "entities": 90},
}


class Host:
    """The host as an attacker: what it hears, as equations for the guest's part of D. rows: by entity, its
    own columns."""

    def __init__(self) -> None:
        self.equations: list[tuple[NDArray[np.intp], Floats]] = []
        self.rows: dict[int, Floats] = {}

    def hear(self, rounds: TrainingRounds, party: PartyTask, numbers: list[int]) -> None:
        own, names = rounds.iterates.own, list(party.learnt)
        rows = np.array([int(names[at].removeprefix("customer ")) for at in rounds.batch], dtype=np.intp)
        inputs = np.ldexp(
            own.integers[rounds.batch].astype(float), -party.settings.kinds.inputs.fraction_bits
        )
        self.rows |= dict(zip(rows.tolist(), inputs, strict=True))
        sums = party.settings.kinds.gradients.decode(np.array(numbers, dtype=object))
        self.equations.append((rows, sums - inputs.T @ (inputs @ own.weights)))

    def found(self, labels: Floats, first: int | None = None) -> float:
        """AUC of labels by least squares over all equations, or over the first."""
        heard = self.equations[:first]
        inputs = np.zeros((len(labels), COLUMNS))
        for row, values in self.rows.items():
            inputs[row] = values
        return label_auc(Equations([rows for rows, _ in heard], [sums for _, sums in heard]), inputs, labels)


def write(loop: ClosedLoop, federation: Federation, first: int, end: int) -> None:
    for row in range(first, end):
        for party, inputs in (("g", federation.guest), ("h1", federation.host)):
            content = {f"x{column}": float(value) for column, value in enumerate(inputs[row])}
            loop.write(f"{party}-samples", f"customer {row}", msgspec.json.encode(content))
        loop.write("labels", f"customer {row}", msgspec.json.encode({"y": int(federation.labels[row] > 0)}))


def attacked(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> tuple[Host, ClosedLoop]:
    """Trained, and trained again three times: 5 rows fill no batch at first, and the oldest batches go."""
    # So small a batch is refused otherwise: with a larger one there is less to find.
    monkeypatch.setattr(batches, "COLUMNS_FACTOR", 5)
    loop = ClosedLoop({name: settings_of(name, 1, columns=COLUMNS, **SECTIONS) for name in ("g", "h1", "c")})
    host, party = Host(), loop.party("h1")
    products = TrainingRounds.products

    def listening(rounds: TrainingRounds, numbers: list[int]) -> list[int]:
        if rounds is party.rounds and not rounds.for_curvature:
            host.hear(rounds, party, numbers)
        return products(rounds, numbers)

    monkeypatch.setattr(TrainingRounds, "products", listening)
    ends = np.linspace(federation.kept, len(federation.labels), 4).astype(int).tolist()
    for first, end in itertools.pairwise([0, *ends]):
        write(loop, federation, first, end)
        loop.settle()
        loop.now += EVERY
        loop.settle()
    assert loop.party("h1").progress.run == 4
    assert loop.rejections() == []
    return host, loop


def test_three_retrainings_tell_a_host_no_more_of_labels_than_one_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Protects labels, in the roles as they are: more trainings, new batches and old ones that go are no new
    equations."""
    federation = make()
    host, loop = attacked(federation, monkeypatch)
    assert len(host.equations) == 4 * 5 * 10
    assert [len(loop.party(name).learnt) for name in ("g", "h1")] == [1000, 1000]
    assert loop.members["h1"].role.counts.expired_batches == 2
    once, always = host.found(federation.labels, 10), host.found(federation.labels)
    assert 0.7 < once < 0.82
    assert always <= once + 0.02


def test_batches_that_are_drawn_anew_tell_a_host_far_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the test above: it finds the mutant whose retrainings put all records into other batches."""

    def forgetful(party: PartyTask) -> None:
        party.rows.batches.__init__(  # type: ignore[misc]
            ChangedParts(), BATCH, COLUMNS, 10, party.given.secret, party.outbox.counts
        )
        names = sorted(party.table.with_columns())
        party.rows.freeze(names, *party.table.rows(names))

    seeds = itertools.count()
    monkeypatch.setattr(PartyTask, "freeze", forgetful)
    monkeypatch.setattr(LearntBatches, "__contains__", lambda self, name: False)
    monkeypatch.setattr(guest, "FrozenBatches", lambda size, seed: FrozenBatches(size, next(seeds)))
    federation = make()
    host, _ = attacked(federation, monkeypatch)
    once, always = host.found(federation.labels, 10), host.found(federation.labels)
    assert once < 0.82
    assert always > once + 0.05
