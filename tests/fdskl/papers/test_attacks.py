"""What is found out about columns by trying: masks hide what they promise, and what they do not hide is said
and shown."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.datasets import load_diabetes

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.attacks import Attack, attacked_systems
from benchmarks.fdskl.attacks import Federation, protected_columns
from benchmarks.fdskl.recovery import (
    explained,
    from_known_rows,
    up_to_an_affine_map,
)
from streamfl.fdskl.sums.circle import from_circle

# The active party's columns, and those of two others.
SPLIT = ((0, 4), (4, 7), (7, 10))
HIDDEN = slice(4, 10)


@cache
def diabetes() -> NDArray[np.float64]:
    """442 patients, ten columns with mean 0 and deviation 1."""
    found = load_diabetes().data
    return np.asarray((found - found.mean(axis=0)) / found.std(axis=0))


def federation(inputs: NDArray[np.float64], private: bool) -> Federation:
    return Federation(inputs, SPLIT, float(np.median(pdist(inputs))), private)


def test_noise_on_request_hides_columns_by_its_size() -> None:
    """Protects who asks for noise: what the attack finds is no more than the noise leaves, 1 / (1 + noise^2)
    of a column alone, and a little more of columns that go together.
    """
    inputs = diabetes()
    hidden = inputs[:, HIDDEN]
    shares = []
    for noise in (0.75, 2.0, 6.0):
        seen = protected_columns(inputs, SPLIT, 3.0, noise)
        one = federation(seen, private=True)
        places = up_to_an_affine_map(from_circle(one.told(512)), one.bandwidth, 6)
        # It finds what was projected: what is missing is the noise's doing.
        assert (
            explained(from_known_rows(places, seen[:, HIDDEN], len(hidden)), seen[:, HIDDEN]).min() > 0.9999
        )
        shares.append(float(np.median(explained(from_known_rows(places, hidden, len(hidden)), hidden))))
        best = np.linalg.lstsq(np.hstack([seen, np.ones((len(seen), 1))]), hidden, rcond=None)[0]
        assert (
            shares[-1]
            <= np.median(explained(np.hstack([seen, np.ones((len(seen), 1))]) @ best, hidden)) + 0.01
        )
    assert 0.4 < shares[0] < 0.85
    assert 0.15 < shares[1] < 0.45
    assert shares[2] < 0.12


@pytest.mark.long
def test_the_table_of_attacks(tmp_path: Path) -> None:
    """Protects `make attack`, which shows them: it finds this system, protections that hide do, the one that
    does not is told of, and noise has its price.
    """
    found: list[Attack] = [one for attack in attacked_systems()["fdskl"].values() for one in attack(tmp_path)]
    for one in found:
        assert one.plain is not None, one
        assert one.protected is not None, one
        assert one.chance is not None, one
        if one.name == "the price of noise":
            assert one.plain < one.protected < one.chance, one
        elif one.name == "distances from phases":
            assert max(one.plain, one.protected) < 0.02 < 0.2 < one.chance, one
        elif one.protection == "frequencies = private" and one.name == "columns up to an affine map":
            assert min(one.plain, one.protected) > 0.999, one
        else:
            assert one.plain > 0.999, one
            assert one.protected < (0.05 if one.protection.startswith(("mask", "frequencies")) else 0.7), one
