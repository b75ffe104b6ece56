"""Messages that are too long for a record: sent in fragments, one record each, and put together by the
reader.

A message that fits into a record is sent as it is. :func:`split` cuts a longer one. The role that reads it
owns a :class:`LongMessages`, which returns whole messages only::

    def receive(self, batch, now):
        whole, replies = self.long.receive(batch, now)
        ...

Fragments of one message go to one partition, in their order. A fragment names its sender and its message, by
the numbers with which the sender counts its messages (:mod:`streamfl.roles.received_numbers`) and by a digest
of the whole message. The digest is needed because a sender that does its work again may use a number for
other content. Fragments that have come are remembered in the role's state, one key each, so that the
partition's next owner can go on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from streamfl.contract.channels import Decode
from streamfl.contract.measurement import Counts, counter, gauge
from streamfl.contract.role import BadRecord, Measurement, Received, Rejection, StateChange
from streamfl.encoding.changelog_checks import Time, check_name
from streamfl.encoding.wire import Count
from streamfl.roles.fragment_encoding import DIGEST_BYTES, FRAGMENT_BYTES, Fragment, digest_of
from streamfl.roles.received_numbers import NumberRange, check_numbers, note, was_heard
from streamfl.state.clock_guard import ClockGuard, overdue, set_back, time_written

__all__ = ["ClaimedSender", "Limits", "LongMessages"]

# Messages of a sender's earlier life may still come beside one of its present life; a third at a time is
# somebody's mistake.
UNDER_WAY_OF_A_SENDER = 2
FRAGMENT, HEARD = b"part/", b"heard/"
_PLACE: Final = struct.Struct(f">QQ{DIGEST_BYTES}sI")


class _Stored(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A remembered fragment; its key names the message and the place. since: when the message began, in its
    first fragment."""

    since: Time
    size: Count
    content: bytes


ClaimedSender = Callable[[Any], str | None]
"""From a whole message to the member for whom it speaks; None: for its writer."""

_stored = msgspec.msgpack.Decoder(_Stored)
_ranges = msgspec.msgpack.Decoder(list[NumberRange])
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class Limits:
    """Bounds of what may wait in a partition.

    message_bytes: the largest whole message.
    messages: most incomplete messages at a time; when it is full the oldest is forgotten.
    senders: most senders whose received numbers are remembered; when it is full the sender whose last
    complete message is oldest is forgotten.
    seconds: from a message's first fragment until it is forgotten.
    fragment_bytes: as in :func:`split`.
    """

    message_bytes: int
    messages: int
    senders: int
    seconds: float
    fragment_bytes: int = FRAGMENT_BYTES

    def __post_init__(self) -> None:
        if (
            min(self.message_bytes, self.messages, self.senders, self.fragment_bytes) < 1
            or not self.seconds > 0
        ):
            raise ValueError(f"{self}: every limit has to be above 0")

    def content_bytes(self, size: int, place: int) -> int:
        """The bytes of content in a fragment; 0 or less if a message of this size has no such fragment."""
        return min(self.fragment_bytes, size - place * self.fragment_bytes)


@dataclass(slots=True)
class _Message:
    """An incomplete message: its fragments by place."""

    since: float
    size: int
    fragments: dict[int, bytes] = field(default_factory=dict)

    @property
    def have(self) -> int:
        """The number of fragments that have come without a gap."""
        return next(place for place in count() if place not in self.fragments)


# Sender, epoch, sequence, digest.
_Name = tuple[str, int, int, bytes]


@dataclass(slots=True)
class _Task:
    """A partition. messages: in the order in which they began. heard: by sender, in the order of their last
    complete messages."""

    messages: dict[_Name, _Message] = field(default_factory=dict)
    heard: dict[str, list[NumberRange]] = field(default_factory=dict)


class FragmentMetrics(Counts):
    """Metrics of messages in several parts."""

    incomplete_messages = counter(
        "Messages in several parts that were dropped before all parts had come: by age, or to make room",
        reason=("expired", "crowded_out"),
    )
    messages_under_way = gauge("Messages of which some parts have come")


class LongMessages:
    """A role's incomplete messages: bounded, and remembered under ``prefix`` in its changelog ``channel``.

    decode: by input that may bring fragments, the decoder of a whole record.
    claimed_sender: gives the member for whom a whole message speaks. The fragments' writer was checked
    against the sender that they name, so the whole message may speak for no other.
    senders: who may send; None: anybody. Without keys, each further name takes room for its own messages.
    passes_repeated: whether a message comes again whose numbers were heard. Senders that begin no epoch of
    their own need this: the numbers may be those of another run, or of a stranger's message, and the role
    tells what it has taken.

    A fragment is refused with the reason
    "forged", "oversized", "contradictory_part", "missing_part" or "damaged_part", or with what ``decode``
    finds in the whole. A fragment that came before, of an incomplete or complete message, changes nothing.
    """

    def __init__(
        self,
        decode: Mapping[str, Decode],
        claimed_sender: ClaimedSender,
        channel: str,
        prefix: bytes,
        limits: Limits,
        senders: Collection[str] | None = None,
        passes_repeated: bool = False,
    ) -> None:
        self.limits = limits
        self._passes_repeated = passes_repeated
        self._senders = senders
        self._claimed_sender = claimed_sender
        self._decode = decode
        self._channel = channel
        self._prefix = prefix
        self._tasks: dict[int, _Task] = {}
        self._changes: dict[tuple[int, bytes], bytes | None] = {}
        self._clock_guard = ClockGuard()
        self._metrics = FragmentMetrics()

    @property
    def wake_at(self) -> float | None:
        begun = [next(iter(task.messages.values())).since for task in self._tasks.values() if task.messages]
        return min(begun) + self.limits.seconds if begun else None

    @property
    def waiting(self) -> Mapping[str, int]:
        under_way = sum(len(task.messages) for task in self._tasks.values())
        return {"messages in parts": under_way} if under_way else {}

    def open(self, partition: int) -> None:
        self._tasks[partition] = _Task()
        self._clock_guard.opened()

    def close(self, partition: int) -> None:
        del self._tasks[partition]
        self._changes = {place: value for place, value in self._changes.items() if place[0] != partition}

    def restore(self, change: StateChange) -> bool:
        """Restore a change from :meth:`changed_state`; False if it belongs to another owner. BadRecord if it
        is damaged."""
        if not change.key.startswith(self._prefix):
            return False
        key, value = change.key.removeprefix(self._prefix), change.value or b""
        task = self._tasks[change.partition]
        try:
            if key.startswith(HEARD):
                task.heard[check_name(key.removeprefix(HEARD))] = _ranges.decode(value)
                return True
            epoch, sequence, digest, place = _PLACE.unpack(key[len(FRAGMENT) : len(FRAGMENT) + _PLACE.size])
            name = (check_name(key[len(FRAGMENT) + _PLACE.size :]), epoch, sequence, digest)
            stored = _stored.decode(value)
        except (struct.error, msgspec.DecodeError) as error:
            raise BadRecord("malformed", f"{change.key[:60]!r} is no part of a message: {error}") from None
        message = task.messages.setdefault(name, _Message(stored.since, stored.size))
        if place == 0:
            # The first fragment may have been written anew after the clock was set back; then it comes behind
            # the others.
            message.since = stored.since
            task.messages[name] = task.messages.pop(name)
        message.fragments[place] = stored.content
        return True

    def receive(self, batch: Sequence[Received], now: float) -> tuple[list[Received], list[Rejection]]:
        """The whole messages of a batch, each in the place of its last fragment, and the refused
        fragments."""
        ahead = self._clock_guard.pass_to(now, tick=not batch)
        if not batch:
            self._let_time_pass(now, ahead)
        whole: list[Received] = []
        refused: list[Rejection] = []
        for received in batch:
            if not isinstance(received.message, Fragment):
                whole.append(received)
                continue
            try:
                complete = self._take(received, received.message, now)
            except BadRecord as error:
                refused.append(Rejection(received, error))
            else:
                if complete is not None:
                    whole.append(complete)
        return whole, refused

    def changed_state(self) -> Iterable[StateChange]:
        changes, self._changes = self._changes, {}
        return [
            StateChange(self._channel, partition, key, value) for (partition, key), value in changes.items()
        ]

    def measure(self) -> Iterable[Measurement]:
        yield from self._metrics.measure_counts()
        under_way = sum(len(task.messages) for task in self._tasks.values())
        yield FragmentMetrics.messages_under_way(under_way)

    # ---- one fragment

    def _take(self, received: Received, fragment: Fragment, now: float) -> Received | None:
        """The whole message, if this was the last fragment."""
        task, limits = self._tasks[received.partition], self.limits
        if self._senders is not None and fragment.sender not in self._senders:
            raise BadRecord(
                "forged", f"a part of a message of {fragment.sender!r}, who is no member that writes here"
            )
        check_numbers(fragment.epoch, fragment.sequence, time_written(received.record.timestamp, now))
        if fragment.size > limits.message_bytes:
            raise BadRecord(
                "oversized",
                f"a message of {fragment.size} bytes, at most {limits.message_bytes} are accepted",
            )
        if len(fragment.digest) != DIGEST_BYTES or fragment.size <= limits.fragment_bytes:
            raise BadRecord(
                "malformed", f"a message of {fragment.size} bytes is not sent in parts, or its digest is none"
            )
        if len(fragment.content) != limits.content_bytes(fragment.size, fragment.place):
            text = (
                f"part {fragment.place} of a message of {fragment.size} bytes has not "
                f"{len(fragment.content)} bytes"
            )
            raise BadRecord("contradictory_part", text)
        name = (fragment.sender, fragment.epoch, fragment.sequence, fragment.digest)
        message = task.messages.get(name)
        begins = self._passes_repeated and (fragment.place == 0 or message is not None)
        if not begins and was_heard(task.heard.get(fragment.sender, []), fragment.epoch, fragment.sequence):
            return None
        if message is not None and message.size != fragment.size:
            raise BadRecord(
                "contradictory_part",
                f"a message of {message.size} bytes that should have {fragment.size} bytes",
            )
        have = 0 if message is None else message.have
        if fragment.place > have:
            raise BadRecord("missing_part", f"part {fragment.place} of a message of which {have} have come")
        if fragment.place < have:
            return None
        if (fragment.place + 1) * limits.fragment_bytes >= fragment.size:
            assert message is not None
            complete = self._complete(received, fragment, message)
            self._forget(received.partition, name)
            self._note(received.partition, fragment)
            return complete
        if message is None:
            self._make_room(received.partition, fragment.sender)
            message = task.messages[name] = _Message(now, fragment.size)
        message.fragments[fragment.place] = fragment.content
        self._remember(received.partition, name, fragment.place)
        return None

    def _complete(self, received: Received, fragment: Fragment, message: _Message) -> Received:
        value = b"".join([*(message.fragments[place] for place in range(fragment.place)), fragment.content])
        if digest_of(value) != fragment.digest:
            raise BadRecord("damaged_part", "the parts of a message do not have the digest that they name")
        record = replace(received.record, value=value)
        message = self._decode[received.channel](record)
        claimed_sender = self._claimed_sender(message)
        if claimed_sender is not None and claimed_sender != fragment.sender:
            raise BadRecord(
                "contradictory_part",
                f"parts of {fragment.sender!r} make a message in the name of {claimed_sender!r}",
            )
        return replace(received, message=message, record=record)

    def _note(self, partition: int, fragment: Fragment) -> None:
        """Note a complete message, so that its fragments change nothing when they come again."""
        heard = self._tasks[partition].heard
        ranges = heard.pop(fragment.sender, [])
        note(ranges, fragment.epoch, fragment.sequence)
        heard[fragment.sender] = ranges
        self._changes[partition, self._heard_key(fragment.sender)] = _encode(ranges)
        if not self._passes_repeated:
            # Incomplete messages with the same numbers and another digest are obsolete.
            numbers = (fragment.sender, fragment.epoch, fragment.sequence)
            for name in [name for name in self._tasks[partition].messages if name[:3] == numbers]:
                self._forget(partition, name)
        while len(heard) > self.limits.senders:
            sender = next(iter(heard))
            del heard[sender]
            self._changes[partition, self._heard_key(sender)] = None

    # ---- bounds

    def _make_room(self, partition: int, sender: str) -> None:
        messages = self._tasks[partition].messages
        own = [name for name in messages if name[0] == sender]
        if len(own) >= UNDER_WAY_OF_A_SENDER:
            self._forget(partition, own[0], "crowded_out")
        # A loop, because the limit may have been lowered since the messages were remembered.
        while len(messages) >= self.limits.messages:
            self._forget(partition, next(iter(messages)), "crowded_out")

    def _let_time_pass(self, now: float, ahead: bool) -> None:
        for partition, task in self._tasks.items():
            if ahead:
                for name in set_back(task.messages, now):
                    self._remember(partition, name, 0)
            for name in overdue(task.messages, self.limits.seconds, now):
                self._forget(partition, name, "expired")

    def _forget(self, partition: int, name: _Name, reason: str | None = None) -> None:
        message = self._tasks[partition].messages.pop(name)
        # The last fragment first: if only some of these are written, the rest still begins with the first
        # fragment.
        for place in sorted(message.fragments, reverse=True):
            self._write(partition, self._fragment_key(name, place), None)
        if reason is not None:
            self._metrics.incomplete_messages[reason] += 1

    # ---- what is remembered

    def _remember(self, partition: int, name: _Name, place: int) -> None:
        message = self._tasks[partition].messages[name]
        # Only the first fragment has the time, so that a time that is set back costs one record. Without it a
        # message is overdue.
        stored = _Stored(message.since if place == 0 else 0.0, message.size, message.fragments[place])
        self._write(partition, self._fragment_key(name, place), _encode(stored))

    def _write(self, partition: int, key: bytes, value: bytes | None) -> None:
        # State is restored in the order of the last writing.
        self._changes.pop((partition, key), None)
        self._changes[partition, key] = value

    def _fragment_key(self, name: _Name, place: int) -> bytes:
        sender, epoch, sequence, digest = name
        return self._prefix + FRAGMENT + _PLACE.pack(epoch, sequence, digest, place) + sender.encode()

    def _heard_key(self, sender: str) -> bytes:
        return self._prefix + HEARD + sender.encode()
