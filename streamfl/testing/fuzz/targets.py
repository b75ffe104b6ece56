"""The receivers of wrong messages, and what has to hold for each."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property, partial
from random import Random
from typing import Any

import numpy as np

from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    IgnoredRecord,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
    receive_at_once,
)
from streamfl.encoding.wire import LONGEST_NAME, decode_array
from streamfl.records.fields import LARGEST_LABEL, LARGEST_NUMBER
from streamfl.records.samples import Sample, SampleReader, SamplesSection
from streamfl.testing.fuzz.federations import FuzzedFederation, some_of_each
from streamfl.testing.fuzz.member import NOW, PARTITIONS
from streamfl.testing.fuzz.mutations import FuzzedRecord

__all__ = [
    "Arrays",
    "Decoder",
    "Restored",
    "RoleTarget",
    "Samples",
    "Target",
    "fingerprint",
    "member_targets",
]

# The limit for a role in these federations, which have a handful of members, two partitions and small models.
LARGEST_STATE = 20_000_000
# One message in this many compares all that the role holds before and after.
COMPARED = 50
TICK, GOOD = 97, 23
AFRESH = 200
# One message in this many makes a member go on with what it has restored.
GOES_ON = 10


class Target:
    """Receives messages. ``take`` returns the reason of a refusal, None if accepted. Any exception is a
    defect."""

    def __init__(self, name: str, messages: Sequence[FuzzedRecord], random: Random) -> None:
        self.name = name
        self.messages = messages
        self.random = random

    def take(self, message: FuzzedRecord) -> str | None:
        raise NotImplementedError

    def finish(self) -> None:
        """Check what has to hold after many messages."""


class Decoder(Target):
    """A decoder. ``decode`` may only raise BadRecord, whatever it gets."""

    def __init__(
        self,
        name: str,
        messages: Sequence[FuzzedRecord],
        random: Random,
        decode: Callable[[FuzzedRecord], object],
    ) -> None:
        super().__init__(name, messages, random)
        self._decode = decode

    def take(self, message: FuzzedRecord) -> str | None:
        try:
            self._decode(message)
        except BadRecord as error:
            return error.reason
        return None


class Arrays(Target):
    """The decoder of arrays, called with a shape that fits the bytes or another one."""

    def take(self, message: FuzzedRecord) -> str | None:
        content = message.value or b""
        dtype: Any = self.random.choice([np.float32, np.float64])
        length = len(content) // np.dtype(dtype).itemsize
        shape = self.random.choice(
            [(length,), (1, length), (length // 2, 2), (length + 1,), (0,), (2**31, 2**31)]
        )
        try:
            array = decode_array(content, dtype, shape, "array")
        except BadRecord as error:
            return error.reason
        assert array.shape == shape
        assert np.isfinite(array).all()
        return None


class Samples(Target):
    """The reader of samples in one format."""

    def __init__(
        self, name: str, messages: Sequence[FuzzedRecord], random: Random, section: SamplesSection
    ) -> None:
        super().__init__(name, messages, random)
        self._reader = SampleReader(section)

    def take(self, message: FuzzedRecord) -> str | None:
        try:
            found = self._reader.decode(Record("readings", 0, 1, message.key, message.value))
        except BadRecord as error:
            return error.reason
        except IgnoredRecord as passed:
            return passed.reason
        check_sample(found, self._reader.dimension)
        return None


def check_sample(found: Sample, dimension: int) -> None:
    assert len(found.features) == dimension
    assert sum(map(abs, found.features)) < LARGEST_NUMBER
    assert found.label is None or abs(found.label) <= LARGEST_LABEL
    assert 0 < len(found.client) <= LONGEST_NAME
    assert 0 < len(found.id) <= max(LONGEST_NAME, len("readings-0-1"))
    json.dumps([found.client, found.id]).encode()


def _mends(rejections: Sequence[Rejection]) -> bool:
    """Whether a server publishes its model again because of a message that it refuses."""
    return [rejection.error.reason for rejection in rejections] == ["unknown_version"]


class RoleTarget(Target):
    """A role, run as a worker runs it: decode, receive, remember.

    passing: the role's fields that a refused message may change, such as what it computes once.
    """

    passing: Set[str] = frozenset()
    _good = 0

    def __init__(self, name: str, random: Random, federation: FuzzedFederation, member: str) -> None:
        super().__init__(name, self.chosen(federation.heard(member)), random)
        self.federation = federation
        self.settings = federation.settings[member]
        self.member = federation.member(member)
        self.role = self.member.role
        self.state: dict[tuple[str, int, bytes], bytes] = {}
        self.now = NOW
        self._offset = 0
        self.begin()
        self.greet()

    def chosen(self, heard: list[FuzzedRecord]) -> list[FuzzedRecord]:
        """Those of the recorded messages to the member that wrong messages are made from."""
        return some_of_each(heard)

    def begin(self) -> None:
        """Give the member the recorded messages."""
        for message in self.messages:
            self.feed(message)

    def good_name(self) -> str:
        """A new name of a client or an entity."""
        self._good += 1
        return f"good-{self._good}"

    def greet(self) -> None:
        """Make a client known that the wrong messages never imitate."""

    def take(self, message: FuzzedRecord) -> str | None:
        if message.channel in self.member.channels.inputs:
            # A worker only passes on input records of its assigned partitions.
            message = FuzzedRecord(
                message.channel, message.key, message.value, message.partition % len(PARTITIONS)
            )
        if self._offset % GOOD == 0:
            self.feed(self.random.choice(self.messages))
        if self._offset % TICK == 0:
            self.tick()
        return self.feed(message)

    def tick(self) -> None:
        self._answered(receive_at_once(self.role, [], self.now))

    def feed(self, message: FuzzedRecord) -> str | None:
        self._offset += 1
        self.now += 0.01
        try:
            received = self.member.decode(
                message, self._offset, self.random.choice([0.0, self.now - 50, self.now])
            )
        except BadRecord as error:
            return error.reason
        before = self.held() if self.random.randrange(COMPARED) == 0 else None
        rejections = self._answered(receive_at_once(self.role, [received], self.now), received)
        if not rejections:
            return None
        # A published model that cannot be used is noted in the role, and makes the worker unready.
        if before is not None and not _mends(rejections) and message.channel != "model":
            assert self.held() == before, "a refused message changed what the role holds"
        return rejections[0].error.reason

    def held(self) -> bytes:
        """A digest of everything that a refused message must not change."""
        return fingerprint(self.role, self.passing)

    def finish(self) -> None:
        size = sum(len(key[2]) + len(value) for key, value in self.state.items())
        assert size < LARGEST_STATE, f"{size} bytes of state"
        self.goes_on()

    def goes_on(self) -> None:
        """Check that a good message still has its effect."""
        raise NotImplementedError

    def _answered(
        self, replies: Sequence[Send | Rejection], received: Received | None = None
    ) -> list[Rejection]:
        changes = list(self.role.changed_state())
        rejections = [reply for reply in replies if isinstance(reply, Rejection)]
        assert all(rejection.received is received for rejection in rejections)
        assert len(rejections) <= 1
        if rejections:
            caused = [change for change in changes if change.key not in CLOCKS]
            assert not caused or _mends(rejections), "a refused message changed the state"
            assert len(replies) == 1, "a refused message was answered"
        for change in changes:
            self.remember(change)
        channels = self.member.channels
        for reply in replies:
            if isinstance(reply, Send):
                assert (
                    reply.partition is not None
                    or reply.channel not in channels.receivers
                    or reply.channel in channels.signed
                ), f"a message to {reply.channel} names no partition: with members' keys it cannot be sealed"
                self.sent(reply)
        return rejections

    def remember(self, change: StateChange) -> None:
        place = change.channel, change.partition, change.key
        if change.value is None:
            self.state.pop(place, None)
        else:
            assert len(change.value) <= 1_000_000
            self.state[place] = change.value

    def sent(self, send: Send) -> None:
        """Check that a role's message is valid."""


class Restored(Target):
    """A role that restores a damaged changelog, and goes on. Whatever the damage, it may only refuse it."""

    def __init__(self, name: str, random: Random, federation: FuzzedFederation, member: str) -> None:
        super().__init__(name, federation.remembered(member), random)
        self.member = federation.member(member)
        self.role = self.member.role

    def take(self, message: FuzzedRecord) -> str | None:
        channels, partition = self.member.channels.changelogs, message.partition % len(PARTITIONS)
        channel = message.channel if message.channel in channels else "state"
        if self.random.randrange(AFRESH) == 0:
            # A changelog has a bounded length. Without this, entries that are restored only once would grow
            # without bound.
            self.member.begin_anew(partition)
        reason = None
        try:
            self.role.restore(StateChange(channel, partition, message.key or b"", message.value))
        except BadRecord as error:
            reason = error.reason
        if self.random.randrange(GOES_ON) == 0:
            self.finish()
        return reason

    def finish(self) -> None:
        try:
            receive_at_once(self.role, [], NOW + 1000)
        except (BadRecord, ConfigurationError):
            # What was restored does not fit together, or does not fit the settings: the member does not go
            # on.
            for partition in PARTITIONS:
                self.member.begin_anew(partition)
        list(self.role.changed_state())
        list(self.role.measure())


def member_targets(
    random: Random,
    federations: Mapping[str, FuzzedFederation],
    roles: Mapping[str, type[RoleTarget]],
    restored: type[Restored] = Restored,
) -> dict[str, Callable[[str], Target]]:
    """By name, what makes a target: of each member in ``roles`` one that gets messages, and one that restores
    its changelog."""
    made: dict[str, Callable[[str], Target]] = {}
    for name, federation in federations.items():
        for member, target in roles.items():
            own = f"{' '.join(filter(None, [federation.settings[member].role.kind, member]))} {name}"
            given: dict[str, Any] = {"random": random, "federation": federation, "member": member}
            made[own] = partial(target, **given)
            made[f"restore {own}"] = partial(restored, **given)
    return made


# Changelog keys that change as time passes, whatever messages come: since when the server has been silent.
CLOCKS = {b"silence"}
# Fields that a refused message may change: parameters of a model that a refused marker discards, because they
# belong to no version; notes on refused messages, which have no effect, and notices about them; and the
# clock.
PASSING = {"_staged", "_last_now", "_latest", "_last_asked", "settings_check", "watch", "notices", "_notices"}


def fingerprint(role: Any, passing: Set[str] = frozenset()) -> bytes:
    """A hash of all that an object holds, exact to the last bit. passing: fields that are left out."""
    digest = hashlib.blake2b()
    seen: set[int] = set()
    waiting = [role]
    while waiting:
        content = waiting.pop()
        if isinstance(content, np.ndarray):
            digest.update(content.tobytes() if content.dtype != object else b"objects")
        elif content is None or isinstance(content, (bool, int, float, str, bytes, bytearray, np.generic)):
            digest.update(repr(content).encode(errors="surrogatepass"))
        elif id(content) in seen:
            digest.update(b"again")
        else:
            seen.add(id(content))
            digest.update(type(content).__name__.encode())
            waiting += _inside(content, PASSING | passing)
    return digest.digest()


def _inside(content: Any, without: Set[str]) -> list[Any]:
    if isinstance(content, Mapping):
        return [part for item in content.items() for part in item]
    if isinstance(content, Set):
        return [
            hash(part) if isinstance(part, (int, str, bytes)) else part for part in sorted(content, key=repr)
        ]
    if isinstance(content, (list, tuple, deque)):
        return list(content)
    names = [
        # What is computed once follows from the rest.
        *(
            name
            for name in getattr(content, "__dict__", ())
            if not isinstance(getattr(type(content), name, None), cached_property)
        ),
        *(name for kind in type(content).__mro__ for name in _names(getattr(kind, "__slots__", ()))),
        *getattr(content, "__struct_fields__", ()),
    ]
    return [part for name in names if name not in without for part in (name, getattr(content, name, None))]


def _names(slots: Any) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
