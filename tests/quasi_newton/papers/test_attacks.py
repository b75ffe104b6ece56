"""The attacks of docs/quasi-newton-privacy.md: each works where nothing protects, and finds what the page
says where it does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmarks.attacks import Attack, attacked_systems

PAGE = Path(__file__).parents[3] / "docs" / "quasi-newton-privacy.md"
RATE = "names tried out a second"
# By attack and protection: the least that is found without it, and the most with it. What nothing protects
# has None.
LIMITS = {
    ("every gradient, batches drawn anew in 13 epochs", "batches are drawn once, for life"): (0.95, 0.80),
    ("every gradient, batches drawn anew in 3 retrainings", "batches are drawn once, for life"): (0.82, 0.80),
    ("a batch of 10 rows, 10 columns", "20 rows a column: 200"): (1.0, 0.72),
    ("the 5 rows that are left over", "they wait for a full batch"): (1.0, 0.0),
    ("a flag that one row has", "min_support"): (1.0, 0.0),
    ("two columns that differ in one row", "largest_leverage"): (1.0, 0.0),
    ("rows far out in a column", "largest_leverage"): (0.8, 0.74),
    ("rows far out in a column", "preprocessing.method = clip"): (0.8, 0.74),
    ("rows far out in a column", "preprocessing.method = rank"): (0.8, 0.74),
    ("the first gradient, 60 rows, 10 columns", "first weights from a secret"): (1.0, 0.75),
    ("the host's outputs", "batches are drawn once, for life"): (0.8, 0.2),
    ("how many columns the host has", "none"): (4.0, None),
    ("residuals divided by outputs", "blinded anew"): (1.0, 0.0),
    ("what stands beside a ciphertext", "one public exponent, one length"): (0.95, 0.5),
    ("the same work with other numbers: quotients", "drawn from all that it hides"): (1.0, 0.0),
    ("the same: masked residues subtracted", "drawn from all that it hides"): (1.0, 0.0),
    ("residuals decrypted at the broker", "sealed between host and guest"): (0.99, 0.58),
    ("steps added up, first weights known", "mask_gradients"): (0.999, 0.25),
    ("steps added up, first weights secret", "mask_gradients"): (0.95, 0.25),
    ("what is decrypted of a gradient", "mask_gradients"): (0.3, 0.154),
    ("lengths of the steps", "none"): (0.999, None),
    ("residuals uploaded as a gradient", "one decryption a party and round"): (1.0, 0.05),
    # What rests on honesty.
    ("made-up outputs at the bound", "sums bounded by own columns"): (1.0, 1.0),
    ("outputs of 2^4 times the bound", "sums bounded by own columns"): (1.0, 0.0),
    ("outputs of 2^10 times the bound", "sums bounded by own columns"): (1.0, 0.0),
    ("outputs of 2^20 times the bound", "sums bounded by own columns"): (0.0, 0.0),
    ("outputs in the place of the loss", "the loss is told to nobody"): (1.0, 0.0),
    ("an output in the place of the gradients' square", "none"): (1.0, None),
    ("every name tried out", "alignment.method = intersection"): (1.0, 0.0),
    # It depends on the machine.
    (RATE, "alignment.method = intersection"): (0.001, None),
    ("one bit of each name, X25519", "P-256"): (1.0, 0.6),
    ("points of 10 versions, 10 columns", "points rounded to 1/64"): (0.999, 0.95),
    ("points of 10 versions, 10 columns", "points rounded to 1/4"): (0.999, 0.5),
    ("points of 10 versions, 10 columns", "3 versions, rounded to 1/64"): (0.999, 0.4),
    ("points of 10 known customers, 10 columns", "points rounded to 1/64"): (0.999, 0.95),
    # It is told of on the page as what does not help.
    ("points of 50 known customers, 10 columns", "points rounded to 1/64"): (0.999, 1.0),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Attack]:
    attacks = attacked_systems()["quasi-newton"].values()
    return [one for attack in attacks for one in attack(tmp_path_factory.mktemp("attack"))]


@pytest.mark.long
def test_attacks_work_without_protections_and_fail_with_them(found: list[Attack]) -> None:
    """Protects parties and labels: an attack that finds nothing shows nothing, unless it succeeds where
    nothing protects."""
    assert {(one.name, one.protection) for one in found} == LIMITS.keys()
    for one in found:
        least, most = LIMITS[one.name, one.protection]
        assert one.plain is not None, one
        assert one.plain >= least, one
        assert (one.protected is None) == (most is None), one
        assert one.protected is None or most is None or one.protected <= most, one
        assert one.bound is None or one.protected is None or one.protected <= one.bound, one


@pytest.mark.long
def test_the_page_says_what_is_found(found: list[Attack]) -> None:
    """Protects readers of the page: its table is that of `make attack SYSTEM=quasi-newton`, to the margin
    that a machine has."""
    text = PAGE.read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (.+) \|$", text[text.index("make attack") : text.index("## The attacks")], re.MULTILINE
    )[2:]
    cells = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [(row[0], row[1], row[2], row[4]) for row in cells] == [
        (one.name, one.attacker, one.figure, one.protection) for one in found
    ]
    for row, one in zip(cells, found, strict=True):
        for text, number in zip(
            (row[3], *row[5:]), (one.plain, one.protected, one.bound, one.chance), strict=True
        ):
            assert (text == "") == (number is None), one
            assert number is None or one.name == RATE or float(text) == pytest.approx(number, abs=0.03), one
