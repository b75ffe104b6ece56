"""The tables of what members remember, against what they restore and write."""

from __future__ import annotations

from typing import Any, cast

import pytest
from quasi_newton.proof import fuzz

from streamfl.roles.partitioned_role import FRAGMENTS, PartitionedRole
from streamfl.runtime.kinds import find_kind

PLAIN = fuzz.FEDERATIONS["quasi-newton-plain"]


@pytest.mark.parametrize("name", fuzz.MEMBERS)
def test_members_remember_what_the_tables_say(name: str) -> None:
    """Protects operators from a table that lacks a key, or has one that is gone: each row has an owner at the
    member."""
    kind = find_kind(PLAIN.settings[name].role.kind)
    owned = {
        prefix[: prefix.find(b"/") + 1] or prefix
        for prefix in cast(PartitionedRole[Any], PLAIN.member(name).role).task(0).parts._restore
    }
    declared = [row.prefix for row in kind.state.rows if row != FRAGMENTS]
    assert len(declared) == len(set(declared))
    assert owned == set(declared)
    # The fuzzer damages what members have written.
    damaged = [
        one.key or b"" for federation in fuzz.FEDERATIONS.values() for one in federation.remembered(name)
    ]
    assert damaged
    assert all(map(kind.state.has, damaged))
