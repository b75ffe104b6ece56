"""The attacks of docs/vertical-privacy.md: those that work without a protection do, and none passes what is
promised."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from page_commands import page_text

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.attacks import Attack
from benchmarks.vafl import feature_attacks
from benchmarks.vafl.attacked import BATCH, ENTITIES, Heard, run
from benchmarks.vafl.attacks import ATTACKS

pytestmark = pytest.mark.long

PAGE = page_text("vertical-privacy.md", "Attacks")
# Four standard deviations of an AUC of two equal halves.
MARGIN = 4 * (1 / (3 * ENTITIES)) ** 0.5
# The same of 8000 labels, for attacks that find little more than what is promised.
FINER = 4 * (1 / (6 * 4000)) ** 0.5
# Attacks that are told of on the page as what no protection stops.
NOT_STOPPED = {"predictions compared"}


# Steps of a party with a start of its own that are followed. Who does not find the first one's parameters has
# those of no later one.
FOLLOWED = 8


def heard_for_long_enough(*given: Any, own_start: bool = False, **more: Any) -> Heard:
    heard = run(*given, own_start=own_start, **more)
    if own_start:
        heard.embeddings["a"] = heard.embeddings["a"][: FOLLOWED * BATCH]
    return heard


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Attack]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_attacks, "run", heard_for_long_enough)
        return [one for attack in ATTACKS.values() for one in attack(tmp_path_factory.mktemp("attack"))]


def test_protections_hold_against_attacks_that_work(found: list[Attack]) -> None:
    """Protects parties and labels: an attack that finds nothing shows nothing, unless it succeeds where
    nothing protects, or finds more there than the protection promises.
    """
    for one in found:
        if one.protected is None:
            continue
        weak = one.plain is not None and one.plain < 0.9
        if weak:
            assert one.plain is not None
            assert one.bound is not None, one
            assert one.plain > one.bound + FINER, one
        if one.bound is not None:
            assert one.protected <= one.bound + (FINER if weak else MARGIN), one
        elif one.name not in NOT_STOPPED:
            assert one.protected <= 0.2, one


def test_the_page_says_what_is_found(found: list[Attack]) -> None:
    """Protects readers of the page: its table is that of `make attack`, to the margin that one run has."""
    rows = re.findall(r"^\| (.+) \|$", PAGE, re.MULTILINE)[2:]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [(row[0], row[1], row[2], row[4]) for row in cells] == [
        (one.name, one.attacker, one.figure, one.protection) for one in found
    ]
    for row, one in zip(cells, found, strict=True):
        for text, number in zip(
            (row[3], *row[5:]), (one.plain, one.protected, one.bound, one.chance), strict=True
        ):
            assert (text == "") == (number is None), one
            assert number is None or float(text) == pytest.approx(number, abs=0.06), one
