"""Wrong messages and damaged state, given to the active party and to another: what is refused, and mistakes
that are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fdskl.proof import fuzz
from wrong_messages import check_found

from streamfl.contract.role import BadRecord, StateChange
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import PartialSum, Round
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.sums import sums
from streamfl.fdskl.sums.pending_sums import PendingSum, PendingSums


def _root_is_whoever_says_so(message: Round, settings: FdsklSettings) -> int:
    return settings.federation.root


def _adds_whatever_came(
    self: PendingSums, pending: PendingSum, party: int, message: PartialSum, size: int, dtype: Any
) -> bool:
    values = np.frombuffer(message.values, dtype)
    pending.stage(message.stage).add(values, np.frombuffer(message.known, np.uint8), message.contributors)
    return True


def _restores_unchecked(self: FdsklParty, change: StateChange) -> None:
    if change.value is not None:
        self._tasks[change.partition].parts.restore(change.key, change.value)


MISTAKES: dict[str, tuple[Any, str, Any, str]] = {
    "a party trusts the active one": (sums, "checked_root", _root_is_whoever_says_so, "fdskl-worker pump"),
    "a party adds whatever came": (PendingSums, "add", _adds_whatever_came, "fdskl-worker press"),
    "a party's state is not checked": (FdsklParty, "restore", _restores_unchecked, "restore fdskl-worker"),
}


@pytest.mark.long
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the run from finding nothing because it looks at nothing."""
    check_found(*MISTAKES[mistake], monkeypatch)


@pytest.mark.parametrize(
    "key",
    [
        b"secret",
        b"model",
        b"labels",
        b"alphas/0",
        b"alphas/x",
        b"labelled/e-1",
        b"labelled/\xff",
        b"outputs/0",
        b"outputs/x",
        b"forecast/e-1",
        b"columns/e-1",
        b"standardisation",
        b"\xff",
    ],
)
@pytest.mark.parametrize("name", fuzz.PARTIES[:2])
def test_a_damaged_state_is_refused(name: str, key: bytes) -> None:
    """Protects the operator from a traceback: a changelog of another layout has to be named, with what to
    do."""
    role = fuzz.FEDERATIONS["fdskl-newton"].member(name).role
    with pytest.raises(BadRecord):
        role.restore(StateChange("state", 0, key, b"\x94\x01\xa1x\xc0\xc0"))
