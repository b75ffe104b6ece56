"""The tutorial of two organisations that learn a kernel model, done as its page says."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from page_commands import page_text
from tutorials import CREDIT_FIELDS, Row, Tutorial, check_topics, files_of, simulated

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.party.role import FdsklParty

PAGE = page_text("fdskl.md", "Tutorial")
FILES = files_of(PAGE)
HISTORY, STREAM = 1536, 200
# A customer that the shop shows later than the bank.
LATE = HISTORY + 7


def read(file: str) -> FdsklSettings:
    return FdsklSettings(**tomllib.loads(file))


def test_its_configurations_are_valid() -> None:
    """Protects two organisations' first try: both files load, agree where they have to, and are all that is
    needed."""
    settings = [read(file) for file in FILES]
    assert [item.party.name for item in settings if item.party is not None] == settings[0].federation.parties
    assert settings[0].federation == settings[1].federation
    assert [item.is_active for item in settings] == [True, False]


def test_its_table_of_topics_is_whole() -> None:
    """Protects whoever grants rights by the page: these topics and no others are there, and it says who
    writes and reads which."""
    check_topics(PAGE, {name: read(file) for name, file in zip(("the bank", "the shop"), FILES, strict=True)})


@pytest.fixture(name="customers", scope="module")
def _customers() -> list[Row]:
    """Who defaulted follows from the bank's and the shop's columns together, and from no column alone."""
    inputs = np.random.default_rng(4).normal(size=(HISTORY + STREAM, 5)).round(3)
    defaulted = (inputs[:, 2] * inputs[:, 3] + 0.3 * inputs[:, 4] > 0).astype(float)
    # In the units of the page.
    inputs = inputs * [12, 9000, 700, 3, 2] + [45, 31000, 900, 6, 2]
    columns = [name for names in CREDIT_FIELDS.values() for name in names]
    return [
        dict(zip(columns, (*row, label), strict=True))
        for row, label in zip(inputs.tolist(), defaulted.tolist(), strict=True)
    ]


class FdsklTutorial(Tutorial):
    """Members have secrets that are the same in every run of the test."""

    draws = np.random.default_rng(9)

    def start(self) -> None:
        super().start()
        for worker in self.workers:
            role = cast(FdsklParty, worker.role)
            role.given = replace(
                role.given, secret=self.draws.bytes(32), entropy=lambda: self.draws.bytes(32)
            )


def test_history_is_learnt_from_and_the_stream_is_predicted_from_both(customers: list[Row]) -> None:
    """Protects a newcomer's first try: a history written as the page says is learnt from, the model is there
    after a restart, a customer that the shop shows later is predicted twice with what the page says of both,
    and what follows is mostly right."""
    tutorial = FdsklTutorial(
        [read(file) for file in FILES], "customer", customers, CREDIT_FIELDS, patience=15
    )
    tutorial.start()
    tutorial.write("baskets", range(HISTORY))
    tutorial.settle()
    # As replay writes them: each row's columns, then its label.
    for begin in range(0, HISTORY, 64):
        tutorial.write("accounts", range(begin, begin + 64))
        tutorial.write("outcomes", range(begin, begin + 64))
    tutorial.settle()
    tutorial.stop()
    history = tutorial.contents("credit.predictions")
    assert len({one["entity"] for one in history}) == HISTORY
    tutorial.start()
    tutorial.settle()
    numbers = range(HISTORY, HISTORY + STREAM)
    tutorial.write("baskets", (number for number in numbers if number != LATE))
    tutorial.settle()
    tutorial.write("accounts", numbers)
    tutorial.settle()
    tutorial.write("baskets", [LATE])
    tutorial.settle()
    stream = tutorial.contents("credit.predictions")[len(history) :]
    newest = {one["entity"]: one for one in stream}
    assert len(newest) == STREAM
    late = [(one["parties"], one["revision"]) for one in stream if one["entity"] == f"customer-{LATE}"]
    assert late == [(1, 0), (2, 1)]
    assert {one["parties"] for one in newest.values()} == {2}
    # After each 256 labels, and before after 32, 64 and 128.
    assert {one["model"] for one in newest.values()} == {HISTORY // 256 + 3}
    fields = re.findall(r'^    (\{"entity".*\})$', PAGE, re.MULTILINE)
    assert [list(json.loads(line)) for line in fields] == [list(stream[0])] * 2
    right = np.mean(
        [(one["prediction"] > 0.5) == customers[int(name[9:])]["defaulted"] for name, one in newest.items()]
    )
    assert right >= 0.8
    tutorial.stop()


@pytest.mark.long
def test_the_command_that_says_whether_it_is_worth_it_runs(
    customers: list[Row],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects the first thing that is tried: the command of the page takes a party's file as it stands
    there, without a broker, and says what each party is worth.
    """
    # That of the party without labels, in the other's place.
    found = simulated(PAGE, tmp_path / "bank.toml", FILES[1], customers, monkeypatch, capsys)
    assert found["active"] == "bank"
    assert found["accuracy"] > 0.8
    assert all(found["absent"][party]["accuracy"] < found["accuracy"] - 0.1 for party in ("bank", "shop"))
