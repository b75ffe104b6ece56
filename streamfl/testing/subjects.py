"""Describes a role for the laws: how to make it and what to feed it. Also runs a role on such input."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from streamfl.contract.channels import Decode
from streamfl.contract.role import Received, Record, Rejection, Role, Send, StateChange, receive_at_once
from streamfl.testing.extremes import Extreme

__all__ = ["LONG", "Batch", "Place", "RoleRun", "Same", "State", "Subject", "Traffic", "answers", "equal"]

# Longer than any timeout or expiry of a role, in seconds.
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
    """Input of a role: batches with their times, on these partitions. An empty batch is a tick.

    tables: the channels that a worker reads whole at its start. Their records are not part of a partition's
    state, because a new owner reads them again. They come before the other messages of their batch. On other
    channels each key belongs to one partition."""

    batches: Sequence[Batch]
    partitions: Sequence[int]
    tables: Collection[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", [(now, self.tables_first(batch)) for now, batch in self.batches])

    def tables_first(self, batch: Sequence[Received]) -> list[Received]:
        return sorted(batch, key=lambda received: received.channel not in self.tables)

    def parts(self, batch: Sequence[Received]) -> list[list[Received]]:
        """A batch as single messages, but its table records stay together: a role may not depend on how far a
        table was read."""
        tables = [received for received in batch if received.channel in self.tables]
        return [tables, *([received] for received in batch if received.channel not in self.tables)]


@dataclass(frozen=True)
class Subject:
    """A role, described for the laws.

    make: returns a new role without open partitions.
    traffic: its input.
    anybody: returns records that anybody may write to the role's inputs and tables, by channel, with the
        given contents in all fields of those types. The role accepts all of them if the contents are
        ordinary.
    decode: by channel, how those records become messages.
    bad: messages that it has to refuse wherever they come, each with the reason.
    repeatable: the channels on which it recognises a message that it has accepted before.
    paced: the outputs whose number of messages depends on the clock, such as those under a budget of bytes a
    second.
    same: whether two values of a channel and key are equal up to rounding, one from a batch and one from
    single messages.
    same_restored: the same for a role that stayed and one that was restored.
    canonical: the state without differences that have no meaning.
    together: by channel, messages in a row as
        a decoder gives them together, such as in columns; a list on other channels.

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
    together: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = field(default_factory=dict)


@dataclass
class RoleRun:
    """A running role, with everything it sent, refused and remembered."""

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
        """Feed messages, but skip an empty batch, which would be a tick."""
        if batch:
            self.feed(now, batch)

    def feed_all(self, batches: Iterable[Batch]) -> RoleRun:
        for now, batch in batches:
            self.feed(now, batch)
        return self

    def restored(self, now: float, batches: Iterable[Batch]) -> RoleRun:
        """A new role with the restored state and, at ``now``, the table records of these batches. It gets no
        tick."""
        restored = RoleRun(self.subject, self.traffic)
        for slot, value in self.state.items():
            restored.role.restore(StateChange(*slot, value))
            restored.changes.append(StateChange(*slot, value))
        restored.feed_some(
            now,
            [
                received
                for _, batch in batches
                for received in batch
                if received.channel in self.traffic.tables
            ],
        )
        return restored

    @property
    def state(self) -> State:
        """The changelog's contents after compaction, in the order of the last writes."""
        latest: State = {}
        for change in self.changes:
            slot = (change.channel, change.partition, change.key)
            latest.pop(slot, None)
            if change.value is not None:
                latest[slot] = change.value
        return latest


def answers(replies: Sequence[Send | Rejection]) -> list[Send | tuple[Received, str]]:
    """Replies in a form that can be compared."""
    # Two error objects are never equal, so their texts are compared.
    return [reply if isinstance(reply, Send) else (reply.received, str(reply.error)) for reply in replies]
