"""What waits until a client may learn it: samples, or pairs of a sample and its label."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

import msgspec
import numpy as np

from streamfl.pofmkl.restored import check_inputs, check_label
from streamfl.pofmkl.seats import Client, ClientKey
from streamfl.pofmkl.uploads import Uploads
from streamfl.records.carried import LONGEST_HEADERS
from streamfl.records.samples import Sample
from streamfl.role import Headers, PeerError, StateChange
from streamfl.wire import Name

__all__ = ["Line", "SampleRoom", "WaitingRoom", "WaitingSample"]

Item = TypeVar("Item")


WaitingSample = tuple[Sample, bytes | None, Headers]
"""A sample, the key of its record, and the headers that its prediction gets."""


class _Slot(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A sample as it is remembered; headers are left out where there are none."""

    id: Name
    features: tuple[float, ...]
    label: float | None
    key: bytes | None
    headers: Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)] = ()


@dataclass(slots=True, eq=False)
class Line(Generic[Item]):
    """What waits of one client, oldest first.

    first_slot: the number of the first item, counted since the client's state began.
    slots_written: how many of the items are remembered.
    held: some of the items could not be learnt in the step that brought them.
    """

    client: Client
    items: deque[Item] = field(default_factory=deque)
    first_slot: int = 0
    slots_written: int = 0
    held: bool = False


class WaitingRoom(Generic[Item]):
    """A line of items for each client, counted by partition.

    ready: the lines whose first item may be learnt now, as far as is known.
    """

    def __init__(self) -> None:
        self.ready: dict[ClientKey, Line[Item]] = {}
        self._lines: dict[ClientKey, Line[Item]] = {}
        self._counts: dict[int, int] = {}

    def open(self, partition: int) -> None:
        self._counts[partition] = 0

    def close(self, partition: int) -> None:
        del self._counts[partition]
        for key in [key for key in self._lines if key[0] == partition]:
            del self._lines[key]
            self.ready.pop(key, None)

    def line(self, client: Client) -> Line[Item]:
        """The client's line; it begins with a new client."""
        return self._lines.get(client.key) or self._lines.setdefault(client.key, Line(client))

    def put(self, client: Client, item: Item) -> None:
        """Let something of a client wait, behind whatever waits of it."""
        key = client.key
        line = self._lines.get(key) or self.line(client)
        line.items.append(item)
        self._counts[key[0]] += 1
        self.ready[key] = line

    def left(self, line: Line[Item], count: int) -> None:
        """So many items of a line wait no longer."""
        self._counts[line.client.key[0]] -= count

    def forget(self, client: Client) -> Line[Item] | None:
        """Drop what waits of a client; returns its line."""
        line = self._lines.pop(client.key, None)
        self.ready.pop(client.key, None)
        if line is not None:
            self.left(line, len(line.items))
        return line

    def look_again(self, clients: Iterable[Client]) -> None:
        """The model has changed: whatever waits of these clients may be ready."""
        for client in clients:
            line = self._lines.get(client.key)
            if line is not None and line.items:
                self.ready[client.key] = line

    def rest(self, uploads: Uploads, budgeted: bool) -> None:
        """Whoever is not ready now is looked at again with a new version of the model, or when its bucket has filled."""
        for line in self.ready.values():
            line.held = bool(line.items)
        if budgeted:
            self.ready = {key: line for key, line in self.ready.items() if self._waits_for_bytes(line, uploads)}
        else:
            self.ready = {}

    @staticmethod
    def _waits_for_bytes(line: Line[Item], uploads: Uploads) -> bool:
        return bool(line.items) and uploads.affordable_at(line.client) is not None

    def wake_at(self, uploads: Uploads) -> float | None:
        """When the first of the clients that wait only for their byte budget can go on."""
        times = [uploads.affordable_at(line.client) for line in self.ready.values() if line.items]
        return min([when for when in times if when is not None], default=None)

    def waiting(self, client: Client) -> int:
        """How much of a client waits."""
        line = self._lines.get(client.key)
        return 0 if line is None else len(line.items)

    def full(self, limit: int) -> list[int]:
        """The partitions in which ``limit`` items wait, or more."""
        return [partition for partition, count in self._counts.items() if count >= limit]

    @property
    def counts(self) -> Mapping[int, int]:
        """How much waits, by partition."""
        return self._counts

    @property
    def total(self) -> int:
        """How much waits."""
        return sum(self._counts.values())

    def waiting_clients(self) -> Iterator[Client]:
        """The clients of whom something waits."""
        return (line.client for line in self._lines.values() if line.items)


class SampleRoom(WaitingRoom[WaitingSample]):
    """A waiting room of samples that remembers each one that stays behind, in a slot of its own: one write a waiting sample.

    dimension, logistic: of the samples that may be restored, and of their labels.
    """

    def __init__(self, dimension: int, logistic: bool) -> None:
        super().__init__()
        self._dimension = dimension
        self._logistic = logistic
        self._changed: dict[tuple[int, bytes], bytes | None] = {}

    def close(self, partition: int) -> None:
        super().close(partition)
        self._changed = {key: value for key, value in self._changed.items() if key[0] != partition}

    def remember(self, line: Line[WaitingSample], left: int) -> None:
        """Note that so many samples have left a line: their slots are forgotten, and each sample that stays gets one."""
        if line.items or line.slots_written:
            partition, name = line.client.key[0], line.client.record.name.encode()
            for slot in range(line.first_slot, line.first_slot + min(left, line.slots_written)):
                self._changed[partition, _slot_key(name, slot)] = None
            line.first_slot += left
            line.slots_written = max(0, line.slots_written - left)
            for index in range(line.slots_written, len(line.items)):
                sample, key, headers = line.items[index]
                content = (sample.id, sample.features, sample.label, key)
                value = msgspec.msgpack.encode((*content, headers) if headers else content)
                self._changed[partition, _slot_key(name, line.first_slot + index)] = value
            line.slots_written = len(line.items)
        else:
            line.first_slot += left

    def forget_client(self, client: Client) -> list[bytes]:
        """Drop what waits of a client; returns the keys that it is remembered under, which are to be forgotten."""
        line = self.forget(client)
        if line is None:
            return []
        name = client.record.name.encode()
        slots = [_slot_key(name, number) for number in range(line.first_slot, line.first_slot + line.slots_written)]
        for slot in slots:
            self._changed.pop((client.key[0], slot), None)
        return slots

    def changed_state(self) -> Iterable[StateChange]:
        """The slots that have changed since the last call."""
        for (partition, key), value in self._changed.items():
            yield StateChange("state", partition, key, value)
        self._changed = {}

    def decoded(self, name: str, value: bytes) -> WaitingSample:
        """The sample in a slot of this client. PeerError if no reader of samples would let it pass."""
        slot = msgspec.msgpack.decode(value, type=_Slot)
        check_inputs(np.array(slot.features), self._dimension)
        if slot.label is not None:
            check_label(slot.label, self._logistic)
        return Sample(name, slot.id, slot.features, slot.label), slot.key, slot.headers

    def restore(self, client: Client, slot: int, sample: WaitingSample) -> None:
        """Take back a slot. PeerError if it is not the one that comes next.

        A compacted topic keeps the last record of each slot, in the order written: slots come and go first in, first out.
        """
        line = self.line(client)
        if not line.items:
            line.first_slot = slot
        if slot != line.first_slot + len(line.items):
            raise PeerError("malformed", f"a sample waits as number {slot}, those before it begin at {line.first_slot}")
        self.put(client, sample)
        line.slots_written += 1
        line.held = True


def _slot_key(name: bytes, slot: int) -> bytes:
    return b"waiting/" + slot.to_bytes(8, "big") + name
