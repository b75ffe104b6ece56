"""The documents' tables are made without roles: budgets are divided as a federation's settings divide
them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.federations import COLUMNS, ROWS, SERVER_MEMBER, settings_of
from dp_frank_wolfe.problems import divided
from dp_frank_wolfe.proof.equal_shares import centre_by, plans_of

from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.privacy.budget import allowed_cost

DELTA = 1e-3


@pytest.mark.parametrize(
    ("parties", "epsilon", "sketch"), [(1, math.inf, "identity"), (2, 0.5, "signs"), (3, 5.0, "identity")]
)
def test_tables_have_the_noise_that_a_federation_has(parties: int, epsilon: float, sketch: str) -> None:
    """Protects the pages' R^2: what means and a fit may tell in a table is what a party of such a federation
    may. What roles and arithmetic then make of the same plans is equal to the last bit
    (laws/test_closed_loop.py)."""
    sections: dict[str, Any] = {
        "privacy": {"epsilon": epsilon, "delta": DELTA},
        "learning": {"sketch": sketch},
    }
    public = Public(settings_of(SERVER_MEMBER, parties, **sections))
    random = np.random.default_rng(1)
    windows = divided(random.uniform(-1, 1, (ROWS, COLUMNS * parties)), random.uniform(-1, 1, ROWS), parties)
    found = centre_by(windows, allowed_cost(epsilon, DELTA, ROWS), bytes(64))
    learning, bounds = public.settings.learning, public.settings.bounds
    plans = plans_of(
        found.windows,
        public.sampling,
        learning.iterations,
        public.sketch(0),
        found.cost,
        learning.columns,
        bounds.prediction,
        choice_share=learning.choice_share,
    )
    assert found.cost == pytest.approx(sum(public.estimator_cost(party) for party in windows), rel=1e-9)
    for party in public.parties:
        assert found.plans[party].cost == pytest.approx(public.means_plan(party).cost, rel=1e-6)
        expected = public.fit_plan(party, 0)
        assert plans[party].cost == pytest.approx(expected.cost, rel=1e-6)
        assert (plans[party].choices, plans[party].columns) == (expected.choices, expected.columns)
        assert plans[party].prediction_bound == expected.prediction_bound
