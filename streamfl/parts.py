"""Messages longer than a record may be: sent in parts, one record each, and put together again where they are read.

A message that fits into a record is sent as it is. What is longer is cut by :func:`split`; the role that reads it owns a
:class:`LongMessages`, which gives it whole messages and nothing else::

    def receive(self, batch, now):
        whole, replies = self.long.receive(batch, now)
        ...

Parts of one message go to one partition, in their order. A part says of which message of which sender it is, by the numbers that
the sender counts its messages with (:mod:`streamfl.sequences`) and by a digest of the whole: a sender that does its work again may
use a number for other content, and the two are put together apart. What is there already is remembered with the role's state, a
key a part, so that whoever takes the partition goes on where the last owner stood.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from streamfl.moments import Moments, overdue, set_back, time_written
from streamfl.restored import Time, check_name
from streamfl.role import Decode, Measurement, PeerError, Received, Record, Rejection, StateChange
from streamfl.sequences import Run, check_numbers, note, was_heard
from streamfl.wire import ROOM, VERSION, Codec, Count, Name, Version

__all__ = ["PART_BYTES", "Limits", "LongMessages", "Part", "Speaker", "decoded_in_parts", "split"]

PART_BYTES = ROOM
# No MessagePack begins with it, so no message of a codec does.
MARK = b"\xc1"
DIGEST_BYTES = 16
# A sender's earlier life may still be heard beside its present one; a third message has to be somebody's mistake.
UNDER_WAY_OF_A_SENDER = 2
PART, HEARD = b"part/", b"heard/"
_PLACE: Final = struct.Struct(f">QQ{DIGEST_BYTES}sI")


class Part(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Part ``place`` of a message of ``size`` bytes. epoch, sequence: the sender's numbers of the message. digest: of all of it."""

    version: Version
    sender: Name
    epoch: Count
    sequence: Count
    digest: bytes
    size: Count
    place: Count
    content: bytes


class _Stored(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A part as it is remembered, under what names its message and its place. since: when the message began, in its first part."""

    since: Time
    size: Count
    content: bytes


Speaker = Callable[[Any], str | None]
"""In whose name a whole message speaks; None: in its writer's own."""

_codec = Codec(Part)
_stored = msgspec.msgpack.Decoder(_Stored)
_runs = msgspec.msgpack.Decoder(list[Run])
_encode = msgspec.msgpack.Encoder().encode


def split(sender: str, epoch: int, sequence: int, value: bytes, part_bytes: int = PART_BYTES) -> list[bytes]:
    """The values of the records that carry a message, in the order in which they have to be sent; itself if one is enough.

    sender, epoch, sequence: who sends it, and its number; no other message has them. part_bytes: of content in a part; the reader
    has to be told if it is not the usual.

    >>> [len(part) for part in split("pump", 1, 1, bytes(2_000_000))]
    [995943, 995943, 8229]
    """
    if part_bytes < 1:
        raise ValueError(f"part_bytes = {part_bytes}: at least 1 is expected")
    if len(value) <= part_bytes:
        return [value]
    digest = _digest(value)
    return [
        MARK + _codec.encode(Part(VERSION, sender, epoch, sequence, digest, len(value), place, value[begin : begin + part_bytes]))
        for place, begin in enumerate(range(0, len(value), part_bytes))
    ]


def decoded_in_parts(decode: Decode) -> Decode:
    """``decode`` of an input that may bring messages in parts: of a part it makes a :class:`Part`."""

    def decode_one(record: Record) -> Any:
        value = record.value
        return _codec.decode(value[1:]) if value is not None and value[:1] == MARK else decode(record)

    return decode_one


@dataclass(frozen=True)
class Limits:
    """What may wait in a partition.

    message_bytes: of a whole message. messages: under way at a time; one more makes the one forgotten that began first.
    senders: of whom it is remembered which messages were heard; one more makes the one forgotten that ended none for longest.
    seconds: from a message's first part until it is forgotten. part_bytes: as in :func:`split`.
    """

    message_bytes: int
    messages: int
    senders: int
    seconds: float
    part_bytes: int = PART_BYTES

    def __post_init__(self) -> None:
        if min(self.message_bytes, self.messages, self.senders, self.part_bytes) < 1 or not self.seconds > 0:
            raise ValueError(f"{self}: every limit has to be above 0")

    def content_bytes(self, size: int, place: int) -> int:
        """Of a part; 0 or less where a message has no such part."""
        return min(self.part_bytes, size - place * self.part_bytes)


@dataclass(slots=True)
class _Message:
    """A message under way: its parts by place."""

    since: float
    size: int
    parts: dict[int, bytes] = field(default_factory=dict)

    @property
    def have(self) -> int:
        """How many parts are there without a gap."""
        return next(place for place in count() if place not in self.parts)


# Sender, epoch, sequence, digest.
_Name = tuple[str, int, int, bytes]


@dataclass(slots=True)
class _Task:
    """A partition. messages: the one that began first is the first. heard: by sender; the one that ended longest ago is first."""

    messages: dict[_Name, _Message] = field(default_factory=dict)
    heard: dict[str, list[Run]] = field(default_factory=dict)


class LongMessages:
    """The messages of a role that are under way in parts: bounded, remembered under ``prefix`` in its changelog ``channel``.

    decode: of each input that may bring parts, how a whole record becomes a message.
    speaker: in whose name a whole message speaks. Who wrote the parts was asked for the sender that they name, so the whole may
    speak for no other.

    A part is refused with the reason
    "oversized", "contradictory_part", "missing_part" or "damaged_part", or with what ``decode`` finds in the whole. A part that
    came before, of a message that is under way or complete, changes nothing.
    """

    def __init__(self, decode: Mapping[str, Decode], speaker: Speaker, channel: str, prefix: bytes, limits: Limits) -> None:
        self.limits = limits
        self._speaker = speaker
        self._decode = decode
        self._channel = channel
        self._prefix = prefix
        self._tasks: dict[int, _Task] = {}
        self._changes: dict[tuple[int, bytes], bytes | None] = {}
        self._moments = Moments()
        self._forgotten = dict.fromkeys(("expired", "crowded_out"), 0)

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
        self._moments.opened()

    def close(self, partition: int) -> None:
        del self._tasks[partition]
        self._changes = {place: value for place, value in self._changes.items() if place[0] != partition}

    def restore(self, change: StateChange) -> bool:
        """Take back what :meth:`changed_state` gave; False if it is not this owner's. PeerError if it is damaged."""
        if not change.key.startswith(self._prefix):
            return False
        key, value = change.key.removeprefix(self._prefix), change.value or b""
        task = self._tasks[change.partition]
        try:
            if key.startswith(HEARD):
                task.heard[check_name(key.removeprefix(HEARD))] = _runs.decode(value)
                return True
            epoch, sequence, digest, place = _PLACE.unpack(key[len(PART) : len(PART) + _PLACE.size])
            name = (check_name(key[len(PART) + _PLACE.size :]), epoch, sequence, digest)
            stored = _stored.decode(value)
        except (struct.error, msgspec.DecodeError) as error:
            raise PeerError("malformed", f"{change.key[:60]!r} is no part of a message: {error}") from None
        message = task.messages.setdefault(name, _Message(stored.since, stored.size))
        if place == 0:
            # Written anew after the clock was set back, it comes behind the others.
            message.since = stored.since
            task.messages[name] = task.messages.pop(name)
        message.parts[place] = stored.content
        return True

    def receive(self, batch: Sequence[Received], now: float) -> tuple[list[Received], list[Rejection]]:
        """The messages of a batch that are whole, each in the place of its last part, and the parts that are refused."""
        ahead = self._moments.pass_to(now, tick=not batch)
        if not batch:
            self._let_time_pass(now, ahead)
        whole: list[Received] = []
        refused: list[Rejection] = []
        for received in batch:
            if not isinstance(received.message, Part):
                whole.append(received)
                continue
            try:
                complete = self._take(received, received.message, now)
            except PeerError as error:
                refused.append(Rejection(received, error))
            else:
                if complete is not None:
                    whole.append(complete)
        return whole, refused

    def changed_state(self) -> Iterable[StateChange]:
        changes, self._changes = self._changes, {}
        return [StateChange(self._channel, partition, key, value) for (partition, key), value in changes.items()]

    def measure(self) -> Iterable[Measurement]:
        text = "Messages of several parts that were forgotten before all of them had come: by age, or to make room"
        for reason, forgotten in self._forgotten.items():
            yield Measurement("incomplete_messages", "counter", text, forgotten, (("reason", reason),))
        under_way = sum(len(task.messages) for task in self._tasks.values())
        yield Measurement("messages_under_way", "gauge", "Messages of which some parts have come", under_way)

    # ---- one part

    def _take(self, received: Received, part: Part, now: float) -> Received | None:
        """The whole message, if this was the last part."""
        task, limits = self._tasks[received.partition], self.limits
        check_numbers(part.epoch, part.sequence, time_written(received.record.timestamp, now))
        if part.size > limits.message_bytes:
            raise PeerError("oversized", f"a message of {part.size} bytes, at most {limits.message_bytes} are accepted")
        if len(part.digest) != DIGEST_BYTES or part.size <= limits.part_bytes:
            raise PeerError("malformed", f"a message of {part.size} bytes is not sent in parts, or its digest is none")
        if len(part.content) != limits.content_bytes(part.size, part.place):
            raise PeerError(
                "contradictory_part", f"part {part.place} of a message of {part.size} bytes has not {len(part.content)} bytes"
            )
        if was_heard(task.heard.get(part.sender, []), part.epoch, part.sequence):
            return None
        name = (part.sender, part.epoch, part.sequence, part.digest)
        message = task.messages.get(name)
        if message is not None and message.size != part.size:
            raise PeerError("contradictory_part", f"a message of {message.size} bytes that is to have {part.size} bytes")
        have = 0 if message is None else message.have
        if part.place > have:
            raise PeerError("missing_part", f"part {part.place} of a message of which {have} have come")
        if part.place < have:
            return None
        if (part.place + 1) * limits.part_bytes >= part.size:
            assert message is not None
            complete = self._complete(received, part, message)
            self._forget(received.partition, name)
            self._note(received.partition, part)
            return complete
        if message is None:
            self._make_room(received.partition, part.sender)
            message = task.messages[name] = _Message(now, part.size)
        message.parts[part.place] = part.content
        self._remember(received.partition, name, part.place)
        return None

    def _complete(self, received: Received, part: Part, message: _Message) -> Received:
        value = b"".join([*(message.parts[place] for place in range(part.place)), part.content])
        if _digest(value) != part.digest:
            raise PeerError("damaged_part", "the parts of a message make another one than their digest says")
        record = replace(received.record, value=value)
        message = self._decode[received.channel](record)
        speaker = self._speaker(message)
        if speaker is not None and speaker != part.sender:
            raise PeerError("contradictory_part", f"parts of {part.sender!r} make a message that speaks for {speaker!r}")
        return replace(received, message=message, record=record)

    def _note(self, partition: int, part: Part) -> None:
        """The message is complete: whatever comes of it again changes nothing."""
        heard = self._tasks[partition].heard
        runs = heard.pop(part.sender, [])
        note(runs, part.epoch, part.sequence)
        heard[part.sender] = runs
        self._changes[partition, self._heard_key(part.sender)] = _encode(runs)
        # Numbers under which something else was begun mean nothing any more.
        for name in [name for name in self._tasks[partition].messages if name[:3] == (part.sender, part.epoch, part.sequence)]:
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
        # More than one where the limit was lowered since they were remembered.
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
        # The last first: what is left if only some of this is written still begins with the first part.
        for place in sorted(message.parts, reverse=True):
            self._write(partition, self._part_key(name, place), None)
        if reason is not None:
            self._forgotten[reason] += 1

    # ---- what is remembered

    def _remember(self, partition: int, name: _Name, place: int) -> None:
        message = self._tasks[partition].messages[name]
        # A time that is set back is written anew, and the first part alone with it. What has lost its first part is overdue.
        stored = _Stored(message.since if place == 0 else 0.0, message.size, message.parts[place])
        self._write(partition, self._part_key(name, place), _encode(stored))

    def _write(self, partition: int, key: bytes, value: bytes | None) -> None:
        # The order of the last writing is the order in which it is restored.
        self._changes.pop((partition, key), None)
        self._changes[partition, key] = value

    def _part_key(self, name: _Name, place: int) -> bytes:
        sender, epoch, sequence, digest = name
        return self._prefix + PART + _PLACE.pack(epoch, sequence, digest, place) + sender.encode()

    def _heard_key(self, sender: str) -> bytes:
        return self._prefix + HEARD + sender.encode()


def _digest(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=DIGEST_BYTES, person=b"streamfl parts").digest()
