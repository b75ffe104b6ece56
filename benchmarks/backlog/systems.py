"""The vertical systems, each with the files of its tutorial and a table for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification, make_regression

ENTITY = "customer"
CREDIT = ("age", "income", "debts", "visits", "returns")
CREDIT_SPLIT = "bank=age+income+debts,shop=visits+returns"
STAY = ("age", "ward", "operations", "iron", "protein", "sugar", "doses", "opiates")
STAY_SPLIT = "hospital=age+ward+operations,laboratory=iron+protein+sugar,pharmacy=doses+opiates"
STAY_PARTIES = {"hospital": 0, "laboratory": 3, "pharmacy": 6}
# As `bounds` of the tutorial's files have them.
STAY_CENTRES, STAY_BOUNDS = (50, 5, 2, 15, 70, 100, 10, 0.5), (50, 5, 2, 15, 30, 100, 10, 0.5)


@dataclass(frozen=True)
class System:
    """One system.

    page: of the documentation, with the members' files.
    members: these files, in the order in which they are started; the first one's is given to simulate.
    late: the peer that starts later.
    writers: members that rows are replayed to, in this order.
    topic: what users read.
    label_rows: by so many rows labels come later where rows are paced.
    labels_alone: the member that is given labels and nothing else.
    make: a table of so many rows by a seed.
    simulate: options of `streamfl simulate`.
    learnt, lost: members' metrics, which say how many entities were learnt from, and what was lost.
    settings: of all members, in place of the files' own.
    """

    page: str
    members: Sequence[str]
    late: str
    writers: Sequence[str]
    topic: str
    make: Callable[[int, int], pd.DataFrame]
    label: str
    split: str
    rows: int
    simulate: Sequence[str]
    learnt: tuple[str, str]
    lost: Sequence[tuple[str, str]]
    label_rows: int = 0
    labels_alone: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits_windows(self) -> bool:
        """Whether it says models to its users, and no predictions."""
        return self.topic.endswith(".model")


def _credit(rows: int, seed: int) -> pd.DataFrame:
    """scikit-learn's made data: five columns that matter together, two in a hundred labels wrong."""
    inputs, labels = make_classification(
        rows,
        len(CREDIT),
        n_informative=len(CREDIT),
        n_redundant=0,
        flip_y=0.02,
        class_sep=1.0,
        random_state=seed,
    )
    return pd.DataFrame(inputs, columns=CREDIT).assign(defaulted=labels)


def _stay(rows: int, seed: int) -> pd.DataFrame:
    """scikit-learn's made data: three of eight columns matter, within the bounds of the tutorial's files."""
    inputs, labels = make_regression(rows, len(STAY), n_informative=3, noise=10.0, random_state=seed)
    columns = np.array(STAY_CENTRES) + np.array(STAY_BOUNDS) * np.clip(inputs / 3, -1, 1)
    return pd.DataFrame(columns, columns=STAY).assign(
        days=10 + 10 * np.clip(labels / np.abs(labels).max(), -1, 1)
    )


# Three tutorials are of the same customers.
_of_customers = partial(
    System, topic="credit.predictions", make=_credit, label="defaulted", split=CREDIT_SPLIT, late="shop"
)
SYSTEMS = {
    "vafl": _of_customers(
        page="vertical.md",
        members=("coordinator", "bank", "shop"),
        writers=("coordinator", "bank", "shop"),
        rows=2000,
        simulate=("--online", "--label-delay", "100"),
        learnt=("coordinator", "learnt_total"),
        lost=(
            ("coordinator", "learnt_below_quorum_total"),
            ("coordinator", "forgotten_entities_total"),
            ("bank", "forgotten_entities_total"),
        ),
        labels_alone="coordinator",
        label_rows=100,
    ),
    "fdskl": _of_customers(
        page="fdskl.md",
        members=("bank", "shop"),
        writers=("shop", "bank"),
        rows=3000,
        simulate=("--online", "--label-delay", "100"),
        learnt=("bank", "labelled_entities"),
        lost=(
            ("bank", "rows_dropped_total"),
            ("bank", "forgotten_forecasts_total"),
            ("shop", "imputed_total"),
            ("bank", "abandoned_rounds_total"),
        ),
        label_rows=100,
    ),
    "quasi-newton": _of_customers(
        page="quasi-newton.md",
        members=("bank", "shop", "auditor"),
        writers=("shop", "bank"),
        rows=1500,
        simulate=(),
        learnt=("bank", "held_out_entities"),
        lost=(("bank", "expired_entities_total"), ("bank", "unscored_entities_total")),
        settings={
            "alignment.entities": "1000",
            "learning.batch": "500",
            # The model is the same to the last bit, and is there in seconds.
            "encryption.precision": "plain",
            "encryption.study": "true",
            "alignment.method": "keyed-hash",
        },
    ),
    "dp-frank-wolfe": System(
        page="dp-frank-wolfe.md",
        members=("institute", "hospital", "laboratory", "pharmacy"),
        late="pharmacy",
        writers=("hospital", "laboratory", "pharmacy"),
        topic="stay.model",
        make=_stay,
        label="days",
        split=STAY_SPLIT,
        rows=2000,
        simulate=(),
        learnt=("hospital", "charged_entities_total"),
        lost=(("institute", "missing_answers_total"), ("institute", "missing_entities")),
        settings={"window.rows": "1000", "privacy.epsilon": "inf"},
    ),
}
