"""What noise on columns costs, and what it keeps from the attack of ``make attack``, as one curve.

``python -m benchmarks.fdskl.price_of_noise`` prints a table of three parties with ten columns each of the
same patients. Each row is a setting of ``[privacy]``: how many predictions are wrong with it, how much of the
hidden columns the active party finds without knowing a row, with rows known, and when it asks for eight times
as many features, which are of the same noise.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.spatial.distance import pdist

from benchmarks.commands import Floats
from benchmarks.fdskl.attacks import (
    FEATURES,
    NORM,
    SPLIT,
    Federation,
    prediction_error,
    protected_columns,
    table,
)
from benchmarks.fdskl.recovery import explained, from_known_rows, up_to_an_affine_map
from benchmarks.figures import size
from streamfl.fdskl.sums.circle import from_circle

NOISES = size((0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 6.0), (3.0,))
MORE = 8


def recovered(seen: Floats, inputs: Floats, features: int, known: int) -> tuple[float, float]:
    """Median R^2 of the hidden columns: by the affine map that fits best, and of the other rows by that of
    ``known`` ones."""
    hidden = inputs[:, SPLIT[1][0] :]
    bandwidth = float(np.median(pdist(seen)))
    told = Federation(seen, SPLIT, bandwidth, private=True).told(features)
    places = up_to_an_affine_map(from_circle(told), bandwidth, hidden.shape[1])
    best = explained(from_known_rows(places, hidden, len(hidden)), hidden)
    rest = explained(from_known_rows(places, hidden, known)[known:], hidden[known:])
    return float(np.median(best)), float(np.median(rest))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fdskl.price_of_noise", description=__doc__)
    parser.parse_args()
    inputs, labels, _ = table()
    known = 5 * (SPLIT[-1][1] - SPLIT[1][0])
    # Without noise columns are not shortened either.
    rows = [("none", "", inputs)]
    rows += [
        (f"{noise:g}", f"{2 * NORM / noise:g}", protected_columns(inputs, SPLIT, NORM, noise))
        for noise in NOISES
    ]
    counts = f"{FEATURES:,} and {MORE * FEATURES:,} features"
    print(f"input_norm = {NORM:g}; median R^2 of the hidden columns; {known} rows known; {counts}\n")
    print(
        "| input_noise | mu | wrong predictions | found, nothing known | found, rows known | the same, more "
        "features |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for noise, mu, seen in rows:
        wrong = prediction_error(inputs, labels, seen)
        nothing, some = recovered(seen, inputs, FEATURES, known)
        more = recovered(seen, inputs, MORE * FEATURES, known)[1]
        print(
            f"| {noise} | {mu} | {100 * wrong:.1f}% | {nothing:.3f} | {some:.3f} | {more:.3f} |", flush=True
        )


if __name__ == "__main__":
    main()
