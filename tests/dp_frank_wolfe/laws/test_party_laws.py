"""The laws of a role on a party: traffic is what it hears in a fit of each estimator, cut into batches in any
way."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from dp_frank_wolfe.party_driver import COLUMNS, NAMES, ROWS, Driver, secret, settings
from hypothesis import strategies as st

from streamfl.contract.role import Received, Record
from streamfl.dp_frank_wolfe.config import PARTY, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.messages import SERVER_NAME, Manifest, Message, OtherRows, content_of
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.encoding.wire import VERSION
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject, Traffic

FOLDER = tempfile.TemporaryDirectory()


@cache
def own(estimator: str, serving: str) -> DPFrankWolfeSettings:
    """With noise that a budget covers, and no ledger file: the laws make many copies of a party, each with a
    past of its own."""
    privacy = {"insecure_test_noise": False, "secret_file": str(secret(Path(FOLDER.name)))}
    return settings(privacy=privacy, learning={"estimator": estimator}, serving={"mode": serving})


@cache
def heard(estimator: str, serving: str) -> list[list[Received]]:
    """All that a party hears, message by message where it is the server's."""
    party = Driver(own(estimator, serving))
    told = OtherRows(np.ones((ROWS, 2)).tobytes())
    asks = [party.ask(number, others=np.ones(8)) for number in range(4)]
    if estimator == "two-round":
        asks = [party.server("choose", 1, 0, b""), party.server("rows", 1, 0, told)]
    served = [party.sample(f"later {number}", [0.1 * number] * COLUMNS) for number in range(3)]
    rows = party.rows()
    return [
        rows[:7],
        rows[7:30],
        rows[30:],
        [],
        [party.manifest()],
        *([ask] for ask in asks),
        [party.model()],
        served,
        [],
        [],
    ]


@st.composite
def traffic(draw: st.DrawFn, estimator: str, serving: str) -> Traffic:
    """The first batches of that, some of them cut, or without one message, and ticks between them."""
    whole, now = heard(estimator, serving), 1000.0
    batches: list[tuple[float, list[Received]]] = []
    for batch in whole[: draw(st.integers(1, len(whole)))]:
        now += draw(st.sampled_from((0.0, 1.0)))
        rest = list(batch)
        if rest and draw(st.integers(0, 11)) == 0:
            del rest[draw(st.integers(0, len(rest) - 1))]
        cut = draw(st.integers(0, len(rest)))
        parts = [part for part in (rest[:cut], rest[cut:]) if part]
        batches += [(now, part) for part in parts] if parts else [(now, [])]
        if draw(st.integers(0, 3)) == 0:
            batches.append((now, []))
    return Traffic(batches, partitions=[0])


def message(estimator: str, serving: str, kind: str, **others: Any) -> Message:
    """One that nothing led to."""
    fingerprint = heard(estimator, serving)[4][0].message.fingerprint
    given = Message(VERSION, fingerprint, SERVER_NAME, 9, 0, kind, 0, b"", content_of(Manifest(["nobody"])))
    return msgspec.structs.replace(given, **others)


def bad(estimator: str, serving: str) -> list[tuple[Received, str]]:
    wrong = [
        (message(estimator, serving, "ask" if estimator == "frank-wolfe" else "choose"), "implausible"),
        (message(estimator, serving, "manifest"), "malformed"),
        (message(estimator, serving, "manifest", content=content_of(Manifest(NAMES[::-1]))), "malformed"),
        (
            message(
                estimator, serving, "manifest", content=content_of(Manifest([f"{n:03}" for n in range(ROWS)]))
            ),
            "implausible",
        ),
        (message(estimator, serving, "model"), "implausible"),
        (message(estimator, serving, "nonsense"), "malformed"),
        (message(estimator, serving, "manifest", fingerprint=1), "configuration"),
        (message(estimator, serving, "manifest", sender="b"), "forged"),
    ]
    return [
        (Received("asks", one, Record("asks", 0, 0, None, msgspec.msgpack.encode(one))), reason)
        for one, reason in wrong
    ]


def anybody(extreme: Extreme) -> list[tuple[str, Record]]:
    """Records of users: nothing that the server says is expected before a window."""
    columns = json.dumps({f"x{number}": extreme.number for number in range(COLUMNS)}).encode()
    name = extreme.name.encode()
    return [
        ("samples", Record("samples", 0, 0, name, columns)),
        ("labels", Record("labels", 0, 0, name, json.dumps({"y": extreme.number}).encode())),
    ]


def subject(estimator: str, serving: str) -> Subject:
    kind, given = ROLES[PARTY], own(estimator, serving)
    inputs = kind.channels(given).inputs
    return Subject(
        make=lambda: kind.build(given),
        traffic=traffic(estimator, serving),
        anybody=anybody,
        decode={channel: one.decode for channel, one in inputs.items()},
        bad=bad(estimator, serving),
        # A record of an entity that comes again while there is a model is another question about it.
        repeatable=["asks"] if serving != "off" else list(inputs),
    )


CASES = [("frank-wolfe", "private"), ("two-round", "off")]


@pytest.mark.parametrize(
    "subject", [subject(*case) for case in CASES], ids=["-".join(case) for case in CASES]
)
class TestDPFrankWolfeParty(RoleLaws):
    """A party of each estimator, and one that predicts."""
