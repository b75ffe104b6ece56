"""The laws of a role on guest, host and coordinator: traffic is what they heard in a training, cut into batches in any way."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop

from streamfl.quasi_newton.messages import Message, Ready, content_of
from streamfl.quasi_newton.roles import ROLES
from streamfl.role import Received, Record
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic
from streamfl.wire import VERSION

SMALL: dict[str, Any] = {
    "learning": {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 2},
    "alignment": {"entities": 40},
}


def settings(name: str) -> Any:
    return settings_of(name, 1, columns=1, **SMALL)


@cache
def heard(name: str) -> list[tuple[float, list[Received]]]:
    """All that a member hears in a small training."""
    loop = ClosedLoop({one: settings(one) for one in ("g", "h1", "c")})
    loop.write_table(84, 1, 1, missing=2)
    loop.settle()
    assert loop.rejections() == []
    batches = loop.members[name].heard
    assert len(batches) > 8
    return batches


@st.composite
def traffic(draw: st.DrawFn, name: str) -> Traffic:
    """The first batches of what a member hears, some of them cut, or without one message, and ticks between them."""
    whole = heard(name)
    batches: list[tuple[float, list[Received]]] = []
    for now, batch in whole[: draw(st.integers(1, min(14, len(whole))))]:
        rest = list(batch)
        if rest and draw(st.integers(0, 11)) == 0:
            del rest[draw(st.integers(0, len(rest) - 1))]
        cut = draw(st.integers(0, len(rest)))
        parts = [part for part in (rest[:cut], rest[cut:]) if part]
        batches += [(now, part) for part in parts] if parts else [(now, [])]
        if draw(st.integers(0, 3)) == 0:
            batches.append((now, []))
    return Traffic(batches, partitions=[0])


def message(name: str, sender: str, kind: str, extreme: Extreme | None = None) -> Message:
    """One that nothing led to."""
    whole = 0 if extreme is None else extreme.whole
    fingerprint = heard_fingerprint(name)
    return Message(VERSION, fingerprint, sender, whole, whole, kind, b"", content_of(Ready(5, b"")))


@cache
def heard_fingerprint(name: str) -> int:
    messages = [one.message for _, batch in heard(name) for one in batch if isinstance(one.message, Message)]
    return int(messages[0].fingerprint)


PEERS = {"g": [("decisions", "c"), ("outputs/h1", "h1")], "h1": [("decisions", "c"), ("residuals", "g")]}
PEERS["c"] = [("uploads/g", "g"), ("uploads/h1", "h1")]


def bad(name: str) -> list[tuple[Received, str]]:
    found = []
    for channel, sender in PEERS[name]:
        for wrong, reason in (
            (msgspec.structs.replace(message(name, sender, "step"), fingerprint=1), "configuration"),
            (message(name, sender, "nonsense"), "malformed"),
        ):
            record = Record(channel, 0, 0, None, msgspec.msgpack.encode(wrong))
            found.append((Received(channel, wrong, record), reason))
    return found


def anybody(name: str, extreme: Extreme) -> list[tuple[str, Record]]:
    """Records of users, and of peers where something is said before any training."""
    records = []
    if name != "c":
        value = json.dumps({"x0": extreme.number}).encode()
        records.append(("samples", Record("samples", 0, 0, extreme.name.encode(), value)))
    if name == "g":
        records.append(("labels", Record("labels", 0, 0, extreme.name.encode(), json.dumps({"y": 1}).encode())))
    if name == "c":
        for channel, sender in PEERS[name]:
            value = msgspec.msgpack.encode(message(name, sender, "ready"))
            records.append((channel, Record(channel, 0, 0, extreme.name.encode(), value)))
    return records


def subject(name: str) -> Subject:
    own = settings(name)
    kind = ROLES[own.role.kind]
    inputs = kind.channels(own).inputs
    return Subject(
        make=lambda: kind.build(own),
        traffic=traffic(name),
        anybody=lambda extreme: anybody(name, extreme),
        decode={channel: one.decode for channel, one in inputs.items()},
        bad=bad(name),
        repeatable=list(inputs),
    )


@pytest.mark.parametrize("subject", [subject("g"), subject("h1"), subject("c")], ids=["guest", "host", "coordinator"])
class TestQuasiNewtonRoles(RoleLaws):
    """Of each of the three roles, in plain sight: encryption is work of the same messages."""
