"""The laws of a role, on this one."""

from __future__ import annotations

import json

import pytest
from running_mean.proof.fuzz import FEDERATION

from streamfl.contract.role import Record
from streamfl.testing.extremes import Extreme
from streamfl.testing.fuzz.lawful import recorded_subject
from streamfl.testing.role_laws import RoleLaws


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    content = json.dumps({"x": extreme.whole, "y": 1}).encode()
    return [("samples", Record("samples", 0, 0, extreme.name.encode(), content))]


@pytest.mark.parametrize("subject", [recorded_subject(FEDERATION, "worker", anybody)])
class TestRunningMean(RoleLaws):
    """Deterministic, the same in batches and one by one, after a restart, with wrong messages and with a
    clock that is wrong."""
