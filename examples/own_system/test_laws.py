"""The laws of a role, on this one."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import strategies as st
from running_mean.proof.fuzz import settings
from running_mean.roles import ROLES

from streamfl.contract.role import Received, Record
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

KIND = ROLES["running-mean"]
DECODE = KIND.channels(settings).inputs["samples"].decode


def received(client: str, partition: int, label: float | None, offset: int) -> Received:
    value = json.dumps({"x": 1.0, "y": label}).encode()
    record = Record("samples", partition, offset, client.encode(), value)
    return Received("samples", DECODE(record), record)


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    offsets = itertools.count()
    one = st.tuples(st.sampled_from([("pump", 0), ("fan", 0), ("valve", 1)]), st.none() | st.floats(0, 1))
    batches = draw(st.lists(st.lists(one, max_size=5), max_size=5))
    return Traffic(
        [
            (float(now), [received(*place, label, next(offsets)) for place, label in batch])
            for now, batch in enumerate(batches)
        ],
        partitions=(0, 1),
    )


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    content = json.dumps({"x": extreme.whole, "y": 1}).encode()
    return [("samples", Record("samples", 0, 0, extreme.name.encode(), content))]


@pytest.mark.parametrize("subject", [Subject(lambda: KIND.build(settings), traffics(), anybody, {"samples": DECODE})])
class TestRunningMean(RoleLaws):
    """Deterministic, the same in batches and one by one, after a restart, with wrong messages and with a clock that is wrong."""
