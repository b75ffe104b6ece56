"""Wrong messages and damaged state, given to parties and coordinators: what is refused, and mistakes that are
found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vafl.proof import fuzz
from wrong_messages import check_found, trusts_the_sender

from streamfl.contract.role import BadRecord, StateChange
from streamfl.simulation.vertical.members import HEAD
from streamfl.vafl.coordinator.intake import Intake
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.party import role as party_module
from streamfl.vafl.party.role import VaflParty


def _forgets_before_it_checks(self: VaflParty, received: Any, reply: Any, bounded: bool) -> None:
    for task in self._tasks.values():
        task.in_flight._entries.pop(reply.entity, None)
    raise BadRecord("forged", "too late")


def _takes_any_values(self: Intake, content: bytes) -> Any:
    return np.frombuffer(content, self._dtype)[: self._embedding_size]


def _shows_what_it_computed(array: Any, dtype: Any) -> Any:
    return np.asarray(array, dtype=dtype)


def _restores_unchecked(self: VaflCoordinator, change: StateChange) -> None:
    if change.value is not None:
        self._tasks[change.partition].restore(change.key, change.value, self._intake)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "a party trusts the coordinator": (VaflParty, "_check", trusts_the_sender, "vafl-party"),
    "a party forgets before it checks": (
        VaflParty,
        "_check",
        _forgets_before_it_checks,
        "vafl-party press vafl-sum",
    ),
    "a party shows what nobody takes": (party_module, "within_bounds", _shows_what_it_computed, "vafl-party"),
    "a coordinator trusts its parties": (Intake, "values", _takes_any_values, "vafl-coordinator"),
    "a coordinator's state is not checked": (VaflCoordinator, "restore", _restores_unchecked, "restore vafl"),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    "key",
    [
        b"task",
        b"party/0",
        b"party/-1",
        b"party/4",
        b"party/x",
        b"entity/e-1",
        b"entity/\xff",
        b"array/mean/0",
        b"\xff",
    ],
)
def test_a_damaged_state_of_the_coordinator_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    role = fuzz.FEDERATIONS["vafl-sum-logistic"].member(HEAD).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


@pytest.mark.parametrize(
    "key",
    [
        b"task",
        b"entity/e-1",
        b"entity/\xff",
        b"answered/0",
        b"answered/x",
        b"waiting/0",
        b"spent/e-1",
        b"array/mean/0",
        b"\xff",
    ],
)
def test_a_damaged_state_of_a_party_is_refused(key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    role = fuzz.FEDERATIONS["vafl-private"].member(fuzz.WRONG[0]).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))


def test_answers_that_were_remembered_with_a_gap_are_refused() -> None:
    """Protects a party from failing at a later step: what is missing among the gradients that wait for it is
    said at the start."""
    federation = fuzz.FEDERATIONS["vafl-sum-logistic"]
    (first, *_) = [one for one in federation.remembered(fuzz.WRONG[0]) if one.key == b"answered/0"]
    role = federation.member(fuzz.WRONG[0]).role
    with pytest.raises(BadRecord, match="after 0 others"):
        role.restore(StateChange("state", 0, b"answered/1", first.value))
