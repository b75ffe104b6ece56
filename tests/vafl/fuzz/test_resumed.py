"""What a party or coordinator finds damaged in its changelog is refused by name, or nothing is wrong
afterwards."""

from __future__ import annotations

from functools import cache

import pytest
from damaged_changelog import after_rounds, check_refused_or_harmless
from resumed import MemoryFederation
from vafl.proof import fuzz

from streamfl.simulation.vertical.members import HEAD

ROUNDS = 12


@cache
def after_some_rounds(federation: str) -> MemoryFederation:
    return after_rounds(MemoryFederation(fuzz.FEDERATIONS[federation]), ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("federation", "member"), [("vafl-network-softmax", HEAD), ("vafl-square-bounded", fuzz.WRONG[0])]
)
def test_a_damaged_changelog_is_refused_by_name_or_does_no_harm(federation: str, member: str) -> None:
    """Protects whoever restarts from state that was damaged, written by a release without checksums or by
    hand: no traceback, no warning of NumPy, no number that is none, no absurd count, neither at once nor
    after the next restart.
    """
    check_refused_or_harmless(after_some_rounds(federation), member, f"{federation} {member}")
