"""A value in a changelog or a record may be nested deeper than Python's stack. It is refused like any other
damage."""

from __future__ import annotations

import sys
from contextlib import suppress

import msgspec
import pytest

from streamfl.contract.role import BadRecord, Record, StateChange
from streamfl.encoding.changelog_checks import UNDECODABLE, decode_restored
from streamfl.fdskl.config import FdsklSettings
from streamfl.records.samples import SampleReader, SamplesSection
from streamfl.runtime.kinds import find_kind
from streamfl.state.state_settings import StateSettings, decode_settings

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


# All depths at which the decoders find the end of the stack, and those a little less.
DEPTHS = range(sys.getrecursionlimit() - 200, sys.getrecursionlimit() + 1)


@pytest.mark.parametrize("field", ["a", "client", "label", None])
@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_a_sample_of_any_depth_is_refused(format: str, field: str | None) -> None:
    """Protects every worker: a sample just shallow enough to be decoded ended it when the refusal showed the
    value, and again at each start."""
    section = {"topic": "t", "format": format, "client": "client", "features": ["a", "b"], "label": "label"}
    decode = SampleReader(SamplesSection.model_validate(section))
    begin, end, one = (b"[", b"]", b"1") if format == "json" else (b"\x91", b"", b"\x01")
    names = ["a", "b", "client", "label"]
    for depth in DEPTHS:
        nested = begin * depth + one + end * depth
        pairs = [(name, nested if name == field else one) for name in names]
        if field is None:
            value = nested
        elif format == "json":
            value = b"{" + b",".join(b'"%s":%s' % (name.encode(), content) for name, content in pairs) + b"}"
        else:
            value = b"\x84" + b"".join(msgspec.msgpack.encode(name) + content for name, content in pairs)
        with pytest.raises(BadRecord):
            decode(Record("t", 0, depth, b"key", value))


def test_settings_of_any_depth_are_refused_or_compared() -> None:
    """Protects clients: whoever may write to the model's topic could end them for good with one record of
    settings that is just shallow enough to be decoded."""
    own = StateSettings(must_stay={"federation.seed": 7})
    for depth in DEPTHS:
        with suppress(BadRecord):
            (wrong,), _ = own.compare(
                decode_settings(b'{"federation.seed":' + b"[" * depth + b"]" * depth + b"}")
            )
            assert "federation.seed" in str(wrong)
    assert decode_settings(b'{"a": [1.0, {"b": null}], "c": 123456789012345678901}') == {
        "a": [1.0, {"b": None}],
        "c": 123456789012345678901,
    }
