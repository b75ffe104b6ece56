"""What takes the wrong messages, and what has to hold whatever they are."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from importlib.metadata import entry_points
from random import Random
from typing import Any

import msgspec
import numpy as np
from fuzz.federations import FEDERATIONS, NOW, PARTITIONS, Member, corpus, sample
from fuzz.mutations import Message

from streamfl.pofmkl.messages import UPDATE, KernelParameters, decode_model
from streamfl.role import PeerError, Received, Record, Rejection, Send, StateChange
from streamfl.samples import LARGEST_LABEL, LARGEST_NUMBER, LONGEST_NAME, Sample, SampleReader, SamplesSection
from streamfl.wire import decode_array

__all__ = ["Target", "targets"]

GOOD_CLIENT = "the-good-one"
# Of a role in these federations: 6 clients, two partitions, a few kernels.
LARGEST_STATE = 20_000_000
# One in so many messages has all that a role holds compared before and after.
COMPARED = 50
TICK, GOOD = 97, 23
SECTIONS: dict[str, dict[str, Any]] = {
    "named": {"features": ["t1", "t2", "t3"], "client": "device", "sample_id": "id"},
    "listed": {"features": "x", "dimension": 3, "label_range": (-5.0, 1e6)},
}


class Target:
    """Something that takes messages. ``take`` gives the reason of a refusal, None for none; anything raised is a defect."""

    def __init__(self, name: str, messages: Sequence[Message], random: Random) -> None:
        self.name = name
        self.messages = messages
        self.random = random

    def take(self, message: Message) -> str | None:
        raise NotImplementedError

    def finish(self) -> None:
        """What has to hold after many messages."""


class Updates(Target):
    """The decoder of updates."""

    def take(self, message: Message) -> str | None:
        try:
            UPDATE.decode(message.value)
        except PeerError as error:
            return error.reason
        return None


class Model(Target):
    """The decoder of the model's records."""

    def take(self, message: Message) -> str | None:
        try:
            decode_model(message.key, message.value)
        except PeerError as error:
            return error.reason
        return None


class Arrays(Target):
    """The decoder of arrays, for the shape of the bytes or another."""

    def take(self, message: Message) -> str | None:
        content = message.value or b""
        dtype = self.random.choice([np.float32, np.float64])
        length = len(content) // np.dtype(dtype).itemsize
        shape = self.random.choice([(length,), (1, length), (length // 2, 2), (length + 1,), (0,), (2**31, 2**31)])
        try:
            array = decode_array(content, dtype, shape, "array")
        except PeerError as error:
            return error.reason
        assert array.shape == shape
        assert np.isfinite(array).all()
        return None


class Samples(Target):
    """The reader of samples of one format."""

    def __init__(self, name: str, messages: Sequence[Message], random: Random, section: SamplesSection) -> None:
        super().__init__(name, messages, random)
        self._reader = SampleReader(section)

    def take(self, message: Message) -> str | None:
        try:
            found = self._reader.decode(Record("readings", 0, 1, message.key, message.value))
        except PeerError as error:
            return error.reason
        check_sample(found, self._reader.dimension)
        return None


def check_sample(found: Sample, dimension: int) -> None:
    assert len(found.features) == dimension
    assert sum(map(abs, found.features)) < LARGEST_NUMBER
    assert found.label is None or abs(found.label) <= LARGEST_LABEL
    assert 0 < len(found.client) <= LONGEST_NAME
    assert 0 < len(found.id) <= max(LONGEST_NAME, len("readings-0-1"))
    json.dumps([found.client, found.id]).encode()


AFRESH = 200


class RoleTarget(Target):
    """A role, as a worker runs it: decode, receive, remember."""

    def __init__(self, name: str, messages: Sequence[Message], random: Random, federation: str, kind: str) -> None:
        super().__init__(name, messages, random)
        self.federation = federation
        self._member = Member.of(federation, kind)
        self.role = self._member.role
        self.state: dict[tuple[str, int, bytes], bytes] = {}
        self.now = NOW
        self._offset = 0
        self.begin()
        for message in messages:
            self.feed(message)
        self.greet()

    def begin(self) -> None:
        """Bring the role to where the recorded messages were sent."""

    def greet(self) -> None:
        """Make a client known whose messages nobody imitates."""

    def take(self, message: Message) -> str | None:
        if message.channel in self._member.channels.inputs:
            # A worker brings records of an input only from partitions that it was assigned.
            message = Message(message.channel, message.key, message.value, message.partition % len(PARTITIONS))
        if self._offset % GOOD == 0:
            self.feed(self.random.choice(self.messages))
        if self._offset % TICK == 0:
            self.tick()
        return self.feed(message)

    def tick(self) -> None:
        self._answered(self.role.receive([], self.now))

    def feed(self, message: Message) -> str | None:
        self._offset += 1
        self.now += 0.01
        try:
            received = self._member.decode(message, self._offset, self.random.choice([0.0, self.now - 50, self.now]))
        except PeerError as error:
            return error.reason
        before = fingerprint(self.role) if self.random.randrange(COMPARED) == 0 else None
        rejections = self._answered(self.role.receive([received], self.now), received)
        if not rejections:
            return None
        if before is not None:
            assert fingerprint(self.role) == before, "a refused message changed what the role holds"
        return rejections[0].error.reason

    def finish(self) -> None:
        size = sum(len(key[2]) + len(value) for key, value in self.state.items())
        assert size < LARGEST_STATE, f"{size} bytes of state"
        self.goes_on()

    def goes_on(self) -> None:
        """A good message has its effect."""
        raise NotImplementedError

    def _answered(self, replies: Sequence[Send | Rejection], received: Received | None = None) -> list[Rejection]:
        changes = list(self.role.changed_state())
        rejections = [reply for reply in replies if isinstance(reply, Rejection)]
        assert all(rejection.received is received for rejection in rejections)
        assert len(rejections) <= 1
        if rejections:
            assert not changes, "a refused message changed the state"
            assert len(replies) == 1, "a refused message was answered"
        for change in changes:
            self.remember(change)
        for reply in replies:
            if isinstance(reply, Send):
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
        """What a role says is right, whatever it was told."""


class ClientTarget(RoleTarget):
    """A client's role, told by its users and by the model's topic."""

    _heard = 0

    def greet(self) -> None:
        assert self.feed(sample(self.federation, GOOD_CLIENT, 0, label=False)) is None

    def take(self, message: Message) -> str | None:
        if message.channel == "samples" and message.partition % len(PARTITIONS) in self.role.full:
            return "held back"
        return super().take(message)

    def goes_on(self) -> None:
        before = self._heard
        number = self.random.randrange(1000)
        assert self.feed(sample(self.federation, GOOD_CLIENT, number, label=False)) is None
        assert self._heard == before + 1, "a good sample was not predicted"
        waiting = [measured.value for measured in self.role.measure() if measured.name == "waiting_samples"]
        assert waiting[0] <= len(PARTITIONS) * 10_000 + 1

    def sent(self, send: Send) -> None:
        if send.channel == "updates":
            update = UPDATE.decode(send.value)
            dtype = np.float64 if "logistic" in self.federation and "paper" in self.federation else np.float32
            decode_array(update.steps, dtype, (len(update.steps) // np.dtype(dtype).itemsize,), "steps")
            return
        prediction = json.loads(send.value)
        assert isinstance(prediction["prediction"], float), f"{prediction['prediction']} is no prediction"
        self._heard += prediction["client"] == GOOD_CLIENT


class ServerTarget(RoleTarget):
    """A server's role, told by its clients."""

    _sequence = 0

    def begin(self) -> None:
        # Updates name the version that they were made with: one that the model has not reached is refused.
        for message in corpus(self.federation, "model"):
            self.role.restore(StateChange("model", message.partition, message.key or b"", message.value))

    def goes_on(self) -> None:
        self._sequence += 1
        template = UPDATE.decode(self.messages[-1].value)
        version = next(measured.value for measured in self.role.measure() if measured.name == "model_version")
        assert version >= 0
        update = msgspec.structs.replace(template, client=GOOD_CLIENT, epoch=1, sequence=self._sequence, model_version=0)
        reason = self.feed(Message("updates", GOOD_CLIENT.encode(), UPDATE.encode(update), self.messages[-1].partition))
        assert reason is None, f"a good update was refused: {reason}"
        assert any(key[2] == b"client/" + GOOD_CLIENT.encode() for key in self.state)

    def greet(self) -> None:
        self.goes_on()

    def remember(self, change: StateChange) -> None:
        super().remember(change)
        if change.channel == "model":
            record = decode_model(change.key, change.value)
            if isinstance(record, KernelParameters):
                dtype = np.float64 if "logistic" in self.federation and "paper" in self.federation else np.float32
                decode_array(record.parameters, dtype, (4,), "parameters")


class Restored(Target):
    """A role that takes back a changelog that was damaged: whatever it is, PeerError says so."""

    def __init__(self, name: str, messages: Sequence[Message], random: Random, federation: str, kind: str) -> None:
        super().__init__(name, messages, random)
        self._role = Member.of(federation, kind).role

    def take(self, message: Message) -> str | None:
        channel, partition = "model" if message.channel == "model" else "state", message.partition % len(PARTITIONS)
        if self.random.randrange(AFRESH) == 0:
            # A changelog is of bounded length; what is restored only once is not bounded otherwise.
            self._role.close(partition)
            self._role.open(partition)
        try:
            change = StateChange(channel, partition, message.key or b"", message.value)
            self._role.restore(change)
        except PeerError as error:
            return error.reason
        return None


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """All of them whose names contain ``only``, new, each made when it is asked for."""
    everything = [message for name in FEDERATIONS for message in corpus(name, "updates", "model", "samples")]
    by_channel = {channel: [m for m in everything if m.channel == channel] for channel in ("updates", "model", "samples")}
    make: dict[str, Callable[[str], Target]] = {
        "decode updates": lambda name: Updates(name, by_channel["updates"], random),
        "decode model": lambda name: Model(name, by_channel["model"], random),
        "decode arrays": lambda name: Arrays(name, [m for m in everything if m.channel != "samples"], random),
    }
    for format in sorted(point.name for point in entry_points(group="streamfl.formats")):
        for fields, section in SECTIONS.items():
            chosen = SamplesSection(topic="t", format=format, label="y", **section)
            make[f"samples {format} {fields}"] = partial(Samples, messages=by_channel["samples"], random=random, section=chosen)
    for federation in FEDERATIONS:
        common: dict[str, Any] = {"random": random, "federation": federation}
        samples, updates = corpus(federation, "samples", "labels", "model"), corpus(federation, "updates")
        of_server, of_client = corpus(federation, "server", "model"), corpus(federation, "client")
        make[f"client {federation}"] = partial(ClientTarget, messages=samples, kind="pofmkl-client", **common)
        make[f"server {federation}"] = partial(ServerTarget, messages=updates, kind="pofmkl-server", **common)
        make[f"restore server {federation}"] = partial(Restored, messages=of_server, kind="pofmkl-server", **common)
        make[f"restore client {federation}"] = partial(Restored, messages=of_client, kind="pofmkl-client", **common)
    for name, made in make.items():
        if only in name:
            yield made(name)


# Parameters that a refused marker of the model discards: they belong to no version.
PASSING = {"_staged", "_last_now"}


def fingerprint(role: Any) -> bytes:
    """A hash of all that an object holds, numbers to the last bit."""
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
            waiting += _inside(content)
    return digest.digest()


def _inside(content: Any) -> list[Any]:
    if isinstance(content, Mapping):
        return [part for item in content.items() for part in item]
    if isinstance(content, Set):
        return [hash(part) if isinstance(part, (int, str, bytes)) else part for part in sorted(content, key=repr)]
    if isinstance(content, (list, tuple, deque)):
        return list(content)
    names = [
        *getattr(content, "__dict__", ()),
        *(name for kind in type(content).__mro__ for name in _names(getattr(kind, "__slots__", ()))),
        *getattr(content, "__struct_fields__", ()),
    ]
    return [part for name in names if name not in PASSING for part in (name, getattr(content, name, None))]


def _names(slots: Any) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)
