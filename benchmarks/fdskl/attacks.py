"""What members of a kernel federation find out about each other's columns, by trying.

Three parties have ten columns each of the same patients; the active one has the labels too. Each attacker has
what it is sent and what all members know: the configuration, with the seed. What a protection costs is
measured as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.datasets import load_breast_cancer

from benchmarks.attacks import Attack, Attacks
from benchmarks.commands import Floats
from benchmarks.fdskl.recovery import (
    distances_of_phases,
    explained,
    from_known_rows,
    solved_differences,
    solved_from_the_first,
    up_to_an_affine_map,
)
from streamfl.fdskl.sums.circle import from_circle, to_circle
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity
from streamfl.fdskl.sums.masks import OwnIncarnation, masked, paper_mask
from streamfl.privacy.keyed_noise import noisy

SEED, FEATURES = 3, 1024
# Columns of the active party and of two others.
SPLIT = ((0, 10), (10, 20), (20, 30))
NORM, NOISES = 3.0, (0.75, 1.5, 3.0, 6.0)
# Rows that the attacker knows: five for each hidden column.
KNOWN = 5 * (SPLIT[-1][1] - SPLIT[1][0])
ACTIVE, PRIVATE = "the active party", "frequencies = private"
DIFFERENCES = "share of the differences' variance"


class Federation:
    """What parties send of a table, by the functions that they run.

    inputs: (instances, columns).
    split: first and last column of each party, the active one first.
    bandwidth: of a Gaussian kernel.
    private: whether each party draws frequencies by a secret of its own.
    """

    def __init__(
        self, inputs: Floats, split: Sequence[tuple[int, int]], bandwidth: float, private: bool
    ) -> None:
        self.inputs, self.split, self.bandwidth = inputs, tuple(split), bandwidth
        self.parties = [
            self._frequencies(own, self._secret(own) if private else None) for own in range(len(split))
        ]

    def sent(self, own: int, features: int, mask: str) -> NDArray[np.uint32]:
        """What a party that nobody sends to has sent of every instance, one round each: (instances, features)
        on the circle."""
        first, last = self.split[own]
        phases = self.parties[own].partial_phases(self.inputs[:, first:last], [(0, features)])
        if mask == "paper":
            return np.asarray(to_circle(phases + paper_mask(self._secret(own), 0, features), 32))
        lives = [OwnIncarnation(self._secret(number)) for number in range(len(self.split))]
        secrets = {
            peer: lives[own].pair_secret(life.public) for peer, life in enumerate(lives) if peer != own
        }
        rows = [
            masked(row, secrets, own, b"round %d" % n, b"phases")[:features]
            for n, row in enumerate(to_circle(phases, 32))
        ]
        return np.array(rows)

    def told(self, features: int) -> NDArray[np.uint32]:
        """What the active party knows of every instance after a round, less its own part: (instances,
        features) on the circle."""
        total = np.zeros((len(self.inputs), features), np.uint32)
        for party, (first, last) in list(zip(self.parties, self.split, strict=True))[1:]:
            total += to_circle(party.partial_phases(self.inputs[:, first:last], [(0, features)]), 32)
        return total

    def known_frequencies(self, own: int, features: int) -> Floats:
        """What everybody could draw from the configuration alone."""
        return self._frequencies(own, None).frequencies(0, features)

    def _frequencies(self, own: int, secret: bytes | None) -> Frequencies:
        names = [f"column {number}" for number in range(*self.split[own])]
        return Frequencies(
            SpectralDensity("gaussian", self.bandwidth), names, SEED, secret, len(self.split), own, 0
        )

    @staticmethod
    def _secret(own: int) -> bytes:
        return bytes([own + 1]) * 32


def protected_columns(inputs: Floats, split: Sequence[tuple[int, int]], norm: float, noise: float) -> Floats:
    """What each party projects instead of its columns: x_p shortened to the norm, and noise once: (instances,
    columns)."""
    result = inputs.copy()
    for own, (first, last) in enumerate(split):
        for number, row in enumerate(inputs[:, first:last]):
            short = row * min(1.0, norm / max(float(np.linalg.norm(row)), 1e-300))
            result[number, first:last] = noisy(short, noise, norm, f"secret of {own}", "federation", number)
    return result


@cache
def table() -> tuple[Floats, Floats, float]:
    """Columns with mean 0 and deviation 1, labels -1 and 1, in one random order, and the median distance of
    two instances."""
    data = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(data.target))
    inputs = data.data[order]
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return inputs, 2.0 * data.target[order] - 1, float(np.median(pdist(inputs)))


def two_messages_of_a_leaf(folder: Path) -> Iterator[Attack]:
    """Whom a leaf sends to subtracts two of its messages: under the paper's masks that is omega (x_a - x_c),
    of known omega."""
    inputs, _, median = table()
    federation = Federation(inputs, SPLIT, median, private=False)
    first, last = SPLIT[2]
    truth = inputs[1:, first:last] - inputs[:-1, first:last]

    def found(mask: str) -> float:
        sent = federation.sent(2, 128, mask)
        differences = solved_differences(sent[1:], sent[:-1], federation.known_frequencies(2, 128))
        return float(np.median(explained(differences, truth)))

    plain, protected = found("paper"), found("one-time")
    name, by = "two messages of a leaf", "a peer in the tree"
    yield Attack(name, by, DIFFERENCES, plain, "mask = one-time", protected, chance=0.0)


def two_answers(folder: Path) -> Iterator[Attack]:
    """The active party subtracts two answers, and solves for the differences of others' columns by the
    frequencies of the seed."""
    inputs, _, median = table()
    truth = inputs[:, SPLIT[1][0] :] - inputs[0, SPLIT[1][0] :]

    def found(private: bool) -> float:
        federation = Federation(inputs, SPLIT, median, private)
        known = np.hstack([federation.known_frequencies(own, FEATURES) for own in (1, 2)])
        differences = solved_from_the_first(from_circle(federation.told(FEATURES)), known)
        return float(np.median(explained(differences, truth)))

    plain, protected = found(False), found(True)
    yield Attack("two answers", ACTIVE, DIFFERENCES, plain, PRIVATE, protected, chance=0.0)


def distances(folder: Path) -> Iterator[Attack]:
    """The active party takes the mean cosine of what two rows' phases differ by: that is their kernel, and
    tells their distance.

    It knows no frequencies, and has asked for no distances.
    """
    inputs, _, bandwidth = table()
    truth = pdist(inputs[:, SPLIT[1][0] :])

    def found(private: bool) -> float:
        told = distances_of_phases(
            from_circle(Federation(inputs, SPLIT, bandwidth, private).told(FEATURES)), bandwidth
        )
        return float(np.median(np.abs(told / truth - 1)))

    guess = float(np.median(np.abs(np.median(truth) / truth - 1)))
    one, two = found(False), found(True)
    yield Attack("distances from phases", ACTIVE, "median relative error", one, PRIVATE, two, chance=guess)


def affine_map(folder: Path) -> Iterator[Attack]:
    """The active party knows no frequencies: kernel, distances, places, phases without turns, singular
    values. Then it is told five rows for each hidden column.
    """
    inputs, name = table()[0], "columns up to an affine map"
    shared, private = (recovered(inputs, private=own) for own in (False, True))
    noised = {_noise(noise): recovered(protected_columns(inputs, SPLIT, NORM, noise)) for noise in NOISES}
    figures = ("median R^2 of a column on what was found", f"median R^2 of the other rows, {KNOWN} known")
    for protection, plain, protected in (
        (PRIVATE, shared, private),
        *((own, private, found) for own, found in noised.items()),
    ):
        for figure, one, two in zip(figures, plain, protected, strict=True):
            yield Attack(name, ACTIVE, figure, one, protection, two, chance=0.0)


def recovered(seen: Floats, features: int = FEATURES, private: bool = True) -> tuple[float, float]:
    """Median R^2 of the hidden columns, of what was projected in their place: by the affine map that fits
    best, and of the other rows by that of ``KNOWN`` ones."""
    hidden, bandwidth = table()[0][:, SPLIT[1][0] :], float(np.median(pdist(seen)))
    told = Federation(seen, SPLIT, bandwidth, private).told(features)
    places = up_to_an_affine_map(from_circle(told), bandwidth, hidden.shape[1])
    best = from_known_rows(places, hidden, len(hidden))
    rest = from_known_rows(places, hidden, KNOWN)[KNOWN:]
    return float(np.median(explained(best, hidden))), float(np.median(explained(rest, hidden[KNOWN:])))


def price_of_noise(folder: Path) -> Iterator[Attack]:
    """No attack: the error of ridge regression on the features, of the last third of the table, with and
    without the noise.

    Bandwidth and ridge are those with the least error on the second third, having learnt from the first.
    """
    inputs, labels, _ = table()
    plain = prediction_error(inputs, labels, inputs)
    guess = float(np.mean(labels[np.array_split(np.arange(len(labels)), 3)[2]] != 1))
    for noise in NOISES:
        noised = prediction_error(inputs, labels, protected_columns(inputs, SPLIT, NORM, noise))
        figure = "error of the predictions"
        yield Attack("the price of noise", "nobody", figure, plain, _noise(noise), noised, chance=guess)


def prediction_error(
    inputs: Floats, labels: Floats, seen: Floats, split: Sequence[tuple[int, int]] = SPLIT
) -> float:
    """Share of the last third's labels that ridge regression on the features gets wrong. seen: what parties
    project in place of their columns; the active one's own need no noise.
    """
    thirds = np.array_split(np.arange(len(labels)), 3)
    first = split[0][1]
    both = np.hstack([inputs[:, :first], seen[:, first:]])
    median = np.median(pdist(both))
    found = []
    for scale in (0.5, 1.0, 2.0, 4.0, 8.0):
        federation = Federation(both, split, float(scale * median), private=True)
        own = to_circle(federation.parties[0].partial_phases(inputs[:, :first], [(0, FEATURES)]), 32)
        features = np.cos(from_circle(federation.told(FEATURES) + own)) * np.sqrt(2 / FEATURES)
        for ridge in (0.01, 0.1, 1.0, 10.0):
            errors = [
                _ridge_error(features, labels, train, test, ridge)
                for train, test in ((thirds[0], thirds[1]), (np.concatenate(thirds[:2]), thirds[2]))
            ]
            found.append(errors)
    return min(found)[1]


def _noise(noise: float) -> str:
    return f"norm {NORM:g}, noise {noise:g}: mu {2 * NORM / noise:g}"


def _ridge_error(
    features: Floats, labels: Floats, train: NDArray[np.int64], test: NDArray[np.int64], ridge: float
) -> float:
    inner = features[train]
    middle = labels[train].mean()
    solved = np.linalg.solve(inner @ inner.T + ridge * np.eye(len(train)), labels[train] - middle)
    return float(np.mean(np.sign(features[test] @ inner.T @ solved + middle) != labels[test]))


ATTACKS: Attacks = {
    function.__name__: function
    for function in (two_messages_of_a_leaf, two_answers, distances, affine_map, price_of_noise)
}
