"""What the members of a simulated federation sent and drew noise for, committed or not, and what topics
hold."""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Headers
from streamfl.dp_frank_wolfe import messages
from streamfl.dp_frank_wolfe.messages import Entities, Manifest, Message, Partial, read_content
from streamfl.dp_frank_wolfe.party import fit as party_fit
from streamfl.dp_frank_wolfe.party.manifest import numbered, rows_of
from streamfl.dp_frank_wolfe.party.window import Window
from streamfl.dp_frank_wolfe.privacy.budget import score_sensitivity
from streamfl.dp_frank_wolfe.roles import ROLES
from streamfl.privacy.integer_distribution import IntegerDistribution
from streamfl.privacy.integer_noise import IntegerNoise
from streamfl.privacy.release_bits import Release
from streamfl.privacy.zcdp import cost_of_choice
from streamfl.roles.fragment_encoding import MARK, Fragment
from streamfl.roles.partitioned_role import Outbox, OutboxCounts
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.observed_messages import TopicReader, require

__all__ = ["Drawn", "Observed", "messages_of", "names_by_window", "recorded", "timed_messages"]

Integers = NDArray[np.int64]
# What names a message: sender, channel, window, iteration and kind.
Named = tuple[str, str, int, int, str]
PACKAGE = "streamfl.dp_frank_wolfe"
# The first bytes of noise bits, which identify them.
HEAD_BYTES = 16
_decode = msgspec.msgpack.Decoder(Message).decode
_part = msgspec.msgpack.Decoder(Fragment).decode


@dataclass(frozen=True)
class Drawn:
    """Noise that was drawn. content: digest of the mechanism and the values beneath. cost: of the release."""

    release: Release
    content: bytes
    cost: float


@dataclass
class Observed:
    """What topics do not show.

    sent: by what names a message, digests of all that was sent under that name.
    drawn: by the first of its bits, all noise that was drawn.
    parts: by party, distinct parts of predictions that were sent: entity, version of the model, value.
    frozen: windows by their digest.
    troubles: what members reported to their operators.
    """

    sent: dict[Named, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    drawn: dict[bytes, set[Drawn]] = field(default_factory=lambda: defaultdict(set))
    parts: dict[str, set[tuple[str, int, float]]] = field(default_factory=lambda: defaultdict(set))
    frozen: dict[bytes, Window] = field(default_factory=dict)
    troubles: set[str] = field(default_factory=set)
    _places: dict[bytes, Release] = field(default_factory=dict)
    _listens: bool = True

    @contextmanager
    def not_noted(self) -> Iterator[None]:
        """Notes nothing meanwhile: no member computes."""
        self._listens = False
        try:
            yield
        finally:
            self._listens = True

    def sends(self, channel: str, values: list[bytes]) -> None:
        """Notes a message that is sent, in one record or several."""
        content = b"".join(_part(value[1:]).content if value[:1] == MARK else value for value in values)
        one = _decode(content)
        self.sent[one.sender, channel, one.window, one.iteration, one.kind].add(_digest(content))
        if one.kind == "partial":
            part = read_content(one.content, Partial)
            self.parts[one.sender].add((part.entity, part.model, part.value))

    def gives(self, release: Release, bits: bytes) -> None:
        """Notes the bits given out for a release."""
        if self._listens:
            self._places[bits[:HEAD_BYTES]] = release

    def draws(self, bits: bytes, values: Integers, mechanism: str, cost: Callable[[Release], float]) -> None:
        """Notes that noise over these values is drawn from the bits."""
        if not self._listens:
            return
        head = bits[:HEAD_BYTES]
        release = self._places[head]
        content = _digest(
            f"{mechanism}|{len(bits)}|".encode() + np.ascontiguousarray(values, dtype="<i8").tobytes()
        )
        self.drawn[head].add(Drawn(release, content, cost(release)))

    def check_drawn(self) -> None:
        """Checks that no noise covers two contents: their difference would be known."""
        for found in self.drawn.values():
            one = next(iter(found)).release
            contents = {drawn.content for drawn in found}
            where = f"{one.kind}, window {one.window}, iteration {one.iteration}"
            require(
                len(contents) == 1,
                f"{one.party}: the same noise, of {where}, lies over {len(contents)} contents",
            )

    def spent(self) -> dict[tuple[str, int], float]:
        """By party and window, cost of all distinct noise that was drawn for fits."""
        total: dict[tuple[str, int], float] = defaultdict(float)
        for found in self.drawn.values():
            for drawn in found:
                if drawn.release.kind != "prediction":
                    total[drawn.release.party, drawn.release.window] += drawn.cost
        return total


def timed_messages(bus: TopicReader, topic: str) -> Iterator[tuple[float, Message]]:
    """Each message of a topic, with the time of writing. Skips strangers' messages and what a producer wrote
    again."""
    repeated = bus.repeated if isinstance(bus, FaultyBus) else set()
    waiting: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    for record in bus.read(topic):
        if (record.topic, record.partition, record.offset) in repeated:
            continue
        content = record.value or b""
        if content[:1] == MARK:
            part = _part(content[1:])
            parts = waiting[part.digest]
            parts[part.place] = part.content
            if sum(map(len, parts.values())) < part.size:
                continue
            content = b"".join(parts[place] for place in sorted(waiting.pop(part.digest)))
        try:
            yield record.timestamp, _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def messages_of(bus: TopicReader, topic: str) -> list[Message]:
    """The messages of a topic, in order."""
    return [one for _, one in timed_messages(bus, topic)]


def names_by_window(asks: Iterable[Message], releases: Iterable[Message], rows: int) -> dict[int, list[str]]:
    """By window, the names in a party's manifests, resolved by the party's announcements."""
    told = (read_content(one.content, Entities) for one in releases if one.kind == "entities")
    announced = numbered((one.first, one.names) for one in told)
    return {
        one.window: rows_of(read_content(one.content, Manifest), rows, announced)
        for one in asks
        if one.kind == "manifest"
    }


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


class _Choice:
    """A choice that notes its scores. bounded: they depend on predictions, whose bound the release names."""

    def __init__(
        self,
        real: IntegerDistribution,
        observed: Observed,
        scores: Integers,
        rate: Fraction,
        *,
        bounded: bool,
    ) -> None:
        self._real = real
        self._said = observed
        self._scores = scores
        self._rate = rate
        self._bounded = bounded

    def draw(self, bits: bytes) -> Integers:
        self._said.draws(bits, self._scores, f"choice {self._rate}", self._cost)
        return self._real.draw(bits)

    def _cost(self, release: Release) -> float:
        bound = release.parameters[2] if self._bounded else 0
        assert isinstance(bound, int)
        return cost_of_choice(2 * self._rate * score_sensitivity(bound))


@contextmanager
def recorded(observed: Observed, fragment_bytes: int = 0) -> Iterator[None]:
    """Notes meanwhile what members of this process send and draw noise for.

    fragment_bytes: of a message in a record; 0: the usual.
    """
    # Importing ROLES loads all modules that release anything.
    assert ROLES
    send, add = Outbox.send, IntegerNoise.add

    def noted(
        self: Outbox[OutboxCounts], channel: str, values: Iterable[bytes], headers: Headers = ()
    ) -> int:
        found = list(values)
        observed.sends(channel, found)
        return send(self, channel, found, headers)

    def added(self: IntegerNoise, values: Integers, bits: bytes) -> Integers:
        observed.draws(bits, values, f"noise {self.variance} {self.unit}", lambda release: self.cost)
        return add(self, values, bits)

    def given(
        real: Callable[[bytes, Release, int], bytes], _module: str
    ) -> Callable[[bytes, Release, int], bytes]:
        def bits_of(secret: bytes, release: Release, draws: int) -> bytes:
            bits = real(secret, release, draws)
            observed.gives(release, bits)
            return bits

        return bits_of

    def chosen(
        real: Callable[[Integers, Fraction], IntegerDistribution], module: str
    ) -> Callable[[Integers, Fraction], _Choice]:
        bounded = module == party_fit.__name__
        return lambda scores, rate: _Choice(real(scores, rate), observed, scores, rate, bounded=bounded)

    def froze(real: Callable[..., Window], _module: str) -> Callable[..., Window]:
        def assemble(*content: Any) -> Window:
            window = real(*content)
            observed.frozen[window.digest] = window
            return window

        return assemble

    places: list[tuple[Any, str, Any]] = [(Outbox, "send", noted), (IntegerNoise, "add", added)]
    places.append((messages, "FRAGMENT_BYTES", fragment_bytes or messages.FRAGMENT_BYTES))
    for name, change in (("release_bits", given), ("exponential_mechanism", chosen), ("assemble", froze)):
        # A module holds what it imports under its own name, so each importing module is patched.
        modules = [
            module
            for key, module in sys.modules.items()
            if key.startswith(f"{PACKAGE}.") and ".tools" not in key
        ]
        for module in modules:
            real = getattr(module, name, None)
            if real is not None and real.__module__ != module.__name__:
                places.append((module, name, change(real, module.__name__)))
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, function in places:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)
