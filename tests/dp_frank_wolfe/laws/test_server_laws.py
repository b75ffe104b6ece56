"""The laws of a role on the server: traffic is what it hears in two fits of each estimator, cut into batches
in any way."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import msgspec
import pytest
from dp_frank_wolfe.federations import SERVER_MEMBER, parties_of, settings_of
from dp_frank_wolfe.laws.closed_loop import ClosedLoop
from hypothesis import strategies as st

from streamfl.contract.role import Received, Record
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.learning.public import Public
from streamfl.dp_frank_wolfe.messages import Entities, Message, content_of
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.encoding.wire import VERSION
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

ESTIMATORS = ("frank-wolfe", "two-round")
ROWS, PARTIES = 12, parties_of(2)
BEGIN = 1000.0


@cache
def own(estimator: str, member: str = SERVER_MEMBER) -> DPFrankWolfeSettings:
    learning = {"estimator": estimator, "iterations": 3, "sketch_rows": 4}
    return settings_of(
        member, len(PARTIES), learning=learning, window={"rows": ROWS, "patience_seconds": 5.0}
    )


@cache
def heard(estimator: str) -> list[Received]:
    """All that the server hears in two fits."""
    loop = ClosedLoop({name: own(estimator, name) for name in (*PARTIES, SERVER_MEMBER)})
    loop.write_rows([f"e{number}" for number in range(2 * ROWS + 3)])
    loop.settle()
    assert loop.rejections() == []
    member = loop.members[SERVER_MEMBER]
    found = []
    for number, (_, topic, _, value) in enumerate(loop.committed):
        if topic in member.inputs:
            channel, decode = member.inputs[topic]
            # Written after the server began, whatever its clock says: what is older the server asks for
            # anew, and here nobody answers.
            record = Record(topic, 0, number, None, value, (), 1e12)
            found.append(Received(channel, decode(record), record))
    assert len(found) > 8
    return found


@st.composite
def traffic(draw: st.DrawFn, estimator: str) -> Traffic:
    """The first messages of that, in batches of any size, perhaps without one of them, and ticks between
    them."""
    whole = list(heard(estimator))
    del whole[draw(st.integers(1, len(whole))) :]
    if draw(st.integers(0, 2)) == 0:
        # A party that falls silent: patience is over some time.
        del whole[draw(st.integers(0, len(whole) - 1))]
    batches: list[tuple[float, list[Received]]] = []
    now = BEGIN
    while whole:
        size = draw(st.integers(1, 5))
        batches.append((now, whole[:size]))
        del whole[:size]
        now += draw(st.sampled_from((0.0, 0.5, 6.0)))
        if draw(st.integers(0, 2)) == 0:
            batches.append((now, []))
    return Traffic(batches, partitions=[0])


def message(estimator: str, party: str, kind: str, content: bytes, extreme: Extreme | None = None) -> Message:
    """One that nothing led to, or the first of a party."""
    whole = 0 if extreme is None else extreme.whole
    return Message(VERSION, Public(own(estimator)).fingerprint, party, 0, whole, kind, 0, b"", content)


def bad(estimator: str) -> list[tuple[Received, str]]:
    """Of another federation, of another party, and of a kind that there is not."""
    found = []
    names = content_of(Entities(["somebody"]))
    for party in PARTIES:
        channel = f"releases/{party}"
        for wrong, reason in (
            (
                msgspec.structs.replace(message(estimator, party, "entities", names), fingerprint=1),
                "configuration",
            ),
            (message(estimator, "nobody", "entities", names), "forged"),
            (message(estimator, party, "nonsense", names), "malformed"),
        ):
            found.append(
                (Received(channel, wrong, Record(channel, 0, 0, None, msgspec.msgpack.encode(wrong))), reason)
            )
    return found


def anybody(estimator: str, extreme: Extreme) -> list[tuple[str, Record]]:
    """Entities that parties announce, with names and numbers as they may be written."""
    found = []
    for party in PARTIES:
        content = msgspec.msgpack.encode([[extreme.name]])
        value = msgspec.msgpack.encode(message(estimator, party, "entities", content))
        found.append((f"releases/{party}", Record(f"releases/{party}", 0, 0, extreme.key, value)))
    return found


def subject(estimator: str) -> Subject:
    inputs: Any = ROLES[SERVER].channels(own(estimator)).inputs
    return Subject(
        make=partial(ROLES[SERVER].build, own(estimator)),
        traffic=traffic(estimator),
        anybody=partial(anybody, estimator),
        decode={channel: one.decode for channel, one in inputs.items()},
        bad=bad(estimator),
        repeatable=list(inputs),
        # Who is waited for is asked the same again, as often as patience is over.
        paced=[f"asks/{party}" for party in PARTIES],
    )


@pytest.mark.parametrize("subject", [subject(estimator) for estimator in ESTIMATORS], ids=ESTIMATORS)
class TestServer(RoleLaws):
    """All laws, with each estimator."""
