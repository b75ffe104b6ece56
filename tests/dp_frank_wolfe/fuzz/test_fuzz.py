"""Wrong messages and damaged state, given to party and server: what is refused, and mistakes that are
found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from dp_frank_wolfe.proof import fuzz
from wrong_messages import check_found

from streamfl.contract.role import BadRecord, StateChange
from streamfl.dp_frank_wolfe.server import fit
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.simulation.vertical.members import HEAD
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.member import NOW

MOST_SEED_MESSAGES = 1_300
FEDERATION = fuzz.FEDERATIONS["dp-frank-wolfe"]


def test_no_wrong_message_ends_a_role() -> None:
    """Protects members from whoever can write to their topics, at any place of a fit: no traceback, nothing
    changed."""
    assert run(MOST_SEED_MESSAGES, seed=3, only="dp-frank-wolfe").defects == []


def _restores_unchecked(self: PartitionedRole[Any], change: StateChange) -> None:
    if change.value is not None and not self._long.restore(change):
        self._tasks[change.partition].restore(change.key, change.value)


def _unchecked(content: bytes, of: type[Any]) -> Any:
    return msgspec.msgpack.decode(content, type=of)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "answers are not checked": (fit, "read_content", _unchecked, "dp-frank-wolfe-server dp-frank-wolfe"),
    "state is not checked": (
        PartitionedRole,
        "restore",
        _restores_unchecked,
        "restore dp-frank-wolfe-party clinic dp-frank-wolfe",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    "key",
    [b"run", b"fit", b"name/e-1", b"presence/clinic", b"presence/nobody", b"shown/clinic/9/0", b"anything"],
)
def test_a_servers_damaged_state_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback, as above."""
    role = FEDERATION.member(HEAD).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0\x01"))


def test_a_damaged_model_is_refused_before_figures_tell_of_it() -> None:
    """Protects the operator from a traceback of the metrics: the first tick refuses what is no model."""
    role = FEDERATION.member(HEAD).role
    role.restore(StateChange("state", 0, b"weights/0", b"\x94\x01\xa1x\xc0\xc0\x01"))
    with pytest.raises(BadRecord, match="weights"):
        role.receive([], NOW)


def test_a_server_of_whom_nobody_is_left_does_not_hang() -> None:
    """Protects a process from going round for ever where a damaged state says that all are away and owe
    nothing."""
    role = fuzz.FEDERATIONS["dp-frank-wolfe-two-round"].member(HEAD).role
    role.restore(StateChange("state", 0, b"run", b"\x93\x01\x02\xc4\x00"))
    for party in fuzz.PARTIES:
        role.restore(StateChange("state", 0, b"presence/" + party.encode(), b"\x95\xa0\x00\xc3\x00\xc4\x00"))
    with pytest.raises(BadRecord, match="nobody"):
        role.receive([], NOW)
