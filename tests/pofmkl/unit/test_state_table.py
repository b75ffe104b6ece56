"""The tables of what clients and server remember, against what they restore and write."""

from __future__ import annotations

from typing import Any

import pytest
from pofmkl.proof import fuzz
from pofmkl.proof.fuzz import CLIENT, SERVER

from streamfl.contract.role import BadRecord, StateChange
from streamfl.pofmkl.state import CLIENT_STATE, SERVER_STATE

WITH_SAMPLES, LATE = "default-async", "default-late-labels"


def new_role(federation: str, member: str) -> Any:
    return fuzz.FEDERATIONS[federation].member(member).role


def owned(federation: str, member: str) -> set[bytes]:
    """The prefixes that the role has something for that restores them."""
    role = new_role(federation, member)
    return {*(role._restoring.restores if member == CLIENT else role._shards[0]._restores)}


def test_roles_restore_what_the_tables_say() -> None:
    """Protects operators from a table that lacks a key, or has one that is gone: each row has an owner."""
    for state, found in (
        (CLIENT_STATE, owned(WITH_SAMPLES, CLIENT) | owned(LATE, CLIENT)),
        (SERVER_STATE, owned(WITH_SAMPLES, SERVER)),
    ):
        declared = [row.prefix for row in state.rows]
        assert len(declared) == len(set(declared))
        assert found == set(declared)


@pytest.mark.parametrize("federation", fuzz.FEDERATIONS)
def test_no_key_is_written_that_the_tables_lack(federation: str) -> None:
    """Protects a start from a `streamfl check` that finds a key that the role has."""
    for member, state in ((CLIENT, CLIENT_STATE), (SERVER, SERVER_STATE)):
        written = [one.key or b"" for one in fuzz.FEDERATIONS[federation].remembered(member, "state")]
        assert written
        assert all(map(state.has, written))


@pytest.mark.parametrize(
    "key", [b"", b"/", b"silence/1", b"silenced", b"client", b"pending/a", b"other/a", b"\xff"]
)
def test_a_client_refuses_what_its_table_does_not_have(key: bytes) -> None:
    """Protects a worker from another role's changelog: what it does not know it must not pass over, because
    it would be lost."""
    assert not CLIENT_STATE.has(key)
    with pytest.raises(BadRecord, match="nothing that this client remembers"):
        new_role(WITH_SAMPLES, CLIENT).restore(StateChange("state", 0, key, b""))


@pytest.mark.parametrize(
    "key", [b"", b"/", b"round/1", b"rounds", b"client", b"copy", b"means/a", b"other/a", b"\xff"]
)
def test_a_server_refuses_what_its_table_does_not_have(key: bytes) -> None:
    """As for a client."""
    assert not SERVER_STATE.has(key)
    with pytest.raises(BadRecord, match="not known to this release"):
        new_role(WITH_SAMPLES, SERVER).restore(StateChange("state", 0, key, b""))


@pytest.mark.parametrize(
    ("federation", "key"), [(LATE, b"waiting/"), (LATE, b"challenger/"), (WITH_SAMPLES, b"join/")]
)
def test_state_of_the_other_source_of_labels_is_refused(federation: str, key: bytes) -> None:
    """Protects samples and labels that wait from being lost, when labels come another way than before."""
    with pytest.raises(BadRecord, match="nothing that this client remembers"):
        new_role(federation, CLIENT).restore(StateChange("state", 0, key, b""))
