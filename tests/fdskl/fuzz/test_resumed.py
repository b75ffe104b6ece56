"""What a party finds damaged in its changelog is refused by name, or nothing is wrong afterwards."""

from __future__ import annotations

from functools import cache

import pytest
from damaged_changelog import after_rounds, check_refused_or_harmless
from fdskl.proof import fuzz
from resumed import MemoryFederation

ROUNDS = 12


@cache
def after_some_rounds(federation: str) -> MemoryFederation:
    return after_rounds(MemoryFederation(fuzz.FEDERATIONS[federation]), ROUNDS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("federation", "member"), [("fdskl-newton", fuzz.PARTIES[0]), ("fdskl-sgd", fuzz.PARTIES[1])]
)
def test_a_damaged_changelog_is_refused_by_name_or_does_no_harm(federation: str, member: str) -> None:
    """Protects whoever restarts from state that was damaged, written by a release without checksums or by
    hand: no traceback, no warning of NumPy, no number that is none, no absurd count, neither at once nor
    after the next restart.
    """
    check_refused_or_harmless(after_some_rounds(federation), member, f"{federation} {member}")


def test_something_was_learnt_before_the_damage() -> None:
    """Protects the test above from looking at nothing: there are coefficients, labelled entities and a secret
    to damage."""
    kinds = {
        (one.key or b"").partition(b"/")[0]
        for one in after_some_rounds("fdskl-newton").changelog(fuzz.PARTIES[0])
    }
    assert {b"alphas", b"model", b"labelled", b"outputs", b"secret"} <= kinds
