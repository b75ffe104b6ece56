"""Assertions that two runs of a role agree."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from streamfl.contract.role import Rejection, Send
from streamfl.testing.subjects import Place, Same, State

__all__ = ["assert_same_sends", "assert_same_state", "rejected"]


def rejected(
    replies: Sequence[Send | Rejection], but: Collection[str] = ()
) -> list[tuple[str, str, int, int, str]]:
    refused = (
        reply for reply in replies if isinstance(reply, Rejection) and reply.received.channel not in but
    )
    records = ((reply.received.channel, reply.received.record, reply.error.reason) for reply in refused)
    return sorted(
        (channel, record.topic, record.partition, record.offset, reason)
        for channel, record, reason in records
    )


def _sends(replies: Sequence[Send | Rejection]) -> dict[Place, list[bytes]]:
    places: dict[Place, list[bytes]] = {}
    for reply in replies:
        if isinstance(reply, Send):
            places.setdefault((reply.channel, reply.key, reply.partition), []).append(reply.value)
    return places


def assert_same_sends(one: Sequence[Send | Rejection], other: Sequence[Send | Rejection], same: Same) -> None:
    left, right = _sends(one), _sends(other)
    counts = {
        place: (len(left.get(place, [])), len(right.get(place, []))) for place in left.keys() | right.keys()
    }
    differing = {place: count for place, count in counts.items() if count[0] != count[1]}
    assert not differing, f"different numbers of messages: {differing}"
    for place, values in left.items():
        for number, (value, counterpart) in enumerate(zip(values, right[place], strict=True)):
            assert same(place[0], place[1], value, counterpart), (
                f"message {number} to {place}: {value!r} and {counterpart!r}"
            )


def assert_same_state(one: State, other: State, same: Same) -> None:
    assert one.keys() == other.keys(), f"only one of the two remembers {sorted(one.keys() ^ other.keys())}"
    for (channel, partition, key), value in one.items():
        counterpart = other[channel, partition, key]
        slot = f"{channel}, partition {partition}, key {key!r}"
        assert same(channel, key, value, counterpart), (
            f"{slot} is remembered as {value!r} and as {counterpart!r}"
        )
