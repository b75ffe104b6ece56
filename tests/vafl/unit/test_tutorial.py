"""The tutorial of vertical federations, done as its page says."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pytest
from page_commands import page_text
from tutorials import CREDIT_FIELDS, Row, Tutorial, files_of

from streamfl.vafl.config import VaflSettings

FILES = files_of(page_text("vertical.md", "Tutorial"))
HISTORY, STREAM = 1000, 200
# Customers that the shop does not know.
STRANGERS = {100, 300}


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: both parties' files and the coordinator's load, and agree where
    they have to."""
    settings = [VaflSettings(**tomllib.loads(file)) for file in FILES]
    assert [item.role.kind for item in settings] == ["vafl-party", "vafl-party", "vafl-coordinator"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert settings[0].federation == settings[1].federation == settings[2].federation


@pytest.fixture(scope="module")
def customers() -> list[Row]:
    """Who defaulted follows from all five columns, of which no party has more than three."""
    inputs = np.random.default_rng(4).normal(size=(HISTORY + STREAM, 5)).round(3)
    defaulted = (inputs @ [-0.5, -1.0, 1.5, -1.0, 1.5] > 0).astype(float)
    columns = [name for names in CREDIT_FIELDS.values() for name in names]
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


def read(file: str) -> VaflSettings:
    """As a process reads it, but with first parameters that are the same in every run."""
    content = tomllib.loads(file)
    return VaflSettings(**{**content, "learning": {**content.get("learning", {}), "seeded_start": True}})


def right(predictions: list[dict[str, Any]], customers: list[Row]) -> float:
    """The share of the newest predictions that were right."""
    newest = {one["entity"]: one["prediction"] for one in predictions}
    return float(
        np.mean([(value > 0.5) == customers[int(name[9:])]["defaulted"] for name, value in newest.items()])
    )


def test_history_is_learnt_from_and_the_stream_goes_on_with_it(customers: list[Row]) -> None:
    """Protects a newcomer's first try: tables written at once are learnt from customer by customer, whoever
    both know is predicted of both, and the stream that follows is predicted by what was learnt.
    """
    tutorial = Tutorial([read(file) for file in FILES], "customer", customers, CREDIT_FIELDS, patience=35)
    tutorial.start()
    tutorial.write("outcomes", range(HISTORY))
    tutorial.write("accounts", range(HISTORY))
    tutorial.write("baskets", (number for number in range(HISTORY) if number not in STRANGERS))
    tutorial.settle()
    tutorial.stop()
    history = tutorial.contents("credit.predictions")
    newest = {one["entity"]: one for one in history}
    assert len(newest) == HISTORY
    assert {int(name[9:]) for name, one in newest.items() if one["embeddings"] < 2} == STRANGERS
    assert sum(one["prediction"] == 0.5 for one in newest.values()) <= 2 * 64
    assert right(history[-200:], customers) >= 0.9
    tutorial.start()
    for topic in ("accounts", "baskets"):
        tutorial.write(topic, range(HISTORY, HISTORY + STREAM))
        tutorial.settle()
    stream = tutorial.contents("credit.predictions")[len(history) :]
    assert len({one["entity"] for one in stream}) == STREAM
    assert not [one for one in stream if one["prediction"] == 0.5]
    assert right(stream, customers) >= 0.9
    tutorial.stop()
