"""The tutorial of two organisations that learn a scorecard, done as its page says."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from page_commands import page_text
from tutorials import CREDIT_FIELDS, Row, check_topics, files_of, simulated

from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.scoring.predictions import Prediction

PAGE = page_text("quasi-newton.md", "Tutorial")
FILES = files_of(PAGE)
WHO = ("the bank", "the shop", "the auditor")
ROWS = 1500


def read(file: str) -> QuasiNewtonSettings:
    return QuasiNewtonSettings(**tomllib.loads(file))


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: all files load, agree where they have to, and are all that is
    needed."""
    settings = [read(file) for file in FILES]
    assert [item.role.kind.rpartition("-")[2] for item in settings] == ["guest", "host", "coordinator"]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert (
        len({repr((item.federation, item.learning, item.encryption.key_fingerprint)) for item in settings})
        == 1
    )
    assert {item.encryption.precision for item in settings} == {"paillier"}


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    # The prediction that it shows has the fields of all.
    (line,) = re.findall(r'^    (\{"entity".*\})$', PAGE, re.MULTILINE)
    assert list(json.loads(line)) == list(Prediction.__struct_fields__)
    check_topics(PAGE, {name: read(file) for name, file in zip(WHO, FILES, strict=True)})


def customers() -> list[Row]:
    """Who defaulted follows from the bank's and the shop's columns together."""
    draws = np.random.default_rng(4)
    inputs = draws.normal(size=(ROWS, 5)).round(3)
    defaulted = (inputs @ [0.5, -1.0, 0.5, 1.5, 1.5] + draws.logistic(size=ROWS) > 0.5).astype(float)
    # In the units of the page.
    inputs = inputs * [12, 9000, 700, 3, 2] + [45, 31000, 900, 6, 2]
    columns = [name for names in CREDIT_FIELDS.values() for name in names]
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


@pytest.mark.long
def test_the_command_that_says_whether_it_is_worth_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the first thing that is tried: the command of the page takes a member's file as it stands
    there, without a broker, a key or a secret, and says what the shop's columns are worth.
    """
    found = simulated(PAGE, tmp_path / "bank.toml", FILES[2], customers(), monkeypatch, capsys)
    assert (found["guest"], found["entities"], found["test_entities"]) == ("bank", 1000, 300)
    assert found["auc"] > found["guest_alone"]["auc"] + 0.1
