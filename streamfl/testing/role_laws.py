"""The laws of a role (:mod:`streamfl.role`), each a function that takes how to make the role and what to feed it.

A test generates traffic, by Hypothesis for instance, and calls each law with it. AssertionError says which law is broken and where.
Sixth law, bounded memory: it has no general form; each role tests its own bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from streamfl.role import Received, Rejection, Role, Send, StateChange

__all__ = [
    "SameBytes",
    "Traffic",
    "law_batch_equals_singles",
    "law_deterministic",
    "law_duplicates",
    "law_rejects_leave_state",
    "law_restore",
]

SameBytes = Callable[[str, bytes | None, bytes | None], bool]
Batch = tuple[float, Sequence[Received]]
Place = tuple[str, bytes | None, int | None]
Slot = tuple[str, int, bytes]


@dataclass(frozen=True)
class Traffic:
    """What a role is fed: batches with the time of each (an empty one is a tick), on these partitions.

    tables: the channels that a worker reads whole at its start. What they brought is not part of a partition's state; a new owner
    gets it again.
    """

    batches: Sequence[Batch]
    partitions: Sequence[int]
    tables: Collection[str] = ()


def equal_bytes(_channel: str, one: bytes | None, other: bytes | None) -> bool:
    return one == other


@dataclass
class _Run:
    """A role that is being fed, and all that came of it."""

    role: Role
    partitions: Sequence[int]
    replies: list[Send | Rejection] = field(default_factory=list)
    changes: list[StateChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        for partition in self.partitions:
            self.role.open(partition)

    def feed(self, now: float, batch: Sequence[Received]) -> None:
        self.replies += self.role.receive(batch, now)
        self.changes += self.role.changed_state()

    def feed_all(self, batches: Sequence[Batch]) -> _Run:
        for now, batch in batches:
            self.feed(now, batch)
        return self

    @property
    def state(self) -> dict[Slot, bytes]:
        """What the changelog holds after compaction, in the order of the last writing."""
        latest: dict[Slot, bytes] = {}
        for change in self.changes:
            slot = (change.channel, change.partition, change.key)
            latest.pop(slot, None)
            if change.value is not None:
                latest[slot] = change.value
        return latest


def law_deterministic(make: Callable[[], Role], traffic: Traffic) -> None:
    """1. The same input gives two new roles the same replies and the same state, bit for bit and in the same order."""
    first = _Run(make(), traffic.partitions).feed_all(traffic.batches)
    second = _Run(make(), traffic.partitions).feed_all(traffic.batches)
    assert first.replies == second.replies, "the same input gave two answers"
    assert first.changes == second.changes, "the same input was remembered in two ways"


def law_batch_equals_singles(make: Callable[[], Role], traffic: Traffic, same: SameBytes = equal_bytes) -> None:
    """2. Messages one by one, at the time of their batch, have the effect of the batch.

    What goes to one channel, key and partition keeps its order; between those, order is free. ``same`` compares two values of a
    channel, up to rounding.
    """
    together = _Run(make(), traffic.partitions).feed_all(traffic.batches)
    alone = _Run(make(), traffic.partitions)
    for now, batch in traffic.batches:
        alone.feed_all([(now, [received]) for received in batch] or [(now, [])])
    _assert_same_sends(together.replies, alone.replies, same)
    assert _rejected(together.replies) == _rejected(alone.replies), "a batch refuses what its messages alone do not"
    _assert_same_state(together.state, alone.state, same)


def law_restore(make: Callable[[], Role], traffic: Traffic, same: SameBytes = equal_bytes) -> None:
    """3. A new role that takes the state back after any batch, and then hears the tables again, goes on as the old one does."""
    for cut in range(len(traffic.batches) + 1):
        before, after = traffic.batches[:cut], traffic.batches[cut:]
        stayed = _Run(make(), traffic.partitions).feed_all(before)
        moved = _Run(make(), traffic.partitions)
        for (channel, partition, key), value in stayed.state.items():
            moved.role.restore(StateChange(channel, partition, key, value))
        moved.changes += [StateChange(*slot, value) for slot, value in stayed.state.items()]
        stayed.replies.clear()
        tables = [received for _, batch in before for received in batch if received.channel in traffic.tables]
        if tables:
            moved.feed(before[-1][0], tables)
        # What tables got wrong was refused before the cut; the new owner refuses it again.
        moved.replies = [reply for reply in moved.replies if isinstance(reply, Send)]
        stayed.feed_all(after)
        moved.feed_all(after)
        try:
            _assert_same_sends(stayed.replies, moved.replies, same)
            assert _rejected(stayed.replies) == _rejected(moved.replies)
            _assert_same_state(stayed.state, moved.state, same)
        except AssertionError as error:
            raise AssertionError(
                f"a role restored after batch {cut} of {len(traffic.batches)} goes another way: {error}"
            ) from error


def law_rejects_leave_state(make: Callable[[], Role], traffic: Traffic, bad: Sequence[Received]) -> None:
    """4. Each of ``bad`` is refused wherever it comes, and everything else is as if it had never come."""
    spared = _Run(make(), traffic.partitions).feed_all(traffic.batches)
    troubled = _Run(make(), traffic.partitions)
    for now, batch in traffic.batches:
        troubled.feed(now, [*bad, *batch])
    refused = [reply for reply in troubled.replies if isinstance(reply, Rejection) and _is_one_of(reply.received, bad)]
    expected = len(bad) * len(traffic.batches)
    assert len(refused) == expected, f"{len(refused)} of {expected} bad messages were refused"
    assert all(reply.error.reason for reply in refused), "a refusal without a reason"
    others = [reply for reply in troubled.replies if reply not in refused]
    assert others == spared.replies, "a message that was refused had an effect on replies"
    assert troubled.changes == spared.changes, "a message that was refused had an effect on the state"


def law_duplicates(make: Callable[[], Role], traffic: Traffic, channels: Collection[str], same: SameBytes = equal_bytes) -> None:
    """5. A message on ``channels`` that comes again, at once or with the next batch, changes nothing the second time.

    The copy is a record of its own, as a sender's second attempt is; the record that the bus brings twice is the worker's to skip.
    """
    once = _Run(make(), traffic.partitions).feed_all(traffic.batches)
    twice = _Run(make(), traffic.partitions)
    late: list[Received] = []
    for now, batch in traffic.batches:
        copies = [_copy(received) for received in batch if received.channel in channels]
        twice.feed(now, [*late, *batch, *copies])
        late = copies
    if traffic.batches:
        twice.feed(traffic.batches[-1][0], late)
    _assert_same_sends(once.replies, twice.replies, same)
    _assert_same_state(once.state, twice.state, same)


def _copy(received: Received) -> Received:
    return replace(received, record=replace(received.record, offset=received.record.offset + 1_000_000))


def _is_one_of(received: Received, some: Sequence[Received]) -> bool:
    # By identity: messages may hold arrays, which do not compare to one truth.
    return any(received is one for one in some)


def _rejected(replies: Sequence[Send | Rejection]) -> list[tuple[str, str, int, int, str]]:
    refused = (reply for reply in replies if isinstance(reply, Rejection))
    records = ((reply.received.channel, reply.received.record, reply.error.reason) for reply in refused)
    return sorted((channel, record.topic, record.partition, record.offset, reason) for channel, record, reason in records)


def _sends(replies: Sequence[Send | Rejection]) -> dict[Place, list[bytes]]:
    places: dict[Place, list[bytes]] = {}
    for reply in replies:
        if isinstance(reply, Send):
            places.setdefault((reply.channel, reply.key, reply.partition), []).append(reply.value)
    return places


def _assert_same_sends(one: Sequence[Send | Rejection], other: Sequence[Send | Rejection], same: SameBytes) -> None:
    left, right = _sends(one), _sends(other)
    counts = {place: (len(left.get(place, [])), len(right.get(place, []))) for place in left.keys() | right.keys()}
    differing = {place: count for place, count in counts.items() if count[0] != count[1]}
    assert not differing, f"different numbers of messages: {differing}"
    for place, values in left.items():
        for number, (value, counterpart) in enumerate(zip(values, right[place], strict=True)):
            assert same(place[0], value, counterpart), f"message {number} to {place}: {value!r} and {counterpart!r}"


def _assert_same_state(one: dict[Slot, bytes], other: dict[Slot, bytes], same: SameBytes) -> None:
    assert one.keys() == other.keys(), f"only one of the two remembers {sorted(one.keys() ^ other.keys())}"
    for slot, value in one.items():
        assert same(slot[0], value, other[slot]), f"{slot} is remembered as {value!r} and as {other[slot]!r}"
