"""Queues of items that wait until their client may learn them: samples, or pairs of a sample and its label.

None expires. Beyond ``WAITING_LIMIT`` of the system's ``state`` the role calls a partition full, and its
worker reads no further in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar, cast

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord, Headers, StateChange
from streamfl.encoding.wire import Name
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.learning.changelog_checks import check_inputs, check_label
from streamfl.pofmkl.state import WAITING
from streamfl.records.header_propagation import LONGEST_HEADERS
from streamfl.records.samples import Sample
from streamfl.state.clock_guard import earliest

__all__ = ["ClientQueue", "PendingQueues", "PendingSample", "PendingSamples"]

Item = TypeVar("Item")


class PendingSample(msgspec.Struct, frozen=True, gc=False):
    """A sample, the key of its record, and the headers that its prediction gets."""

    client: str
    id: str
    features: tuple[float, ...]
    label: float | None
    key: bytes | None
    headers: Headers

    @classmethod
    def of(cls, sample: Sample, key: bytes | None, headers: Headers) -> PendingSample:
        return cls(sample.client, sample.id, sample.features, sample.label, key, headers)


class _Slot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A sample as it is stored; headers are left out if there are none."""

    id: Name
    features: tuple[float, ...]
    label: float | None
    key: bytes | None
    headers: Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)] = ()


@dataclass(slots=True, eq=False)
class ClientQueue(Generic[Item]):
    """The waiting items of one client, oldest first.

    first_slot: the number of the first item, counted since the client's state began.
    slots_written: how many of the items are stored.
    """

    client: Client
    items: deque[Item] = field(default_factory=deque)
    first_slot: int = 0
    slots_written: int = 0


class PendingQueues(Generic[Item]):
    """A queue of items for each client, counted by partition.

    ready: the queues whose first item may be learnt now, as far as is known.
    held: the queues with items that could not be learnt in the step that brought them. A queue with items is
        in one of the two, so that no step looks at the clients that have none.
    """

    def __init__(self) -> None:
        self.ready: dict[ClientKey, ClientQueue[Item]] = {}
        self.held: dict[ClientKey, ClientQueue[Item]] = {}
        self._queues: dict[ClientKey, ClientQueue[Item]] = {}
        self._counts: dict[int, int] = {}

    def open(self, partition: int) -> None:
        self._counts[partition] = 0

    def close(self, partition: int) -> None:
        del self._counts[partition]
        for key in [key for key in self._queues if key[0] == partition]:
            del self._queues[key]
            self.ready.pop(key, None)
            self.held.pop(key, None)

    def queue(self, client: Client) -> ClientQueue[Item]:
        """The client's queue; created for a new client."""
        return self._queues.get(client.key) or self._queues.setdefault(client.key, ClientQueue(client))

    def put(self, client: Client, item: Item) -> None:
        """Add an item behind the client's waiting items."""
        key = client.key
        queue = self._queues.get(key) or self.queue(client)
        queue.items.append(item)
        self._counts[key[0]] += 1
        self.ready[key] = queue

    def put_together(
        self, keys: Sequence[ClientKey], clients: Sequence[Client], items: Iterable[Item]
    ) -> None:
        """:meth:`put` for each of these items of a partition, in order, with the client of each and its
        key."""
        queues = cast("list[ClientQueue[Item]]", list(map(self._queues.get, keys)))
        if None in queues:
            queues = list(map(self.queue, clients))
        for queue, item in zip(queues, items, strict=True):
            queue.items.append(item)
        self._counts[keys[0][0]] += len(keys)
        self.ready.update(zip(keys, queues, strict=True))

    def left(self, queue: ClientQueue[Item], count: int) -> None:
        """Note that ``count`` items have left a queue."""
        self._counts[queue.client.key[0]] -= count

    def forget(self, client: Client) -> ClientQueue[Item] | None:
        """Drop a client's queue, and return it."""
        queue = self._queues.pop(client.key, None)
        self.ready.pop(client.key, None)
        self.held.pop(client.key, None)
        if queue is not None:
            self.left(queue, len(queue.items))
        return queue

    def look_again(self) -> None:
        """Note that the model has changed: what was held may be ready, in the order in which clients were
        registered."""
        self.ready.update(sorted(self.held.items(), key=lambda held: held[1].client.number))

    def rest(self, uploads: Uploads, budgeted: bool) -> None:
        """Keep as ready only clients that wait for their byte budget. A new version of the model makes the
        others ready again."""
        for key, queue in self.ready.items():
            if queue.items:
                self.held[key] = queue
            else:
                self.held.pop(key, None)
        if budgeted:
            self.ready = {
                key: queue for key, queue in self.ready.items() if self._waits_for_bytes(queue, uploads)
            }
        else:
            self.ready = {}

    @staticmethod
    def _waits_for_bytes(queue: ClientQueue[Item], uploads: Uploads) -> bool:
        return bool(queue.items) and uploads.affordable_at(queue.client) is not None

    def wake_at(self, uploads: Uploads) -> float | None:
        """When the first of the clients that wait only for their byte budget can go on."""
        waiting = [queue.client for queue in self.ready.values() if queue.items]
        return earliest(*map(uploads.affordable_at, waiting))

    def waiting(self, client: Client) -> int:
        """How many items of a client wait."""
        queue = self._queues.get(client.key)
        return 0 if queue is None else len(queue.items)

    def full(self, limit: int) -> list[int]:
        """The partitions in which ``limit`` items wait, or more."""
        return [partition for partition, count in self._counts.items() if count >= limit]

    @property
    def counts(self) -> Mapping[int, int]:
        """How many items wait, by partition."""
        return self._counts

    @property
    def total(self) -> int:
        """How many items wait."""
        return sum(self._counts.values())

    def waiting_clients(self) -> Iterator[Client]:
        """The clients with waiting items."""
        return (queue.client for queue in (self.held | self.ready).values() if queue.items)


class PendingSamples(PendingQueues[PendingSample]):
    """A queue of samples for each client. Each sample that has to wait is stored in its own slot: one write a
    pending sample.

    dimension: of the samples that may be restored.
    logistic: whether their labels are for the logistic loss.
    """

    def __init__(self, dimension: int, logistic: bool) -> None:
        super().__init__()
        self._dimension = dimension
        self._logistic = logistic
        self._changed: dict[tuple[int, bytes], bytes | None] = {}

    def close(self, partition: int) -> None:
        super().close(partition)
        self._changed = {key: value for key, value in self._changed.items() if key[0] != partition}

    def leave(self, queue: ClientQueue[PendingSample], left: int) -> None:
        """Note that ``left`` samples have left a queue. Their slots are deleted, and each sample that stays
        gets one."""
        self._counts[queue.client.key[0]] -= left
        if queue.items or queue.slots_written:
            partition, name = queue.client.key[0], queue.client.record.name.encode()
            for slot in range(queue.first_slot, queue.first_slot + min(left, queue.slots_written)):
                self._changed[partition, _slot_key(name, slot)] = None
            queue.first_slot += left
            queue.slots_written = max(0, queue.slots_written - left)
            for index in range(queue.slots_written, len(queue.items)):
                sample = queue.items[index]
                content = (sample.id, sample.features, sample.label, sample.key)
                value = msgspec.msgpack.encode((*content, sample.headers) if sample.headers else content)
                self._changed[partition, _slot_key(name, queue.first_slot + index)] = value
            queue.slots_written = len(queue.items)
        else:
            queue.first_slot += left

    def forget_client(self, client: Client) -> list[bytes]:
        """Drop a client's queue. Returns the keys of its slots, which are to be deleted."""
        queue = self.forget(client)
        if queue is None:
            return []
        name = client.record.name.encode()
        slots = [
            _slot_key(name, number)
            for number in range(queue.first_slot, queue.first_slot + queue.slots_written)
        ]
        for slot in slots:
            self._changed.pop((client.key[0], slot), None)
        return slots

    def changed_state(self) -> Iterable[StateChange]:
        """The slots that have changed since the last call."""
        for (partition, key), value in self._changed.items():
            yield StateChange("state", partition, key, value)
        self._changed = {}

    def decoded(self, name: str, value: bytes) -> PendingSample:
        """The sample in a slot of this client. BadRecord if a reader of samples would refuse it."""
        slot = msgspec.msgpack.decode(value, type=_Slot)
        check_inputs(np.array(slot.features), self._dimension)
        if slot.label is not None:
            check_label(slot.label, self._logistic)
        return PendingSample(name, slot.id, slot.features, slot.label, slot.key, slot.headers)

    def restore(self, client: Client, slot: int, sample: PendingSample) -> None:
        """Restore a slot. BadRecord if it is not the next one.

        A compacted topic keeps the last record of each slot, in the order written: slots come and go first
        in, first out."""
        queue = self.queue(client)
        if not queue.items:
            queue.first_slot = slot
        if slot != queue.first_slot + len(queue.items):
            raise BadRecord(
                "malformed", f"a sample waits as number {slot}, those before it begin at {queue.first_slot}"
            )
        self.put(client, sample)
        queue.slots_written += 1
        self.held[client.key] = queue


def _slot_key(name: bytes, slot: int) -> bytes:
    return WAITING.prefix + slot.to_bytes(8, "big") + name
