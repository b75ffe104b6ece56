"""How columns are found from phases modulo 2 pi: by least squares that guess the whole turns, from near
places to far ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

from benchmarks.commands import Floats
from streamfl.fdskl.sums.circle import from_circle

TURN = 2 * np.pi
# A kernel's value below this is lost in the error of its mean over features.
LEAST_KERNEL = 0.02


def solved_differences(one: NDArray[np.uint32], two: NDArray[np.uint32], frequencies: Floats) -> Floats:
    """x_a - x_c of each pair of instances, from what was sent of the two and the frequencies of it: (pairs,
    columns).

    one, two: (pairs, features) on the circle.
    frequencies: (features, columns).
    """
    slopes, _ = _unwrapped(_wrapped(from_circle(one - two)).T, frequencies)
    return slopes.T


def distances_of_phases(phases: Floats, bandwidth: float) -> Floats:
    """The distance of every pair of instances, from phases of a Gaussian kernel alone: (pairs,) in the order
    of SciPy's pdist.

    phases: (instances, features), radians.
    """
    kernel = _kernel(phases)[np.triu_indices(len(phases), 1)]
    return np.asarray(bandwidth * np.sqrt(-2 * np.log(np.clip(kernel, LEAST_KERNEL, 1))))


def _kernel(phases: Floats) -> Floats:
    """The mean over features of cos(theta_a - theta_c), which is the kernel: (instances, instances)."""
    circle = np.exp(1j * phases)
    return np.asarray((circle @ circle.conj().T).real / phases.shape[1])


def solved_from_the_first(phases: Floats, frequencies: Floats) -> Floats:
    """x_a - x_0 of all instances, by way of near ones: (instances, columns).

    Few turns are between near instances, and the mean of cos(theta_a - theta_c) tells who is near.

    phases: (instances, features), radians.
    frequencies: (features, columns).
    """
    far = 2 - _kernel(phases)
    order, before = breadth_first_order(minimum_spanning_tree(far), 0, directed=False)
    steps = _wrapped(phases[order[1:]] - phases[before[order[1:]]])
    result = np.zeros((len(phases), frequencies.shape[1]))
    result[order[1:]] = _unwrapped(steps.T, frequencies)[0].T
    for instance in order[1:]:
        result[instance] += result[before[instance]]
    return result


def up_to_an_affine_map(
    phases: Floats, bandwidth: float, columns: int, core: float = 0.6, tries: int = 15
) -> Floats:
    """Coordinates of which the columns are an affine map, from phases of a Gaussian kernel alone: (instances,
    columns).

    The mean over features of cos(theta_a - theta_c) is the kernel's value, its logarithm the distance, and
    distances are places (classical multidimensional scaling). Over the places each feature's phase is a plane
    but for whole turns, which places that are a little wrong are good enough to tell. Planes without turns
    are an affine map of the columns, which a singular value decomposition finds.

    phases: (instances, features), radians.
    bandwidth: of the kernel.
    columns: how many were hidden.
    core: share of the instances that planes are found from, the nearest to the middle; the others are placed
    by the planes.
    tries: how often the turns are told again from better places.
    """
    kernel = _kernel(phases)
    middle = int(np.argmax(np.median(kernel, axis=0)))
    near = np.argsort(-kernel[middle])[: max(round(core * len(phases)), 3 * columns)]
    distances = -2 * bandwidth**2 * np.log(np.clip(kernel[np.ix_(near, near)], LEAST_KERNEL, 1))
    centred = distances - distances.mean(axis=0)
    values, vectors = np.linalg.eigh(-(centred - centred.mean(axis=1, keepdims=True)) / 2)
    places = vectors[:, -columns:] * np.sqrt(np.maximum(values[-columns:], 0))
    # The first of those near the middle is the middle: the turns are told from there outwards.
    wrapped = _wrapped(phases - phases[middle])
    for _ in range(tries):
        slopes, planes, plane = _planes(wrapped[near], places)
        left, sizes, _ = np.linalg.svd(planes[:, plane], full_matrices=False)
        places = left[:, :columns] * sizes[:columns]
        if plane.all():
            break
    slopes, _, plane = _planes(wrapped[near], places)
    return solved_from_the_first(phases[:, plane], slopes[:, plane].T)


def _planes(phases: Floats, places: Floats) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Slopes and phases of :func:`_unwrapped`, and which are planes: the better half of the features, or all
    that are."""
    slopes, planes = _unwrapped(phases, places - places[0])
    rest = np.abs(planes - (places - places[0]) @ slopes).max(axis=0)
    return slopes, planes, rest <= max(float(np.median(rest)), 1e-6)


def from_known_rows(places: Floats, truth: Floats, known: int) -> Floats:
    """The columns of all instances, by the affine map that fits the first ``known``: (instances, columns)."""
    places = np.hstack([places, np.ones((len(places), 1))])
    return np.asarray(
        places @ np.linalg.lstsq(places[:known], truth[:known], rcond=None)[0], dtype=np.float64
    )


def explained(found: Floats, truth: Floats) -> Floats:
    """R^2 of each column of the truth: 1 - |truth - found|^2 / |truth - mean|^2, 0 at least."""
    share = np.square(truth - found).sum(axis=0) / np.square(truth - truth.mean(axis=0)).sum(axis=0)
    return np.asarray(np.maximum(1 - share, 0), dtype=np.float64)


def _wrapped(phases: Floats) -> Floats:
    """Without whole turns, from -pi to pi."""
    return np.asarray(phases - TURN * np.rint(phases / TURN), dtype=np.float64)


def _unwrapped(phases: Floats, places: Floats) -> tuple[Floats, Floats]:
    """Slopes of the planes through 0 that the phases lie on but for whole turns, (columns, series), and the
    phases with their turns.

    phases: (points, series), 0 at the place 0, from -pi to pi.
    places: (points, columns).
    """
    order = np.argsort(np.square(places).sum(axis=1))
    wrapped, ordered = phases[order], places[order]
    turned, used = wrapped, 3 * places.shape[1]
    while True:
        for _ in range(2):
            slopes = np.linalg.lstsq(ordered[:used], turned[:used], rcond=None)[0].astype(np.float64)
            turned = wrapped + TURN * np.rint((ordered @ slopes - wrapped) / TURN)
        if used >= len(places):
            result = np.empty_like(turned)
            result[order] = turned
            return slopes, result
        used = min(len(places), used * 3 // 2 + 1)
