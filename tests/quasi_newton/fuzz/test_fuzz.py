"""Wrong messages and damaged state, given to guest, host and coordinator: what is refused, and mistakes that
are found."""

from __future__ import annotations

from typing import Any

import pytest
from quasi_newton.proof import fuzz
from wrong_messages import check_found

from streamfl.contract.role import BadRecord, StateChange
from streamfl.quasi_newton.encryption.scheme import Plain
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.simulation.vertical.members import HEAD
from streamfl.testing.fuzz.campaign import run
from streamfl.testing.fuzz.member import NOW

MOST_SEED_MESSAGES = 1_300
PLAIN = fuzz.FEDERATIONS["quasi-newton-plain"]


def test_the_recording_has_all_that_guest_and_host_say_about_scores() -> None:
    """Protects whoever takes such a message: what the recording lacks is never spoilt."""
    channels = {fuzz.GUEST_NAME: "answers/shop", fuzz.HOST_NAME: "questions"}
    heard = [
        federation.member(name).decode(one).message
        for federation in fuzz.FEDERATIONS.values()
        for name, channel in channels.items()
        for one in federation.heard(name, channel)
    ]
    assert {one.kind for one in heard} == {"question", "found", "chosen", "points", "closed"}


@pytest.mark.long
def test_no_wrong_message_ends_a_role() -> None:
    """Protects members from whoever can write to their topics, at any place of a training: no traceback,
    nothing changed."""
    assert run(MOST_SEED_MESSAGES, seed=3, only="quasi-newton").defects == []


def _takes_any_size(self: Any, *given: Any) -> None:
    return


def _restores_unchecked(self: PartitionedRole[Any], change: StateChange) -> None:
    if change.value is not None and not self._long.restore(change):
        self._tasks[change.partition].restore(change.key, change.value)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "vectors are not checked": (
        Plain,
        "check",
        _takes_any_size,
        "quasi-newton-coordinator quasi-newton-plain",
    ),
    "state is not checked": (
        PartitionedRole,
        "restore",
        _restores_unchecked,
        "restore quasi-newton-guest bank quasi-newton-plain",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (fuzz.GUEST_NAME, "progress entity/e-1 batch/0/names/0 batch/x/names/0 gone/0 pair/0 vectors"),
        (HEAD, "run descent anything"),
    ],
)
def test_a_damaged_state_is_refused(name: str, keys: str) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    for key in (*keys.encode().split(), b"entity/\xff"):
        role = PLAIN.member(name).role
        with pytest.raises(BadRecord):
            role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0\x01"))


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_a_damaged_model_is_refused_before_figures_tell_of_it(name: str) -> None:
    """Protects the operator from a traceback of the metrics: the first tick refuses what is no model."""
    role = PLAIN.member(name).role
    role.restore(StateChange("state", 0, b"trained/0", b"\x94\x01\xa1x\xc0\xc0\x01"))
    with pytest.raises(BadRecord, match="model"):
        role.receive([], NOW)
