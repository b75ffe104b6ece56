"""A fit computed again in plain NumPy, from its trace alone: Lou and Cheung 2018, algorithm 2, with choices
as proved."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.simulated import LEARNING, PARTIES, WINDOW, Line
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# A feature of 1, and a label of 1, as whole numbers.
FEATURE, LABEL = 2**14, 2**18


def uniform(draws: NDArray[np.uint8]) -> Floats:
    """Numbers between 0 and 1, of 16 bytes each."""
    return np.array([int.from_bytes(bytes(draw), "big") / 2**128 for draw in draws.reshape(-1, 16)])


def best(scores: Floats, rate: str, draw: NDArray[np.uint8]) -> int:
    """The exponential mechanism by its inverse distribution function, or the best where there is no noise."""
    if not rate:
        return int(np.argmax(scores))
    weights = np.exp(float(Fraction(rate)) * (scores - scores.max()))
    return int(np.searchsorted(np.cumsum(weights) / weights.sum(), uniform(draw)[0], side="right"))


def told(values: Floats, strength: NDArray[np.str_], draws: NDArray[np.uint8]) -> Floats:
    """Values in units, with a discrete Gaussian by its inverse distribution function."""
    if not len(strength):
        return values
    unit, variance = int(strength[0]), float(Fraction(str(strength[1])))
    places = np.arange(-int(12 * variance**0.5) - 2, int(12 * variance**0.5) + 3)
    below = np.cumsum(np.exp(-(places**2) / (2 * variance)))
    noise = places[np.searchsorted(below / below[-1], uniform(draws), side="right")]
    return np.floor((values.ravel() + unit // 2) / unit) + noise


def unit_of(strength: NDArray[np.str_]) -> int:
    return int(strength[0]) if len(strength) else 1


def fit_again(trace: dict[str, NDArray[Any]], cap: dict[str, int]) -> None:
    """Every choice, every sketch and every iterate of window 1."""
    bound = float(trace["prediction_bound"])
    back = trace["1/signs"].astype(float) if "1/signs" in trace else np.eye(WINDOW)
    scale = 1 / back.shape[1] if "1/signs" in trace else 1.0
    columns = {party: trace[f"1/columns/{party}"].astype(float) for party in PARTIES}
    x = {party: np.zeros(count) for party, count in PARTIES.items()}
    sums: dict[tuple[str, int], Floats] = {}
    for t, gamma in enumerate(trace["1/steps"]):
        assert gamma == 2 / (trace["least"] * t + 2)
        moved = {party: own.copy() for party, own in x.items()}
        shown_now: dict[tuple[str, int], Floats] = {}
        for block, party in enumerate(trace["blocks/party"].tolist()):
            column, sign = trace["1/chosen"][t, block].tolist()
            if sign == 0:
                assert not trace["1/due"][t, block] or not trace[f"1/tried/{party}"][t].any()
                continue
            own = np.flatnonzero((trace[f"blocks/{party}"] == block) & trace[f"1/tried/{party}"][t])
            others = sum(
                (x[key[0]][key[1]] * told for key, told in sums.items() if key[0] != party),
                np.zeros(back.shape[1]),
            )
            predicted = np.clip((columns[party] @ x[party] + scale * back @ others) / FEATURE, -bound, bound)
            gradient = columns[party][:, own].T @ (np.rint(predicted * LABEL) - trace[f"1/labels/{party}"])
            found = best(
                np.concatenate([-gradient, gradient]),
                str(trace[f"rate/{party}"]),
                trace["1/choice_draws"][t, block],
            )
            assert (own[found % len(own)], 1 if found < len(own) else -1) == (column, sign), (
                f"iteration {t}, block {block}"
            )
            shown = trace[f"1/shown/{party}"].tolist()
            place = shown.index(column)
            if trace[f"1/shown_at/{party}"][place] == t:
                draws, strength = trace[f"1/sum_draws/{party}"], trace[f"noise/{party}"]
                released = told(
                    back.T @ columns[party][:, column], strength, draws[place] if len(draws) else draws
                )
                np.testing.assert_array_equal(released, trace[f"1/sums/{party}"][place])
                shown_now[party, column] = released * unit_of(strength)
            mine = trace[f"blocks/{party}"] == block
            moved[party][mine] *= 1 - gamma
            moved[party][column] += gamma * trace["blocks/radius"][block] * sign
        x, sums = moved, sums | shown_now
        for party, own in x.items():
            np.testing.assert_allclose(trace[f"1/x/{party}"][t + 1], own, rtol=0, atol=1e-12)
            assert len([1 for owner, _ in sums if owner == party]) <= cap[party]


@pytest.mark.parametrize(
    ("epsilon", "learning"),
    [
        ("inf", 'sketch = "identity"'),
        (12.0, "sketch_rows = 8"),
        (2.0, 'sketch = "identity"\niterations = 20\ncandidates = 2'),
        (
            12.0,
            'sketch_rows = 30\nblocks = 2\nsampling = "nice"\nsampled_blocks = 3\niterations = 15\ncolumns = '
            "7",
        ),
        (5.0, 'sketch_rows = 8\nsampling = "uniform"\niterations = 12\nintercept = false'),
    ],
)
def test_a_fit_follows_from_its_trace(line: Line, epsilon: float | str, learning: str) -> None:
    """Protects whoever checks a run: the frozen table, the draws and public numbers are all that choices,
    sketches and weights depend on, whatever the sampling is.
    """
    found, trace = line.traced(epsilon=epsilon, learning=learning)
    assert sorted(trace["1/rows"].tolist()) == list(range(WINDOW))
    check_centred(trace, line.frame.to_numpy()[trace["1/rows"]], centres="intercept = false" not in learning)
    assert len(trace["1/steps"]) == found["iterations"]
    fit_again(trace, dict.fromkeys(PARTIES, 7 // 3 if "columns = 7" in learning else 5 // 3))
    check_predictions(trace, line.frame.to_numpy()[trace["predicted_rows"], :-1])


def times(columns: int) -> Floats:
    """How many times the sums of columns and label are told."""
    return np.append(np.ones(columns), np.floor(np.sqrt(columns)))


def means_of(trace: dict[str, NDArray[Any]], party: str) -> Floats:
    """Of columns and label, from what was told: none where it is within the noise of as many zeros."""
    released, strength = trace[f"1/means/{party}"].astype(float), trace[f"noise/means/{party}"]
    means = np.clip(released * unit_of(strength) / (WINDOW * LABEL * times(len(released) - 1)), -1, 1)
    if len(strength):
        columns = len(means) - 1
        doubt = float(Fraction(str(strength[1]))) * np.floor(np.log2(columns) + 1)
        means[:-1][released[:-1] ** 2 <= doubt] = 0
    return means


def check_centred(trace: dict[str, NDArray[Any]], table: Floats, centres: bool = True) -> None:
    """The frozen table is the file's, and each party has told its sums with noise and taken off what it told,
    within the bounds."""
    start, label = 0, np.rint(table[:, -1] * LABEL)
    for party, count in PARTIES.items():
        own, start = np.rint(table[:, start : start + count] * FEATURE), start + count
        if not centres:
            assert f"1/means/{party}" not in trace
            np.testing.assert_array_equal(trace[f"1/columns/{party}"], own)
            np.testing.assert_array_equal(trace[f"1/labels/{party}"], label)
            continue
        sums = np.append(own.sum(axis=0) * LABEL / FEATURE, label.sum()) * times(count)
        released = told(sums, trace[f"noise/means/{party}"], trace[f"1/means_draws/{party}"])
        np.testing.assert_array_equal(trace[f"1/means/{party}"], released)
        means = means_of(trace, party)
        moved = np.clip(own - np.rint(means[:-1] * FEATURE), -FEATURE, FEATURE)
        np.testing.assert_array_equal(trace[f"1/columns/{party}"], moved)
        np.testing.assert_array_equal(
            trace[f"1/labels/{party}"], np.clip(label - np.rint(means[-1] * LABEL), -LABEL, LABEL)
        )


def check_predictions(trace: dict[str, NDArray[Any]], table: Floats) -> None:
    """Of rows as they come: the label's means, by how little noise they have, and the weights times what is
    beyond means."""
    start, total, label, certain = 0, np.zeros(len(table)), 0.0, 0.0
    for party, count in PARTIES.items():
        own, start = table[:, start : start + count], start + count
        means, weight = np.zeros(count + 1), 0.0
        if f"1/means/{party}" in trace:
            strength = trace[f"noise/means/{party}"]
            means = means_of(trace, party)
            weight = 1.0
            if len(strength):
                weight = times(count)[-1] ** 2 / (float(Fraction(str(strength[1]))) * int(strength[0]) ** 2)
        total += (own - np.rint(means[:-1] * FEATURE) / FEATURE) @ trace[f"1/x/{party}"][-1]
        label, certain = label + weight * np.rint(means[-1] * LABEL) / LABEL, certain + weight
    np.testing.assert_allclose(
        trace["predictions"], total + (label / certain if certain else 0.0), atol=1e-12
    )


@pytest.mark.parametrize(
    ("estimator", "epsilon"), [("marginal", 3.0), ("two-round", "inf"), ("two-round", 3.0)]
)
def test_columns_that_are_chosen_once_follow_from_the_trace(
    line: Line, estimator: str, epsilon: float | str
) -> None:
    """Protects whoever checks the other estimators: chosen columns and all released numbers follow from the
    frozen table and the draws, and the weights from what was released.
    """
    _, trace = line.traced(epsilon=epsilon, learning=f'estimator = "{estimator}"\ncolumns = 7')
    check_centred(trace, line.frame.to_numpy()[trace["1/rows"]])
    check_predictions(trace, line.frame.to_numpy()[trace["predicted_rows"], :-1])
    rows = {party: trace[f"1/columns/{party}"].astype(float) for party in PARTIES}

    def strength(kind: str, party: str) -> NDArray[np.str_]:
        return trace.get(f"noise/{kind}/{party}", np.array([], np.str_))

    def released(kind: str, party: str, values: Floats, unit: float) -> None:
        own = strength(kind, party)
        again = (
            told(values, own, trace.get(f"1/{kind}_draws/{party}", np.zeros(0, np.uint8)))
            * unit_of(own)
            / unit
        )
        name = "told" if kind == "rows" else kind
        np.testing.assert_allclose(trace[f"1/{name}/{party}"].ravel(), again.ravel(), rtol=1e-12, atol=1e-12)

    for party, own in rows.items():
        labels = trace[f"1/labels/{party}"].astype(float)
        left, chosen = list(range(own.shape[1])), []
        draws = trace.get(f"1/choice_draws/{party}", np.zeros((2, 16), np.uint8))
        for number in range(2):
            scores = own[:, left].T @ labels
            found = best(np.concatenate([scores, -scores]), str(trace[f"rate/{party}"]), draws[number])
            chosen.append(left.pop(found % len(left)))
        assert trace[f"1/selected/{party}"].tolist() == chosen
        picked = own[:, chosen]
        released("values", party, picked.T @ labels, FEATURE * LABEL * WINDOW)
        if estimator == "marginal":
            released("norms", party, np.sum(picked**2, axis=0), FEATURE**2 * WINDOW)
            continue
        released("rows", party, picked, FEATURE)
        products = picked.T @ picked
        above = np.triu_indices(2)
        gram = np.zeros((2, 2))
        own_strength = strength("gram", party)
        draws = trace.get(f"1/gram_draws/{party}", np.zeros(0, np.uint8))
        gram[above] = (
            told(products[above], own_strength, draws) * unit_of(own_strength) / (FEATURE**2 * WINDOW)
        )
        np.testing.assert_allclose(
            trace[f"1/gram/{party}"], gram + np.triu(gram, 1).T, rtol=1e-12, atol=1e-12
        )
        others = np.hstack([trace[f"1/told/{other}"] for other in PARTIES if other != party])
        rows_cut, bits = cut(others, strength("rows", party), trace, party), int(trace[f"row_bits/{party}"])
        released("products", party, picked.T @ rows_cut, FEATURE * WINDOW * 2.0**bits)
    check_least_squares(trace, estimator, strength)


def cut(others: Floats, strength: NDArray[np.str_], trace: dict[str, NDArray[Any]], party: str) -> Floats:
    """The others' rows, none longer than the public B, as whole numbers towards 0."""
    deviation = (
        float(Fraction(str(strength[1]))) ** 0.5 * int(strength[0]) / FEATURE if len(strength) else 0.0
    )
    bound = np.ceil(np.sqrt(1 + deviation**2) * (np.sqrt(others.shape[1]) + 2.5))
    assert trace[f"row_bound/{party}"] == bound
    # The factor of 1 - 1e-9 keeps a row that is cut within B after rounding.
    shorter = np.minimum(1.0, bound * (1 - 1e-9) / np.linalg.norm(others, axis=1))
    return np.trunc(others * shorter[:, np.newaxis] * 2.0 ** int(trace[f"row_bits/{party}"]))


def check_least_squares(
    trace: dict[str, NDArray[Any]], estimator: str, strength: Callable[[str, str], NDArray[np.str_]]
) -> None:
    """The weights are the least squares of what was released, within the ball: by its conditions of
    optimality."""
    counts = {party: len(trace[f"1/selected/{party}"]) for party in PARTIES}
    ends = np.cumsum([0, *counts.values()])
    mine = {party: np.arange(ends[at], ends[at + 1]) for at, party in enumerate(PARTIES)}
    values = np.concatenate([trace[f"1/values/{party}"] for party in PARTIES])
    if estimator == "marginal":
        gram, least = np.diag(np.concatenate([trace[f"1/norms/{party}"] for party in PARTIES])), 0.01
    else:
        gram = np.zeros((ends[-1], ends[-1]))
        for party, own in mine.items():
            rest = np.setdiff1d(np.arange(ends[-1]), own)
            gram[np.ix_(own, own)] = trace[f"1/gram/{party}"]
            # Of each pair of columns of two parties there are two noisy products, of which the mean counts.
            gram[np.ix_(own, rest)] += trace[f"1/products/{party}"] / 2
            gram[np.ix_(rest, own)] += trace[f"1/products/{party}"].T / 2
        least = 0.01 + noise_alone(trace, strength)
    sizes, vectors = np.linalg.eigh(gram)
    lifted = vectors @ np.diag(np.maximum(sizes, least)) @ vectors.T
    x = np.concatenate([trace[f"1/x/{party}"][-1][trace[f"1/selected/{party}"]] for party in PARTIES])
    slope, radius = lifted @ x - values, LEARNING["radius"]
    # Within the ball the slope is 0; on its border it is the same everywhere that x moves, against it, and
    # nowhere larger.
    level = float(np.abs(slope).max())
    assert np.abs(x).sum() <= radius * (1 + 1e-9)
    assert level < 1e-6 or np.abs(x).sum() == pytest.approx(radius)
    np.testing.assert_allclose(slope[x != 0], -level * np.sign(x[x != 0]), rtol=0, atol=1e-6)
    for party, found in trace.items():
        if party.startswith("1/x/"):
            others = np.setdiff1d(np.arange(found.shape[1]), trace[party.replace("/x/", "/selected/")])
            assert not found[-1][others].any()


def noise_alone(trace: dict[str, NDArray[Any]], strength: Callable[[str, str], NDArray[np.str_]]) -> float:
    """Half of the largest eigenvalue that a symmetric matrix of the noise has, two of which are averaged."""
    if not len(strength("rows", "bank")):
        return 0.0

    def deviation(kind: str, party: str, unit: float) -> float:
        told = strength(kind, party)
        return float(Fraction(str(told[1]))) ** 0.5 * int(told[0]) / unit

    rows = max(deviation("rows", party, FEATURE) for party in PARTIES) / WINDOW**0.5
    products = max(
        deviation("products", party, FEATURE * WINDOW * 2.0 ** int(trace[f"row_bits/{party}"]))
        for party in PARTIES
    )
    many = sum(len(trace[f"1/selected/{party}"]) for party in PARTIES)
    return float(np.hypot(rows, products) / 2**0.5 * many**0.5 / 2)
