"""The tables of what members remember, against what they restore and write."""

from __future__ import annotations

from typing import Any, cast

import pytest
from dp_frank_wolfe.proof import fuzz

from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.roles.partitioned_role import FRAGMENTS
from streamfl.simulation.vertical.members import HEAD


@pytest.mark.parametrize("name", [fuzz.CLINIC, HEAD])
def test_members_remember_what_the_tables_say(name: str) -> None:
    """Protects operators from a table that lacks a key, or has one that is gone: each row has an owner at the
    member."""
    owned: set[bytes] = set()
    damaged: list[bytes] = []
    for federation in fuzz.FEDERATIONS.values():
        task = cast(Any, federation.member(name).role).task(0)
        ledger = [task.ledger.parts] if name == fuzz.CLINIC else []
        owned |= {
            prefix[: prefix.find(b"/") + 1] or prefix
            for parts in (task.parts, *ledger)
            for prefix in parts._restore
        }
        damaged += [one.key or b"" for one in federation.remembered(name)]
    state = ROLES[federation.settings[name].role.kind].state
    declared = [row.prefix for row in state.rows]
    assert len(declared) == len(set(declared))
    assert owned == set(declared) - {FRAGMENTS.prefix}
    # The fuzzer damages what members have written.
    assert damaged
    assert all(map(state.has, damaged))
