"""A party's entities that wait for a gradient, and its samples that wait until fewer entities do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Annotated, Any

import msgspec

from streamfl.contract.role import BadRecord, Headers
from streamfl.encoding.changelog_checks import Time, check_number
from streamfl.encoding.wire import Count, Name
from streamfl.records.header_propagation import LONGEST_HEADERS
from streamfl.state.changelog import ChangedParts
from streamfl.state.expiring_entries import ExpiringEntries
from streamfl.vafl.party.life import PartyLife
from streamfl.vafl.state import ENTITY, WAITING

__all__ = ["InFlightEmbedding", "InFlightEmbeddings", "WaitingSamples"]


class InFlightEmbedding(msgspec.Struct, array_like=True, gc=False):
    """An entity without a gradient that was sent, or will be with the present batch.

    since: when its newest embedding was queued, in seconds.
    sequence: number of its newest embedding.
    features: raw numbers.
    requests: how often it was sent again because the coordinator asked.
    epoch: the epoch in which it was sent, if that was given up since; 0: the present epoch.
    steps: the party's steps when it was queued; None: an earlier release queued it.
    """

    since: Time
    sequence: Count
    features: bytes
    requests: Count = 0
    epoch: Count = 0
    steps: Count | None = None


class InFlightEmbeddings(ExpiringEntries[InFlightEmbedding]):
    """Entities of one partition that wait for a gradient, the oldest first.

    parts: where they are remembered.
    expiry: seconds after which an entity without a gradient is forgotten.
    limit: most entities remembered; the oldest is forgotten.
    forgotten: counts of the reasons ``expired`` and ``displaced``, shared by all partitions.
    check: raises BadRecord for features that cannot be a sample's.
    """

    def __init__(
        self,
        parts: ChangedParts,
        expiry: float,
        limit: int,
        forgotten: dict[str, int],
        check: Callable[[bytes], None],
    ) -> None:
        super().__init__(parts, ENTITY, InFlightEmbedding, expiry, limit, forgotten)
        self._check = check
        self._queue: list[tuple[str, InFlightEmbedding, Headers]] = []

    def items(self) -> Iterator[tuple[str, InFlightEmbedding]]:
        """The oldest first."""
        self._sort()
        return iter(self._entries.items())

    def count_after(self, sequence: int, most: int) -> int:
        """The number of entities with a higher sequence number, up to ``most``."""
        self._sort()
        latest = islice(reversed(self._entries.values()), most)
        return sum(1 for _ in takewhile(lambda shown: shown.sequence > sequence, latest))

    def queue(self, entity: str, shown: InFlightEmbedding, headers: Headers = ()) -> None:
        """Queue the entity to be sent with the present batch, with these headers."""
        self._put(entity, shown)
        self._queue.append((entity, shown, headers))

    @property
    def queued(self) -> bool:
        return bool(self._queue)

    def take_queue(self) -> list[tuple[str, InFlightEmbedding, Headers]]:
        """Return the queue in order, and empty it."""
        queue, self._queue = self._queue, []
        return queue

    def end_epoch(self, epoch: int) -> None:
        """Note that this epoch is given up. Entities sent so far keep it; queued entities will be sent in the
        next epoch."""
        queued = {entity for entity, _, _ in self._queue}
        for entity, shown in self.items():
            if entity not in queued:
                shown.epoch = shown.epoch or epoch
            self._remembered.remember(entity, shown)

    def restore(self, name: str, entry: InFlightEmbedding) -> None:
        self._check(entry.features)
        super().restore(name, entry)


class _WaitingSample(msgspec.Struct, array_like=True, gc=False):
    """A waiting sample in the changelog; headers are left out where there are none."""

    entity: Name
    features: bytes
    headers: Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)] = ()


class WaitingSamples:
    """Samples of one partition, in order, that wait until fewer entities are on their way.

    parts: where they are remembered.
    life: counts the numbers.
    check: raises BadRecord for features that cannot be a sample's.
    """

    def __init__(self, parts: ChangedParts, life: PartyLife, check: Callable[[bytes], None]) -> None:
        self._remembered = parts.named(WAITING, check_number, _WaitingSample, self._restore)
        self._life = life
        self._check = check
        # Public: other classes read it without the cost of a call.
        self.samples: deque[tuple[str, bytes, Headers]] = deque()

    def __len__(self) -> int:
        return len(self.samples)

    def append(self, entity: str, features: bytes, headers: Headers) -> None:
        sample: Any = (entity, features, headers) if headers else (entity, features)
        self._remembered.remember(self._life.first_waiting + len(self.samples), sample)
        self.samples.append((entity, features, headers))

    def take(self) -> tuple[str, bytes, Headers]:
        """Remove the first sample. Returns its entity, features and headers."""
        sample = self.samples.popleft()
        self._remembered.forget(self._life.first_waiting)
        self._life.waited_no_longer()
        return sample

    def _restore(self, number: int, sample: _WaitingSample) -> None:
        self._check(sample.features)
        if number < len(self.samples):
            raise BadRecord(
                "malformed", f"waiting sample {number} is remembered after {len(self.samples)} others"
            )
        self.samples.append((sample.entity, sample.features, sample.headers))
