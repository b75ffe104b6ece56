"""What a party finds damaged in its changelog is refused by name, or nothing is wrong afterwards."""

from __future__ import annotations

from functools import cache

import pytest
from damaged_changelog import after_rounds, check_refused_or_harmless
from fdskl.proof import fuzz
from resumed import MemoryFederation

from streamfl.contract.role import BadRecord
from streamfl.runtime.bus import Outgoing

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


@pytest.mark.parametrize(
    ("member", "deleted", "told"),
    [
        (fuzz.PARTIES[0], b"secret", "partition 0 lacks the secret"),
        (fuzz.PARTIES[1], b"secret", "partition 0 lacks the secret"),
        (fuzz.PARTIES[1], b"columns", "partition 0 lacks the scale of its columns"),
        (fuzz.PARTIES[0], b"alphas/", "the coefficients of 1 of 3 blocks of features are lost"),
    ],
)
def test_a_party_does_not_go_on_without_what_it_has_answered_with(
    member: str, deleted: bytes, told: str
) -> None:
    """Protects predictions from a state of which a record was deleted: with a secret drawn anew the model's
    coefficients belong to other features, and every prediction was chance, at members that were ready."""
    run = after_some_rounds("fdskl-newton").copy()
    last = max(
        (one for one in run.changelog(member) if one.partition == 0 and (one.key or b"").startswith(deleted)),
        key=lambda one: one.key or b"",
    )
    run.bus.write([Outgoing(last.topic, last.key, None, 0)])
    run.start()
    with pytest.raises(BadRecord, match=told):
        run.round(0)


def test_a_whole_state_goes_on() -> None:
    """Protects every restart: whatever a party answered, it has what it answered with."""
    for federation in fuzz.FEDERATIONS:
        run = after_some_rounds(federation).copy()
        run.start()
        run.round(0)
