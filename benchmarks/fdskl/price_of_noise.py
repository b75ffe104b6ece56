"""What noise on columns costs, and what it keeps from the attack of ``make attack``, as one curve.

``python -m benchmarks.fdskl.price_of_noise`` prints a table of three parties with ten columns each of the
same patients. Each row is a setting of ``[privacy]``: how many predictions are wrong with it, how much of the
hidden columns the active party finds without knowing a row, with rows known, and when it asks for eight times
as many features, which are of the same noise.
"""

from __future__ import annotations

from benchmarks.commands import Markdown, arguments
from benchmarks.fdskl.attacks import (
    FEATURES,
    KNOWN,
    NORM,
    SPLIT,
    prediction_error,
    protected_columns,
    recovered,
    table,
)
from benchmarks.figures import size

NOISES = size((0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 6.0), (3.0,))
MORE = 8


def main() -> None:
    arguments("fdskl.price_of_noise", __doc__)
    inputs, labels, _ = table()
    # Without noise columns are not shortened either.
    rows = [("none", "", inputs)]
    rows += [
        (f"{noise:g}", f"{2 * NORM / noise:g}", protected_columns(inputs, SPLIT, NORM, noise))
        for noise in NOISES
    ]
    counts = f"{FEATURES:,} and {MORE * FEATURES:,} features"
    print(f"input_norm = {NORM:g}; median R^2 of the hidden columns; {KNOWN} rows known; {counts}\n")
    heads = ("wrong predictions", "found, nothing known", "found, rows known", "the same, more features")
    shown = Markdown("input_noise", "mu", *heads)
    for noise, mu, seen in rows:
        wrong = f"{100 * prediction_error(inputs, labels, seen):.1f}%"
        found = (*recovered(seen), recovered(seen, MORE * FEATURES)[1])
        shown.add(noise, mu, wrong, *map("{:.3f}".format, found))


if __name__ == "__main__":
    main()
