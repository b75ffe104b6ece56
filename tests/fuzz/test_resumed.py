"""What a member finds damaged in its changelog is refused by name, or nothing is wrong afterwards."""

from __future__ import annotations

import warnings
from collections import Counter
from functools import cache
from random import Random

import pytest
from fuzz import pofmkl, vafl
from fuzz.federations import corpus
from fuzz.resumed import Resumed, Run

from streamfl.role import PeerError, StateChange
from streamfl.vafl.config import COORDINATOR

# The default client writes a snapshot every 64 samples, the server's step one every 256 rows.
ROUNDS = {
    "paper-lockstep": 4,
    "default-lockstep": 90,
    "default-late-labels": 70,
    "vafl-network-softmax": 12,
    "vafl-square-bounded": 12,
}
DAMAGES = 40
MEMBERS = [
    *((name, kind) for name in ROUNDS for kind in ("pofmkl-client", "pofmkl-server") if not name.startswith("vafl")),
    *((name, kind) for name in ROUNDS for kind in (COORDINATOR, vafl.WRONG[0]) if name.startswith("vafl")),
]


@cache
def after_some_rounds(federation: str) -> Run:
    run = vafl.run(federation) if federation in vafl.FEDERATIONS else pofmkl.run(federation)
    run.start()
    for number in range(ROUNDS[federation]):
        run.round(number)
    return run


@pytest.mark.parametrize(("federation", "member"), MEMBERS)
def test_a_damaged_changelog_is_refused_by_name_or_does_no_harm(federation: str, member: str) -> None:
    """Protects whoever restarts from state that was damaged, written by a release without checksums or by hand: no traceback, no
    warning of NumPy, no number that is none, no absurd count, neither at once nor after the next restart.
    """
    resumed = Resumed(after_some_rounds(federation), member, Random(f"{federation} {member}"))
    found: Counter[bool] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(DAMAGES):
            damaged = resumed.damaged()
            try:
                found[resumed.resume(damaged)] += 1
            except Exception as error:
                raise AssertionError(f"{damaged} was taken back, and: {type(error).__name__}: {error}") from error
    assert found[False] > DAMAGES / 4, found


def test_a_name_that_is_no_text_is_refused() -> None:
    """Protects the operator from a traceback: a bit of a name inside a client's record may make it no UTF-8 any more."""
    role = pofmkl.member("default-async", "pofmkl-client").role
    (first, *_) = [one for one in corpus("default-async", "client") if (one.key or b"").startswith(b"client/")]
    value = (first.value or b"").replace(b"press-1", b"press\xb11")
    with pytest.raises(PeerError, match="malformed"):
        role.restore(StateChange("state", 0, b"client/press-1", value))
