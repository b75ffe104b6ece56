"""Roles with a row that stands out in a party's columns: they learn all the same, and its label is not to be
had."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.test_closed_loop import assert_equals_direct
from quasi_newton.makers import problem

from streamfl.quasi_newton.members.rounds import TrainingRounds

ROWS, COLUMNS = 220, 3
NAMES = ("g", "h1", "c")


class Heard:
    """What the host was told of gradients in a training.

    flipped: whether the row's label is the other one.
    largest: the bound.
    who: the party in whose columns the row stands out.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, flipped: bool, largest: float, who: str, row: int = 5
    ) -> None:
        sections: dict[str, Any] = {
            "learning": {"largest_leverage": largest},
            "preprocessing": {"method": "none"},
        }
        self.loop = loop = ClosedLoop(
            {name: settings_of(name, 1, **{k: dict(v) for k, v in sections.items()}) for name in NAMES}
        )
        inputs, labels = problem(ROWS, 2 * COLUMNS, seed=3)
        labels[row] = -1.0 if flipped else 1.0
        at = 0 if who == "g" else COLUMNS
        # Two columns that are the same but in one row: each has support.
        inputs[:, at + 1] = inputs[:, at]
        inputs[row, at + 1] += 0.5
        self.label, self.name, self.who = labels[row], f"customer {row}", who
        for number, party in enumerate(("g", "h1")):
            for place, own in enumerate(inputs[:, number * COLUMNS : (number + 1) * COLUMNS].tolist()):
                content = {f"x{column}": value for column, value in enumerate(own)}
                loop.write(f"{party}-samples", f"customer {place}", msgspec.json.encode(content))
        for place in range(ROWS):
            loop.write("labels", f"customer {place}", msgspec.json.encode({"y": int(labels[place] > 0)}))
        self.sums: list[tuple[bool, list[int]]] = []
        products, listener = TrainingRounds.products, loop.party(who)

        def listening(rounds: TrainingRounds, numbers: list[int]) -> list[int]:
            if rounds is listener.rounds and not rounds.for_curvature:
                learnt = list(listener.learnt)
                self.sums.append((self.name in [learnt[place] for place in rounds.batch], list(numbers)))
            return products(rounds, numbers)

        monkeypatch.setattr(TrainingRounds, "products", listening)
        loop.settle()
        monkeypatch.setattr(TrainingRounds, "products", products)

    @property
    def differences(self) -> list[float]:
        """Of the two columns' sums, in batches with the row: its residual times 0.5 or so, at weights that
        stay small."""
        return [float(sums[1] - sums[0]) for is_there, sums in self.sums if is_there]


@pytest.mark.parametrize("who", ["g", "h1"])
def test_the_label_of_a_row_that_stands_out_is_not_in_the_transcript(
    monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """Protects labels, and hosts' outputs, in the roles as they are: without the bound the row's residual
    stands alone in what the party is told at each visit; with it nothing of the row does, whatever its label
    is.
    """
    plain = [Heard(monkeypatch, flipped, 1.0, who) for flipped in (False, True)]
    for one in plain:
        assert [np.sign(-found) for found in one.differences] == [one.label] * len(one.differences)
        assert len(one.differences) == 4
        assert one.loop.members[who].role.counts.muted_rows == 0
    bounded = [Heard(monkeypatch, flipped, 0.2, who) for flipped in (False, True)]
    for one in bounded:
        # The two columns are one and the same there.
        assert one.differences == [0.0] * 4
        assert_equals_direct(one.loop)
    # The row is in the first batch. Before anybody has learnt from its label, what is told does not depend on
    # it at all: not the guest's intercept either, whose sum is behind the columns'. Its last is the labels'
    # own, for the loss.
    first = [one.sums[0][1][: COLUMNS + (who == "g")] for one in bounded]
    assert all(one.sums[0][0] for one in bounded)
    assert first[0] == first[1]


def test_muted_rows_are_told_once_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the operator's figures: a party says how many rows it learns from with zeros, and not again
    after a restart."""
    loop = Heard(monkeypatch, False, 0.2, "h1").loop
    member = loop.members["h1"]
    (notice,) = [one for one in member.role.notices() if one.reason == "muted"]
    assert notice.text.startswith("1 of 200 rows are so far out")
    assert loop.figures("h1")["muted_rows"] == 1
    assert loop.members["g"].role.counts.muted_rows == 0
    before = [loop.party(name).rows.learnt() for name in ("g", "h1")]
    loop.restart("h1")
    assert loop.members["h1"].role.counts.muted_rows == 0
    for name, (inputs, muted) in zip(("g", "h1"), before, strict=True):
        again = loop.party(name).rows.learnt()
        assert np.array_equal(again[0], inputs)
        assert np.array_equal(again[1], muted)
        assert not inputs[muted].any()
