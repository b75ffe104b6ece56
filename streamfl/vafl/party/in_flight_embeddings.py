"""A party's entities that wait for a gradient, and its samples that wait until fewer entities do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Annotated, Any

import msgspec

from streamfl.contract.role import Headers, PeerError
from streamfl.encoding.changelog_checks import Time, check_name
from streamfl.encoding.wire import Count, Name
from streamfl.records.header_propagation import LONGEST_HEADERS
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import overdue, set_back
from streamfl.vafl.party.life import PartyLife

__all__ = ["InFlightEmbedding", "InFlightEmbeddings", "WaitingSamples", "decode_in_flight"]


class InFlightEmbedding(msgspec.Struct, array_like=True, gc=False):
    """An entity without a gradient that was sent, or will be with the present batch.

    since: when its newest embedding was queued, in seconds.
    sequence: number of its newest embedding.
    features: raw numbers.
    requests: how often it was sent again because the coordinator asked.
    epoch: the epoch in which it was sent, if that was given up since; 0: the present epoch.
    """

    since: Time
    sequence: Count
    features: bytes
    requests: Count = 0
    epoch: Count = 0


def decode_in_flight(value: bytes) -> InFlightEmbedding:
    """Decode the changelog value of a party's key ``entity/name``."""
    return msgspec.msgpack.decode(value, type=InFlightEmbedding)


class InFlightEmbeddings:
    """Entities of one partition that wait for a gradient, the oldest first. Bounded; entities expire; forgotten ones are counted.

    parts: where they are remembered, under ``entity/name``.
    expiry: seconds after which an entity without a gradient is forgotten.
    limit: most entities remembered; the oldest is forgotten.
    forgotten: counts of the reasons ``expired`` and ``displaced``, shared by all partitions.
    """

    def __init__(self, parts: ChangedParts, expiry: float, limit: int, forgotten: dict[str, int]) -> None:
        self._parts = parts
        self._expiry = expiry
        self._limit = limit
        self._forgotten = forgotten
        self._entities: dict[str, InFlightEmbedding] = {}
        self._queue: list[tuple[str, InFlightEmbedding, Headers]] = []

    def __len__(self) -> int:
        return len(self._entities)

    def items(self) -> Iterator[tuple[str, InFlightEmbedding]]:
        """The oldest first."""
        return iter(self._entities.items())

    def get(self, entity: str) -> InFlightEmbedding | None:
        return self._entities.get(entity)

    def count_after(self, sequence: int, most: int) -> int:
        """The number of entities with a higher sequence number, up to ``most``."""
        latest = islice(reversed(self._entities.values()), most)
        return sum(1 for _ in takewhile(lambda shown: shown.sequence > sequence, latest))

    @property
    def wake_at(self) -> float | None:
        """When the oldest entity expires."""
        return next(iter(self._entities.values())).since + self._expiry if self._entities else None

    def queue(self, entity: str, shown: InFlightEmbedding, headers: Headers = ()) -> None:
        """Queue the entity to be sent with the present batch, with these headers."""
        # At the end: the table is in the order of age.
        self._entities.pop(entity, None)
        self._entities[entity] = shown
        self._parts.remember(b"entity/" + entity.encode(), shown)
        self._queue.append((entity, shown, headers))
        if len(self._entities) > self._limit:
            self.forget(next(iter(self._entities)))
            self._forgotten["displaced"] += 1

    @property
    def queued(self) -> bool:
        return bool(self._queue)

    def take_queue(self) -> list[tuple[str, InFlightEmbedding, Headers]]:
        """Return the queue in order, and empty it."""
        queue, self._queue = self._queue, []
        return queue

    def forget(self, entity: str) -> None:
        del self._entities[entity]
        self._parts.forget(b"entity/" + entity.encode())

    def expire(self, now: float) -> None:
        for entity in overdue(self._entities, self._expiry, now):
            self.forget(entity)
            self._forgotten["expired"] += 1

    def set_back(self, now: float) -> None:
        """Move times after ``now`` back to ``now``: the clock was ahead."""
        for entity in set_back(self._entities, now):
            self._remember(entity, self._entities[entity])

    def end_epoch(self, epoch: int) -> None:
        """Note that this epoch is given up. Entities sent so far keep it; queued entities will be sent in the next epoch."""
        queued = {entity for entity, _, _ in self._queue}
        for entity, shown in self._entities.items():
            if entity not in queued:
                shown.epoch = shown.epoch or epoch
            self._remember(entity, shown)

    def restore(self, name: bytes, value: bytes, check: Callable[[bytes], None]) -> None:
        """Restore one entity. check: raises PeerError for features that cannot be a sample's."""
        shown = decode_in_flight(value)
        check(shown.features)
        self._entities[check_name(name)] = shown

    def _remember(self, entity: str, shown: InFlightEmbedding) -> None:
        self._parts.remember(b"entity/" + entity.encode(), shown)


class _WaitingSample(msgspec.Struct, array_like=True, gc=False):
    """A waiting sample in the changelog; headers are left out where there are none."""

    entity: Name
    features: bytes
    headers: Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)] = ()


class WaitingSamples:
    """Samples of one partition, in order, that wait until fewer entities are on their way.

    parts: where they are remembered, under ``waiting/number``.
    life: counts the numbers.
    """

    def __init__(self, parts: ChangedParts, life: PartyLife) -> None:
        self._parts = parts
        self._life = life
        # Public: other classes read it without the cost of a call.
        self.samples: deque[tuple[str, bytes, Headers]] = deque()

    def __len__(self) -> int:
        return len(self.samples)

    def append(self, entity: str, features: bytes, headers: Headers) -> None:
        sample: Any = (entity, features, headers) if headers else (entity, features)
        self._parts.remember(b"waiting/%d" % (self._life.first_waiting + len(self.samples)), sample)
        self.samples.append((entity, features, headers))

    def take(self) -> tuple[str, bytes, Headers]:
        """Remove the first sample. Returns its entity, features and headers."""
        sample = self.samples.popleft()
        self._parts.forget(b"waiting/%d" % self._life.first_waiting)
        self._life.waited_no_longer()
        return sample

    def restore(self, name: bytes, value: bytes, check: Callable[[bytes], None]) -> None:
        """Restore one sample. check: raises PeerError for features that cannot be a sample's."""
        sample = msgspec.msgpack.decode(value, type=_WaitingSample)
        check(sample.features)
        if int(name) < len(self.samples):
            raise PeerError("malformed", f"{b'waiting/' + name!r} is remembered after {len(self.samples)} others")
        self.samples.append((sample.entity, sample.features, sample.headers))
