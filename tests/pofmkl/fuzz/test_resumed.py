"""What a client or server finds damaged in its changelog is refused by name, or nothing is wrong
afterwards."""

from __future__ import annotations

from functools import cache

import pytest
from damaged_changelog import after_rounds, check_refused_or_harmless
from pofmkl.proof import fuzz
from resumed import MemoryFederation

from streamfl.contract.role import BadRecord, StateChange

# The default client writes a snapshot every 64 samples, the server's step one every 256 rows.
ROUNDS = {"paper-lockstep": 4, "default-lockstep": 90, "default-late-labels": 70}


@cache
def after_some_rounds(federation: str) -> MemoryFederation:
    return after_rounds(fuzz.run(federation), ROUNDS[federation])


@pytest.mark.long
@pytest.mark.parametrize(
    ("member", "federation"),
    [
        # To the server clients with late labels are as others.
        (fuzz.CLIENT, "paper-lockstep"),
        (fuzz.CLIENT, "default-lockstep"),
        (fuzz.CLIENT, "default-late-labels"),
        (fuzz.SERVER, "paper-lockstep"),
        (fuzz.SERVER, "default-lockstep"),
    ],
)
def test_a_damaged_changelog_is_refused_by_name_or_does_no_harm(federation: str, member: str) -> None:
    """Protects whoever restarts from state that was damaged, written by a release without checksums or by
    hand: no traceback, no warning of NumPy, no number that is none, no absurd count, neither at once nor
    after the next restart.
    """
    check_refused_or_harmless(after_some_rounds(federation), member, f"{federation} {member}")


def test_a_name_that_is_no_text_is_refused() -> None:
    """Protects the operator from a traceback: a bit of a name inside a client's record may make it no UTF-8
    any more."""
    federation = fuzz.FEDERATIONS["default-async"]
    role = federation.member(fuzz.CLIENT).role
    (first, *_) = [
        one for one in federation.remembered(fuzz.CLIENT) if (one.key or b"").startswith(b"client/")
    ]
    value = (first.value or b"").replace(b"press-1", b"press\xb11")
    with pytest.raises(BadRecord, match="malformed"):
        role.restore(StateChange("state", 0, b"client/press-1", value))
