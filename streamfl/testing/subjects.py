"""How the laws of a role are told what to make and what to feed it, and a role that is being fed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from streamfl.role import Decode, Received, Record, Rejection, Role, Send, StateChange, receive_at_once
from streamfl.testing.extremes import Extreme

__all__ = ["LONG", "Batch", "Place", "Run", "Same", "State", "Subject", "Traffic", "answers", "equal"]

# Seconds that outlast any timeout or expiry of a role.
LONG = 1e9

Batch = tuple[float, Sequence[Received]]
Slot = tuple[str, int, bytes]
State = dict[Slot, bytes]
Place = tuple[str, bytes | None, int | None]
Same = Callable[[str, bytes | None, bytes, bytes], bool]


def equal(_channel: str, _key: bytes | None, one: bytes, other: bytes) -> bool:
    return one == other


def as_it_is(state: State) -> State:
    return state


@dataclass(frozen=True)
class Traffic:
    """What a role is fed: batches with the time of each (an empty one is a tick), on these partitions.

    tables: the channels that a worker reads whole at its start. What they brought is not part of a partition's state, for a new
    owner gets it again; and it comes before the other messages of its batch. A key of the others belongs to one partition.
    """

    batches: Sequence[Batch]
    partitions: Sequence[int]
    tables: Collection[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", [(now, self.tables_first(batch)) for now, batch in self.batches])

    def tables_first(self, batch: Sequence[Received]) -> list[Received]:
        return sorted(batch, key=lambda received: received.channel not in self.tables)

    def parts(self, batch: Sequence[Received]) -> list[list[Received]]:
        """What tables brought stays together, for how far a table was read is no part of the input; else message by message."""
        tables = [received for received in batch if received.channel in self.tables]
        return [tables, *([received] for received in batch if received.channel not in self.tables)]


@dataclass(frozen=True)
class Subject:
    """A role as the laws see it.

    make: a new one, with no partition open. traffic: what to feed it. bad: messages that it has to refuse wherever they come, each
    with the reason. repeatable: the channels on which it knows a message that it has taken before. same: whether two values of a
    channel and key, one of a batch and one of its messages one by one, are equal but for rounding; same_restored: the same of a
    role that stayed and one that was restored. canonical: the state without differences that have no meaning.

    anybody: records that anybody may write to the role's inputs and tables, by channel, the given things in all fields that take
    such; if they are ordinary, all of them are accepted. decode: how those of a channel become messages. paced: the outputs on
    which how much is said depends on the clock: what a budget of bytes a second allows, what is answered by the time it names.
    """

    make: Callable[[], Role]
    traffic: st.SearchStrategy[Traffic]
    anybody: Callable[[Extreme], Sequence[tuple[str, Record]]]
    decode: Mapping[str, Decode]
    bad: Sequence[tuple[Received, str]] = ()
    repeatable: Collection[str] = ()
    paced: Collection[str] = ()
    same: Same = equal
    same_restored: Same = equal
    canonical: Callable[[State], State] = as_it_is


@dataclass
class Run:
    """A role that is being fed, and all that came of it."""

    subject: Subject
    traffic: Traffic
    replies: list[Send | Rejection] = field(default_factory=list)
    changes: list[StateChange] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.role = self.subject.make()
        for partition in self.traffic.partitions:
            self.role.open(partition)

    def feed(self, now: float, batch: Sequence[Received]) -> None:
        self.replies += receive_at_once(self.role, batch, now)
        self.changes += self.role.changed_state()

    def feed_some(self, now: float, batch: Sequence[Received]) -> None:
        """Messages only: an empty batch would be a tick."""
        if batch:
            self.feed(now, batch)

    def feed_all(self, batches: Iterable[Batch]) -> Run:
        for now, batch in batches:
            self.feed(now, batch)
        return self

    def restored(self, now: float, batches: Iterable[Batch]) -> Run:
        """A new role that took the state back and heard at ``now`` what the tables brought in these batches. It got no tick."""
        restored = Run(self.subject, self.traffic)
        for slot, value in self.state.items():
            restored.role.restore(StateChange(*slot, value))
            restored.changes.append(StateChange(*slot, value))
        restored.feed_some(now, [received for _, batch in batches for received in batch if received.channel in self.traffic.tables])
        return restored

    @property
    def state(self) -> State:
        """What the changelog holds after compaction, in the order of the last writing."""
        latest: State = {}
        for change in self.changes:
            slot = (change.channel, change.partition, change.key)
            latest.pop(slot, None)
            if change.value is not None:
                latest[slot] = change.value
        return latest


def answers(replies: Sequence[Send | Rejection]) -> list[Send | tuple[Received, str]]:
    """Replies that can be compared."""
    # Two errors are never equal by themselves.
    return [reply if isinstance(reply, Send) else (reply.received, str(reply.error)) for reply in replies]
