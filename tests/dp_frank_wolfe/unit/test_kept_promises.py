"""What a member promises it can keep, and it begins only then; nothing that is refused tells of a row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_frank_wolfe.party_driver import NAMES, ROWS, Driver, settings, table
from pydantic import ValidationError

from streamfl.contract.role import ConfigurationError
from streamfl.dp_frank_wolfe.config import PARTY, SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import OtherRows
from streamfl.dp_frank_wolfe.party.window import RESIDUAL_ONE, correlations
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.privacy.zcdp import delta_of_variation, largest_cost

SERVED = {"mode": "private"}
UNKEPT: dict[str, dict[str, dict[str, Any]]] = {
    "a delta that the table of the noise is too short for": {"privacy": {"epsilon": 1.0, "delta": 1e-25}},
    "sketches that share too little": {
        "privacy": {"epsilon": 0.01, "delta": 1e-3},
        "learning": {"sketch_rows": 100_000},
    },
    "a share too small for a prediction": {
        "privacy": {"epsilon": 0.1},
        "serving": {**SERVED, "predictions": 1_000_000},
    },
    "many predictions at a small delta": {
        "privacy": {"delta": 1e-14},
        "serving": {**SERVED, "predictions": 1_000_000},
    },
    "an epsilon beyond all numbers": {"privacy": {"epsilon": 1e9}},
}


@pytest.mark.parametrize("unkept", UNKEPT.values(), ids=UNKEPT)
def test_a_member_that_cannot_keep_its_promise_does_not_begin(
    tmp_path: Path, unkept: dict[str, dict[str, Any]]
) -> None:
    """Protects epsilon, and entities' budgets: noise that cannot be drawn well enough is refused before
    anybody is charged."""
    party = settings(tmp_path, **unkept)
    content = party.model_dump(exclude={"party", "samples", "labels"})
    server = type(party).model_validate({**content, "role": {"kind": SERVER}})
    for kind, own in ((PARTY, party), (SERVER, server)):
        with pytest.raises(
            ConfigurationError, match=r"privacy\.epsilon = .*lower learning\.columns, window\.fits"
        ):
            ROLES[kind].build(own)


def test_test_noise_has_to_be_drawn_too() -> None:
    """Protects a worker from noise without a promise that no table holds; a delta that such noise need not
    keep is no reason."""
    assert settings(privacy={"delta": 1e-25}).privacy.insecure_test_noise
    Driver(settings(privacy={"delta": 1e-25}))
    with pytest.raises(ConfigurationError, match=r"serving\.predictions"):
        Driver(settings(privacy={"epsilon": 0.1}, serving={**SERVED, "predictions": 1_000_000}))


@pytest.mark.parametrize("estimator", ["frank-wolfe", "two-round"])
def test_what_may_begin_can_draw_all_its_noise(tmp_path: Path, estimator: str) -> None:
    """Protects a worker from a crash behind the check: near its limit each release is drawn, of a fit and of
    a prediction."""

    def made(predictions: int) -> DPFrankWolfeSettings:
        serving = {**SERVED, "predictions": predictions}
        return settings(
            tmp_path, privacy={"epsilon": 0.1}, learning={"estimator": estimator}, serving=serving
        )

    low, high = 1, 1_000_000
    while high - low > 1:
        middle = (low + high) // 2
        try:
            Public(made(middle)).check()
            low = middle
        except ConfigurationError:
            high = middle
    party = Driver(made(low)).begun()
    rows = party.server("rows", 1, 0, OtherRows(np.ones((ROWS, 2)).tobytes()))
    two = [party.server("choose", 1, 0, b""), rows]
    for ask in [party.ask(0)] if estimator == "frank-wolfe" else two:
        assert party.hear(ask)
    party.hear(party.model())
    party.hear(party.sample("new", [0.9] * 4))
    assert [message.kind for message in party.tick()] == ["partial"]
    assert party.rejections == []


def test_whether_an_ask_is_refused_does_not_tell_of_a_row(tmp_path: Path) -> None:
    """Protects rows from asks that are out of all proportion: a residual's size decides nothing, its public
    bound does."""
    with pytest.raises(ValidationError, match="prediction"):
        settings(tmp_path, bounds={"prediction": 500.5})
    # A residual beyond its bound is a fault of the caller's, and is not found out by looking.
    columns = np.zeros((3, 2), dtype=np.int16)
    assert correlations(columns, np.full(3, 2**27), RESIDUAL_ONE).tolist() == [0, 0]
    with pytest.raises(ValueError, match="exact"):
        correlations(columns, np.zeros(3, dtype=np.int64), 2**27)
    outcomes = set()
    features, labels = table()
    for number, label in enumerate((-1.0, 1.0, math.nan)):
        folder = tmp_path / str(number)
        folder.mkdir()
        party = Driver(
            settings(folder, bounds={"prediction": 500.0}, learning={"sketch": "identity", "iterations": 6})
        )
        party.feed([party.sample(name, row.tolist()) for name, row in zip(NAMES, features, strict=True)])
        party.feed(
            [
                party.label(name, label if place == 7 else float(labels[place]))
                for place, name in enumerate(NAMES)
            ]
        )
        party.tick()
        party.hear(party.manifest())
        found = []
        for iteration, size in enumerate((499.5 * 2**14, 500.5 * 2**14, 512 * 2**14, 1e20, 1e250)):
            others = np.zeros(ROWS)
            others[7] = size
            sent = party.hear(party.ask(iteration, others=others))
            found.append((len(sent), len(party.rejections)))
        outcomes.add(tuple(found))
    assert outcomes == {((1, 0),) * 5}


@pytest.mark.parametrize("section", ["samples", "labels"])
def test_where_something_is_promised_the_key_is_the_name(tmp_path: Path, section: str) -> None:
    """Protects who is announced from depending on values: with the name among them, what cannot be read has
    no name."""
    given = {
        "samples": {"topic": "a-samples", "features": [f"x{number}" for number in range(4)], "entity": "id"},
        "labels": {"topic": "labels", "label": "y", "entity": "id"},
    }
    with pytest.raises(ValidationError, match=rf"{section}\.entity = 'id': leave it out"):
        settings(tmp_path, **{section: given[section]})
    for privacy in ({"insecure_test_noise": True}, {"epsilon": math.inf}):
        assert settings(tmp_path, privacy=privacy, **{section: given[section]})


@pytest.mark.parametrize(("mode", "fits"), [("off", 4), ("private", 5)])
def test_unused_predictions_pay_for_fits(tmp_path: Path, mode: str, fits: int) -> None:
    """Protects what is said of fits: an entity's budget decides, whoever asks, and delta has room for all
    fits that it pays for."""
    party = Driver(settings(tmp_path, window={"fits": 4}, serving={"mode": mode, "share": 0.2}))
    for window in range(1, fits + 2):
        frozen = party.window(window)
        assert [message.kind for message in frozen] == (["frozen"] if window <= fits else [])
    public = party.public
    assert (
        public._variation
        >= fits / public.settings.window.fits * Public(settings(window={"fits": 4}))._variation
    )


def test_large_epsilons_are_numbers() -> None:
    """Protects an operator from a traceback: nothing of an epsilon of any size overflows, and a search for
    cost comes to an end."""
    assert (
        delta_of_variation(1e-20, 800.0)
        == delta_of_variation(1e-20, 1e9)
        == delta_of_variation(0.5, math.inf)
        == 1
    )
    assert 0 <= largest_cost(1e-300, 1e-5) < largest_cost(1e-3, 1e-5) < largest_cost(1e9, 1e-5)
