"""The kernel that parties' frequencies add up to: its value by the closed form, whoever has which columns.
(FDSKL, eq. 7.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.special import gamma, kv

from streamfl.fdskl.sums.circle import from_circle, to_circle
from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity

FEATURES = 100_000
BANDWIDTH = 1.7
COLUMNS = tuple("abcdefgh")
# Differences of instances: near, far, along one column, along all.
DIFFERENCES = np.array(
    [
        [0.3] * 8,
        [1.5, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0.8, 0, 0, -0.8, 0, 0.8],
        [0.9, -0.9, 0.9, -0.9, 0.9, -0.9, 0.9, 0.0],
    ]
)


def closed_form(kernel: str, nu: float) -> Any:
    """k(r) for each difference, from the books."""
    distance = np.linalg.norm(DIFFERENCES, axis=1) / BANDWIDTH
    if kernel == "gaussian":
        return np.exp(-(distance**2) / 2)
    if kernel == "laplacian":
        return np.exp(-np.abs(DIFFERENCES).sum(axis=1) / BANDWIDTH)
    scaled = np.sqrt(2 * nu) * distance
    return 2 ** (1 - nu) / gamma(nu) * scaled**nu * kv(nu, scaled)


@pytest.mark.parametrize(
    ("kernel", "nu", "private", "parties"),
    [
        ("gaussian", 1.5, False, 2),
        ("gaussian", 1.5, True, 4),
        ("laplacian", 1.5, True, 4),
        ("matern", 0.5, True, 1),
        ("matern", 1.5, True, 4),
        ("matern", 2.75, False, 4),
    ],
)
def test_features_are_those_of_the_kernel(kernel: Any, nu: float, private: bool, parties: int) -> None:
    """Protects the model from a kernel that is another one: the mean of phi(x) phi(x') is k(x - x'), for any
    number of parties and with private frequencies too. A Matern kernel whose scales were each party's own
    would be a product: half of it at four parties."""
    density = SpectralDensity(kernel, BANDWIDTH, nu)
    instances = np.concatenate([np.random.default_rng(1).normal(size=(1, 8)), DIFFERENCES])
    instances[1:] += instances[0]
    total = np.zeros((len(instances), FEATURES), np.uint32)
    for own in range(parties):
        columns = slice(own * 8 // parties, (own + 1) * 8 // parties)
        secret = bytes([own + 1]) * 32 if private else None
        party = Frequencies(density, COLUMNS[columns], 5, secret, parties, own, 0)
        total += to_circle(party.partial_phases(instances[:, columns], [(0, FEATURES)]), 32)
    features = np.sqrt(2) * np.cos(from_circle(total))
    found = (features[0] * features[1:]).mean(axis=1)
    # Each product has a deviation below 1.23: five of the mean's.
    np.testing.assert_allclose(found, closed_form(kernel, nu), rtol=0, atol=5 * 1.23 / np.sqrt(FEATURES))
