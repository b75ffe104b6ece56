"""A party that was taken up again goes on as one that never stopped."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from dp_frank_wolfe.party_driver import NAMES, Driver, settings
from dp_frank_wolfe.unit.test_party_crashes import TWICE, same_anchor, script, undisturbed

from streamfl.contract.role import BadRecord, StateChange
from streamfl.dp_frank_wolfe.messages import records_of


@pytest.mark.parametrize("estimator", ["frank-wolfe", "marginal", "two-round"])
def test_restored_anywhere_it_says_the_same(tmp_path: Path, estimator: str) -> None:
    """Protects a fit from restarts: whatever is left out of what is remembered is missing in the next
    message."""
    steps = script(estimator)
    if estimator == "marginal":
        steps = [step for number, step in enumerate(script("two-round")) if number not in (4, 10)]
    learning = {"estimator": estimator}
    # A worker that begins gives a tick.
    ticked = [each for step in steps for each in (step, lambda _: [])]
    never = undisturbed(tmp_path / "once", ticked, learning=learning, **TWICE)
    same_anchor(tmp_path / "again", tmp_path / "once")
    party = Driver(settings(tmp_path / "again", learning=learning, **TWICE))
    for step in steps:
        party.feed(step(party))
        party = Driver(party.settings, party.state, party.sent)
    assert party.sent == never.sent
    assert len(party.sent) >= 6
    assert party.state == never.state


def test_a_manifest_in_parts_comes_whole_through_a_restart(tmp_path: Path) -> None:
    """Protects long messages: names of thousands of rows, which were announced without numbers, do not fit
    into a record, and a restart may come between two of them.
    """
    rows = 4200
    party = Driver(settings(tmp_path, window={"rows": rows, "limit": rows}, privacy={"delta": 1e-5}))
    names = [f"{number:04}" + "x" * 246 for number in range(rows)]
    for name in names:
        party.feed([party.sample(name, [0.5] * 4), party.label(name, 0.5)])
    assert sum(len(msgspec.msgpack.decode(message.content)[0]) for message in party.feed([])) == rows
    message = party.server("manifest", 1, 0, [names]).message
    first, second = records_of(party.codec, message)
    assert party.feed([party.record("asks", "", first)]) == []
    party = Driver(party.settings, party.state)
    (frozen,) = party.feed([party.record("asks", "", second)])
    assert frozen.kind == "frozen"
    again = Driver(party.settings, party.state)
    assert len(again.feed([again.ask(0)])) == 1
    assert len(again.task.ledger.spend) == rows


def test_half_rows_come_back(tmp_path: Path) -> None:
    """Protects entities of which one record came before a restart, and the other behind it."""
    party = Driver(settings(tmp_path))
    batch = party.rows()
    for received in batch:
        party.feed([received])
        party = Driver(party.settings, party.state, party.sent)
    names = [name for message in party.sent for name in msgspec.msgpack.decode(message.content)[0]]
    assert names == NAMES
    assert len(party.feed([party.manifest()])) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"nothing", b"\x00"),
        (b"progress", b"\x92\x01\x07"),
        (b"progress", b"\xc1"),
        (b"fit", b"\x90"),
        (b"fit", b"\x93\xc4\x00\x01\x91\x04"),
        (b"selection", b"\x92\xc4\x00\x91\x04"),
        (b"fit-window", b"\xff"),
        (b"entity/", b"\x93\xc4\x00\xc4\x00\xc2"),
        (b"spent/a", b"\x92\xcb\xff\xf0" + bytes(6) + b"\x01"),
        (b"chain/0", b"\x93\xc4\x01\x00\x01\xc4\x00"),
        (b"latest/f", b"\x91\xff"),
        (b"window/9999999999", b"\x00"),
        (b"model/1", bytes(100)),
    ],
)
def test_damaged_state_is_refused(tmp_path: Path, key: bytes, value: bytes) -> None:
    """Protects the ledger and the fit from state that no party has written."""
    party = Driver(settings(tmp_path))
    with pytest.raises(BadRecord):
        party.role.restore(StateChange("state", 0, key, value))


def test_times_hold_nothing_up() -> None:
    """Protects announcements from a clock that was set back."""
    party = Driver(settings())
    party.feed(party.rows()[:1])
    assert party.role.wake_at is None
    party.feed(party.rows())
    assert party.role.wake_at == party.now
    party.now = 10.0
    assert len(party.feed([])) == 1
    assert party.role.wake_at is None
