"""A value in a changelog may be nested deeper than Python's stack. It is refused like any other damage."""

from __future__ import annotations

import msgspec
import pytest

from streamfl.contract.role import BadRecord, StateChange
from streamfl.encoding.changelog_checks import UNDECODABLE, decode_restored
from streamfl.fdskl.config import FdsklSettings
from streamfl.runtime.kinds import find_kind

# Elements behind those that a struct has are skipped, at whatever depth they are.
DEEP = b"\x91" * 50_000 + b"\x90"


class _Two(msgspec.Struct, array_like=True):
    first: int = 0
    second: int = 0


def test_a_deep_value_raises_what_is_caught() -> None:
    value = b"\x93\x01\x02" + DEEP
    with pytest.raises(UNDECODABLE):
        msgspec.msgpack.decode(value, type=_Two)
    with pytest.raises(BadRecord, match="malformed: two numbers: maximum recursion depth"):
        decode_restored(value, _Two, "two numbers")


def test_a_role_refuses_a_deep_value() -> None:
    """Protects the start of a worker: an error of another kind would end it with a traceback."""
    settings = FdsklSettings.model_validate(
        {
            "federation": {"name": "fed", "parties": ["ann"]},
            "role": {"kind": "fdskl-worker"},
            "party": {"name": "ann"},
            "samples": {"topic": "own", "features": ["x"]},
            "labels": {"topic": "labels", "label": "y"},
        }
    )
    role = find_kind("fdskl-worker").build(settings)
    role.open(0)
    # A revision of this party's own life: two numbers, and what follows them.
    with pytest.raises(BadRecord, match="malformed: the party's state: maximum recursion"):
        role.restore(StateChange("state", 0, b"life", b"\x9f" + b"\x00" * 2 + DEEP * 13))
