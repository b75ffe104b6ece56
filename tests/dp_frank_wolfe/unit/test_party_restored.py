"""A party that was taken up again goes on as one that never stopped."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from dp_frank_wolfe.party_driver import Driver, settings

from streamfl.contract.role import BadRecord, StateChange
from streamfl.dp_frank_wolfe.messages import records_of


def test_a_manifest_in_parts_comes_whole_through_a_restart(tmp_path: Path) -> None:
    """Protects long messages: names of thousands of rows, which were announced without numbers, do not fit
    into a record, and a restart may come between two of them.
    """
    rows = 4200
    party = Driver(settings(tmp_path, window={"rows": rows, "limit": rows}, privacy={"delta": 1e-5}))
    names = [f"{number:04}" + "x" * 246 for number in range(rows)]
    for name in names:
        party.hear(party.sample(name, [0.5] * 4), party.label(name, 0.5))
    announced = party.tick()
    assert [message.iteration for message in announced] == list(range(1, len(announced) + 1))
    assert sum(len(msgspec.msgpack.decode(message.content)[0]) for message in announced) == rows
    assert max(len(message.content) for message in announced) < 200_000
    message = party.server("manifest", 1, 0, [names]).message
    first, second = records_of(party.codec, message)
    assert party.hear(party.record("asks", "", first)) == []
    party = Driver(party.settings, party.state)
    (frozen,) = party.hear(party.record("asks", "", second))
    assert frozen.kind == "frozen"
    again = Driver(party.settings, party.state)
    assert len(again.hear(again.ask(0))) == 1
    assert len(again.task.ledger.spend) == rows


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
    assert len(party.tick()) == 1
    assert party.role.wake_at is None
