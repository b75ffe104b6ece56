"""Error of FDSKL and of what it is compared with, on real data.

``STREAMFL_DATA=folder python -m benchmarks.fdskl.accuracy``: what is missing is run and kept in
docs/fdskl-accuracy.json; the table is printed, and written into docs/fdskl-privacy.md. ``--only``, ``--data``
and ``--seeds`` choose. Splits are 3 : 1 by the seed, a9a's are its own with the order by the seed. Bandwidth,
regularisation and the like are chosen for each seed on a quarter of the training rows (of 20,000 at most),
never on test rows; then it is learnt from all of them in one pass, over four parties."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from fdskl.proof.direct import DirectModel, Party, learn, median_distance, standardised
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.svm import SVC, SVR, LinearSVC

from benchmarks.accuracy_document import fill_in
from benchmarks.accuracy_runs import Results
from benchmarks.commands import DOCS, Floats, arguments, data_folder, data_set, is_wanted, row, several
from benchmarks.fdskl.linear import svrg
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.learning.accuracy import area_under_curve

# The measure of each set in the table: error (%), AUC, or the root of the mean squared error over the labels'
# deviation.
SETS = {
    "phishing": ("error",),
    "a9a": ("error", "auc"),
    "w8a": ("error", "auc"),
    "credit_default": ("auc",),
    "gmsc": ("auc",),
    "bike_hour": ("rmse/sd",),
}
SEEDS = 3
PARTIES = 4
# Entities that columns are standardised by; rows that hyper-parameters are chosen with; rows that exact
# kernels learn from; and beyond so many rows an iteration takes more of them.
FIRST, CHOSEN_WITH, EXACT, MANY = 1024, 20_000, 10_000, 50_000


@dataclass(frozen=True)
class Split:
    """Rows to learn from and rows to judge by, standardised by the first of the former; raw: as they came.
    Labels are -1 and +1, or have mean 0 and deviation 1 over the first rows."""

    inputs: Floats
    labels: Floats
    test: Floats
    test_labels: Floats
    raw: Floats
    raw_test: Floats
    regression: bool

    @property
    def loss(self) -> Literal["square", "logistic"]:
        return "square" if self.regression else "logistic"

    @property
    def parts(self) -> list[slice]:
        """Columns of each party."""
        ends = np.linspace(0, self.inputs.shape[1], PARTIES + 1).astype(int)
        return [slice(int(first), int(end)) for first, end in pairwise(ends)]

    @property
    def whole(self) -> list[slice]:
        """Of one party that has all columns."""
        return [slice(0, self.inputs.shape[1])]

    def measures(self, outputs: Floats) -> dict[str, float]:
        if self.regression:
            error = np.sqrt(np.mean(np.square(outputs - self.test_labels)))
            return {"rmse/sd": float(error / self.test_labels.std())}
        wrong = np.mean((outputs >= 0) != (self.test_labels > 0))
        return {
            "error": 100 * float(wrong),
            "auc": area_under_curve(outputs, (self.test_labels > 0).astype(float)),
        }

    def badness(self, outputs: Floats) -> float:
        """What is chosen by: the mean of error and 1 - AUC, which says more of a few rows than the error
        alone."""
        found = self.measures(outputs)
        value = found["rmse/sd"] if self.regression else found["error"] / 200 + (1 - found["auc"]) / 2
        return value if np.isfinite(value) else np.inf

    def validation(self) -> Split:
        """The training rows alone, split 3 : 1 once more."""
        rows = min(len(self.inputs), CHOSEN_WITH)
        cut = rows * 3 // 4
        return replace(
            self.shortened(cut),
            test=self.inputs[cut:rows],
            test_labels=self.labels[cut:rows],
            raw_test=self.raw[cut:rows],
        )

    def shortened(self, rows: int) -> Split:
        """With fewer rows to learn from."""
        return replace(self, inputs=self.inputs[:rows], labels=self.labels[:rows], raw=self.raw[:rows])


def read(folder: Path, data: str, seed: int) -> Split:
    """A set, split by the seed."""
    regression = SETS[data] == ("rmse/sd",)
    inputs, labels, *tested = data_set(folder, data, "X", "y", "X_test", "y_test")
    order = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    inputs, labels = inputs[order], labels[order]
    if tested:
        test, test_labels = tested
    else:
        cut = len(labels) * 3 // 4
        inputs, test, labels, test_labels = inputs[:cut], inputs[cut:], labels[:cut], labels[cut:]
    if regression:
        mean, deviation = labels[:FIRST].mean(), labels[:FIRST].std()
        labels, test_labels = (labels - mean) / deviation, (test_labels - mean) / deviation
    else:
        labels, test_labels = np.where(labels > 0, 1.0, -1.0), np.where(test_labels > 0, 1.0, -1.0)
    whole = standardised(np.vstack([inputs, test]), FIRST)
    return Split(whole[: len(inputs)], labels, whole[len(inputs) :], test_labels, inputs, test, regression)


Choice = dict[str, Any]
Fitted = Callable[[Split, Choice, int], Floats]


def every(**values: Sequence[Any]) -> list[Choice]:
    """All choices of one value of each."""
    return [dict(zip(values, one, strict=True)) for one in product(*values.values())]


@dataclass(frozen=True)
class Method:
    """outputs: f of the test rows after learning, by a choice. choices: from which the best is taken. says:
    what it is."""

    says: str
    outputs: Fitted
    choices: Sequence[Choice]

    def choose(self, split: Split, seed: int) -> Choice:
        """What does best on a part of the training rows."""
        if len(self.choices) == 1:
            return self.choices[0]
        part = split.validation()
        return min(self.choices, key=lambda choice: part.badness(self.outputs(part, choice, seed)))


def learnt_from(
    split: Split, learning: Choice, seed: int, parties: Sequence[slice], rows: int | None = None
) -> DirectModel:
    """FDSKL over these parties, each with frequencies of its own."""
    given = [
        Party(
            [f"column {place}" for place in range(part.start, part.stop)],
            split.inputs[:, part],
            f"party {number} of seed {seed}".ljust(32).encode() if len(parties) > 1 else None,
        )
        for number, part in enumerate(parties)
    ]
    shown = range(len(split.labels))[:rows]
    if learning["solver"] == "newton" and len(split.labels) > MANY:
        # Fewer iterations over a window that holds no more: they take as many labels and lose nothing.
        learning = {**learning, "block_instances": 1024}
    return learn(
        given, split.labels, KernelLearningSection(loss=split.loss, **learning), list(shown), seed=seed
    )


def outputs_of(learnt: DirectModel, split: Split, parties: Sequence[slice]) -> Floats:
    """f of the test rows."""
    return learnt.evaluate([split.test[:, part] for part in parties])


def kernel(fixed: Choice, rows: int | None = None, alone: bool = False) -> Fitted:
    def outputs(split: Split, choice: Choice, seed: int) -> Floats:
        parties = split.whole if alone else split.parts
        return outputs_of(learnt_from(split, {**fixed, **choice}, seed, parties, rows), split, parties)

    return outputs


def exact_kernel(split: Split, choice: Choice, seed: int) -> Floats:
    split = split.shortened(EXACT)
    bandwidth = choice["multiplier"] * median_distance([split.inputs], range(512))
    model = (SVR if split.regression else SVC)(C=choice["C"], gamma=1 / (2 * bandwidth**2), cache_size=1000)
    return fitted(model, split.regression, split.inputs, split.labels, split.test)


def linear(split: Split, choice: Choice, seed: int) -> Floats:
    model = Ridge(1 / choice["C"]) if split.regression else LinearSVC(C=choice["C"], max_iter=5000)
    return fitted(model, split.regression, split.inputs, split.labels, split.test)


def fitted(model: Any, regression: bool, inputs: Floats, labels: Floats, test: Floats) -> Floats:
    """f of the test rows by one of scikit-learn's models."""
    model.fit(inputs, labels)
    return np.asarray(model.predict(test) if regression else model.decision_function(test))


def boosting(split: Split, choice: Choice, seed: int) -> Floats:
    kind = HistGradientBoostingRegressor if split.regression else HistGradientBoostingClassifier
    return fitted(kind(random_state=seed), split.regression, split.raw, split.labels, split.raw_test)


def vertical_linear(staleness: int) -> Fitted:
    def outputs(split: Split, choice: Choice, seed: int) -> Floats:
        learning = {"seed": seed, "staleness": staleness, **choice}
        weights = svrg(split.inputs, split.labels, loss_named(split.loss), split.parts, **learning)
        return np.asarray(split.test @ weights[:-1] + weights[-1])

    return outputs


NEWTON: Choice = {
    "solver": "newton",
    "features_limit": 2048,
    "block_features": 128,
    "block_instances": 256,
    "visits": 8,
    # As many rows as fit into learning.cache_bytes with all their features.
    "window": 32_768,
}
BLOCKS: Choice = {
    "solver": "sgd",
    "features_limit": 8192,
    "block_features": 64,
    "block_instances": 64,
    "regularisation": 1e-6,
}
SINGLE: Choice = {
    "solver": "sgd",
    "features_limit": 10_000,
    "block_features": 1,
    "block_instances": 1,
    "regularisation": 1e-4,
}
# A wide kernel is smooth by itself and wants less regularisation.
WIDTHS = ((0.5, 1e-5), (0.5, 3e-6), (0.7, 1e-5), (1.0, 1e-5), (1.0, 1e-6), (2.0, 1e-7), (4.0, 1e-8))
METHODS = {
    "newton": Method(
        "FDSKL, solver newton, 2048 features, one pass, four parties",
        kernel(NEWTON),
        [
            {"bandwidth_multiplier": multiplier, "regularisation": regularisation}
            for multiplier, regularisation in WIDTHS
        ],
    ),
    "newton, sparse": Method(
        "the same with columns_share below 1",
        kernel(NEWTON),
        every(columns_share=(0.1, 0.2), bandwidth_multiplier=(0.1, 0.3, 0.7), regularisation=(1e-5,)),
    ),
    "sgd": Method(
        "FDSKL, solver sgd in blocks of 64 labels and 64 features, 8192 features, one pass, four parties",
        kernel(BLOCKS),
        every(bandwidth_multiplier=(0.5, 1.0), step=(1.0, 10.0, 100.0)),
    ),
    "DSG": Method(
        "doubly stochastic gradients as published: one party, a label and a feature an iteration, 5,000 "
        "iterations",
        kernel(SINGLE, 5_000, alone=True),
        every(bandwidth_multiplier=(0.7,), step=(0.003, 0.01, 0.03, 0.1)),
    ),
    "exact kernel": Method(
        "LIBSVM's SVC or SVR on all columns together, at most 10,000 rows (PP-SVMV's model)",
        exact_kernel,
        every(multiplier=(0.3, 0.7, 1.4), C=(3.0,)),
    ),
    "gradient boosting": Method(
        "scikit-learn's HistGradientBoosting on all columns together: what SecureBoost learns, which is "
        "lossless",
        boosting,
        [{}],
    ),
    "linear SVM": Method("LIBLINEAR's SVC, ridge regression for numbers", linear, every(C=(0.01, 1.0))),
    "FD-SVRG": Method("linear, four parties in step", vertical_linear(0), every(regularisation=(1e-5, 1e-3))),
    "AFSVRG-VP": Method(
        "linear, four parties, each up to 8 steps behind",
        vertical_linear(8),
        every(regularisation=(1e-5, 1e-3)),
    ),
}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Means over the seeds, with their standard deviation."""
    header = ["", *(f"{data} {measure}" for data, measures in SETS.items() for measure in measures)]
    lines = [row(*header), row(*["---"] * len(header))]
    for name in METHODS:
        cells = [name]
        for data, measures in SETS.items():
            kept = [found for key, found in results.items() if key.startswith(f"{name}|{data}|")]
            for measure in measures:
                values = [found[measure] for found in kept]
                digits = 2 if measure == "error" else 3
                spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.{digits}f}{spread}" if values else "-")
        lines.append(row(*cells))
    said = [f"- **{name}**: {method.says}." for name, method in METHODS.items()]
    return "\n".join([*lines, "", *said])


def main() -> None:
    chosen = arguments(
        "fdskl.accuracy",
        __doc__,
        only=several("a method or a pattern"),
        data=several("a set", SETS),
        seeds=(SEEDS, "so many"),
        out=(DOCS, "the folder of fdskl-accuracy.json and fdskl-privacy.md"),
    )
    results = Results(chosen.out / "fdskl-accuracy.json")
    for seed, data, (name, method) in product(range(chosen.seeds), chosen.data or SETS, METHODS.items()):
        key = f"{name}|{data}|seed {seed}"
        if not is_wanted(name, chosen.only) or key in results.found:
            continue
        split = read(data_folder(), data, seed)
        began = time.perf_counter()
        choice = method.choose(split, seed)
        midway = time.perf_counter()
        measures = split.measures(method.outputs(split, choice, seed))
        found = {measure: round(value, 4) for measure, value in measures.items()}
        seconds = {
            "choosing_seconds": round(midway - began, 1),
            "seconds": round(time.perf_counter() - midway, 1),
        }
        results.keep(key, {**found, "rows": len(split.labels), **seconds, "choice": choice})
        print(f"{key}: {found} {choice} {seconds}", flush=True)
    text = table(results.found)
    print(text)
    document = chosen.out / "fdskl-privacy.md"
    if document.exists():
        fill_in(document, {"accuracy": text})


if __name__ == "__main__":
    main()
