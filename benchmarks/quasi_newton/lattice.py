"""Labels from one gradient by reducing a lattice: with residuals -2 y, X'D is a sum of known rows with
unknown signs.

Lenstra, Lenstra and Lovasz, "Factoring Polynomials with Rational Coefficients", 1982; Coster, Joux,
LaMacchia, Odlyzko, Schnorr and Stern, "Improved Low-Density Subset Sum Algorithms", 1992, whose lattice this
is, with a column for each equation.
"""

from __future__ import annotations

import numpy as np

from benchmarks.commands import Floats

LOVASZ = 0.99
# What a sum that is not met costs: more than any sum of signs is long.
WEIGHT = 64.0
MOST_PASSES = 20_000


def reduced(basis: Floats) -> Floats:
    """A basis of the same lattice with short vectors: (vectors, coordinates).

    All neighbours that are in the wrong order change places at once, the even pairs and the odd ones in turn,
    so that a pass is matrix arithmetic. Numbers have to stay below 2^40: the arithmetic is in 64-bit floats.
    """
    vectors = np.array(basis, dtype=np.float64)
    count, first, quiet = len(vectors), 0, 0
    for _ in range(MOST_PASSES):
        triangle: Floats = np.asarray(np.linalg.qr(vectors.T, mode="r"))
        for own in range(count - 2, -1, -1):
            times = np.rint(triangle[own, own + 1 :] / triangle[own, own])
            if times.any():
                triangle[: own + 1, own + 1 :] -= np.outer(triangle[: own + 1, own], times)
                vectors[own + 1 :] -= np.outer(times, vectors[own])
        pairs = np.arange(first, count - 1, 2)
        after = triangle[pairs + 1, pairs + 1] ** 2 + triangle[pairs, pairs + 1] ** 2
        wrong = pairs[after < LOVASZ * triangle[pairs, pairs] ** 2]
        vectors[[*wrong, *(wrong + 1)]] = vectors[[*(wrong + 1), *wrong]]
        first, quiet = 1 - first, 0 if len(wrong) else quiet + 1
        if quiet == 2:
            break
    return vectors


def signs_of_sums(inputs: Floats, sums: Floats, error: float = 0.0, tries: int = 8) -> Floats | None:
    """y of -1 and +1 with X'y = sums, the nearest that the reduction comes to: (rows,); None where it finds
    no signs at all.

    inputs: whole numbers, (rows, columns).
    sums: (columns,).
    error: by which the sums may be wrong, their standard deviation.
    tries: how often it begins anew, with the rows in another order.
    """
    nearest, found = np.inf, None
    for attempt in range(tries):
        order = np.random.default_rng(attempt).permutation(len(inputs))
        vectors = reduced(_basis(inputs[order], sums, WEIGHT if error == 0 else 1 / error))
        for vector in vectors[(np.abs(vectors[:, : len(inputs) + 1]) == 1).all(axis=1)]:
            away = float(np.linalg.norm(vector[len(inputs) + 1 :]))
            if away < nearest:
                nearest, found = away, np.empty(len(inputs))
                found[order] = vector[: len(inputs)] * vector[len(inputs)]
        if nearest == 0:
            break
    return found


def _basis(inputs: Floats, sums: Floats, weight: float) -> Floats:
    rows, columns = inputs.shape
    # z = (1 + y) / 2 is 0 or 1, and its row has the coordinate 2 z - 1 = y.
    basis = np.zeros((rows + 1, rows + 1 + columns))
    basis[:rows, :rows], basis[:rows, rows + 1 :] = 2 * np.eye(rows), weight * inputs
    basis[rows, :rows], basis[rows, rows] = -1.0, 1.0
    basis[rows, rows + 1 :] = -weight * (sums + inputs.sum(axis=0)) / 2
    return basis
