"""The table of what a worker remembers, against what workers write and restore."""

from __future__ import annotations

from typing import cast

from fdskl.proof import fuzz

from streamfl.contract.role import StateChange
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.state import STATE


def test_workers_remember_what_the_table_says() -> None:
    """Protects operators from a table that lacks a key, or has one that is gone: each row has an owner at
    some party."""
    owned: set[bytes] = set()
    written: set[bytes] = set()
    for federation in fuzz.FEDERATIONS.values():
        for name in fuzz.PARTIES[:2]:
            owned |= cast(FdsklParty, federation.member(name).role).partition(0).parts._restore.keys()
            for one in [*federation.remembered(name), *fuzz.SELDOM]:
                federation.member(name).role.restore(StateChange("state", 0, one.key or b"", one.value))
                kind, slash, _ = (one.key or b"").partition(b"/")
                written.add(kind + slash)
    declared = [row.prefix for row in STATE.rows]
    assert len(declared) == len(set(declared))
    assert owned == set(declared)
    # The fuzzer damages values of each row.
    assert written == set(declared)
