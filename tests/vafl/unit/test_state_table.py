"""The tables of what coordinator and parties remember, against what they restore and write."""

from __future__ import annotations

from typing import Any, cast

import pytest
from vafl.proof import fuzz

from streamfl.simulation.vertical.members import HEAD
from streamfl.state.table import StateTable
from streamfl.vafl.state import COORDINATOR_STATE, PARTY_STATE


@pytest.mark.parametrize(("member", "state"), [("press", PARTY_STATE), (HEAD, COORDINATOR_STATE)])
def test_a_member_remembers_what_the_table_says(member: str, state: StateTable) -> None:
    """Protects operators from a table that lacks a key, or has one that is gone: each row has an owner."""
    partition = cast(Any, next(iter(fuzz.FEDERATIONS.values())).member(member).role)._tasks[0]
    owned = {prefix[: prefix.find(b"/") + 1] or prefix for prefix in partition._parts._restore}
    declared = [row.prefix for row in state.rows]
    assert len(declared) == len(set(declared))
    assert owned == set(declared)


@pytest.mark.parametrize("federation", fuzz.FEDERATIONS)
def test_no_key_is_written_that_the_tables_lack(federation: str) -> None:
    """Protects a start from a `streamfl check` that finds a key that the role has."""
    for name, state in ((fuzz.WRONG[0], PARTY_STATE), (HEAD, COORDINATOR_STATE)):
        written = [one.key or b"" for one in fuzz.FEDERATIONS[federation].remembered(name)]
        assert written
        assert all(map(state.has, written))
