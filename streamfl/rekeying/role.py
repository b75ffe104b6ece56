"""The role of `streamfl rekey`: it writes records under another key, and the rows of a sample as one
record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from streamfl.contract.measurement import Counts, Measurement, counter
from streamfl.contract.role import (
    BadRecord,
    Headers,
    OperatorNotice,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
)
from streamfl.records.header_propagation import time_header
from streamfl.rekeying.assembly import Assembled, Assembly
from streamfl.rekeying.assembly_rows import ASSEMBLY_ROW, AssemblyRow
from streamfl.rekeying.reader import Rekeyed
from streamfl.state.clock_guard import ClockGuard

__all__ = ["Rekeying", "RekeyingMetrics"]


WRITTEN = b"written"


class RekeyingMetrics(Counts):
    """What `streamfl rekey` counts. Without an assembly no record is unused."""

    rekeyed_records = counter("Records of the input topic", headline=True)
    unused_records = counter("Records without a part of a sample, such as those of other sensors")


class Rekeying:
    """Rewrites a topic.

    Inputs: ``source``, the user's records; with an assembly also ``pieces``, which the role itself sends to
    the output of that name, keyed by client. Output: ``keyed``.

    assembly: puts rows together; None: every record is a sample.
    encode: encodes an assembled sample.
    carry: the headers of a record that its sample gets.
    write_key: makes an assembled sample's key from its client.
    """

    prompt = False
    full: Collection[int] = ()
    trouble: str | None = None

    def __init__(
        self,
        assembly: Assembly | None = None,
        encode: Callable[[Assembled], bytes] = lambda _sample: b"",
        carry: Callable[[Record], Headers] = lambda _record: (),
        write_key: Callable[[str], bytes] = str.encode,
    ) -> None:
        self._write_key = write_key
        self._assembly = assembly
        self._encode = encode
        self._carry = carry
        self._clock_guard = ClockGuard()
        self._counts = RekeyingMetrics()
        # Partitions from which something was written, and whether that is stored. From then on the settings
        # are binding.
        self._written: dict[int, bool] = {}

    @property
    def wake_at(self) -> float | None:
        return None if self._assembly is None else self._assembly.wake_at

    @property
    def waiting(self) -> Mapping[str, int]:
        return {}

    def open(self, partition: int) -> None:
        self._clock_guard.opened()
        if self._assembly is not None:
            self._assembly.open(partition)

    def close(self, partition: int) -> None:
        self._written.pop(partition, None)
        if self._assembly is not None:
            self._assembly.close(partition)

    def restore(self, change: StateChange) -> None:
        if change.key == WRITTEN:
            self._written[change.partition] = True
            return
        if self._assembly is None:
            raise BadRecord(
                "malformed", "the state has samples in several records, but there is no [samples.assemble]"
            )
        if change.value is not None:
            self._assembly.restore(change.partition, change.key, change.value)

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        if self._clock_guard.pass_to(now, tick=not batch) and self._assembly is not None:
            self._assembly.set_back(now)
        for received in batch:
            try:
                replies += self._take(received.message, received.channel, received, now)
            except BadRecord as error:
                replies.append(Rejection(received, error))
        if not batch and self._assembly is not None:
            replies += map(self._send, self._assembly.expire(now))
        return replies

    def _take(self, message: Any, channel: str, received: Received, now: float) -> list[Send]:
        if channel == "source":
            self._counts.rekeyed_records += 1
        if isinstance(message, Rekeyed):
            self._written.setdefault(received.partition, False)
            return [Send("keyed", message.key, message.value, None, message.headers)]
        assert isinstance(message, AssemblyRow)
        assert self._assembly is not None, "pieces come with an assembly"
        try:
            self._write_key(message.client)
        except ValueError as error:
            raise BadRecord("malformed", f"{message.client!r} cannot be a key: {error}") from None
        if channel == "pieces":
            taken = self._assembly.take(received.partition, message, self._carry(received.record), now)
            return [self._send(sample) for sample in taken]
        if not message.inputs:
            self._counts.unused_records += 1
            return []
        return [
            Send(
                "pieces",
                message.client.encode(),
                ASSEMBLY_ROW.encode(message),
                None,
                self._carry(received.record),
            )
        ]

    def _send(self, sample: Assembled) -> Send:
        timed = time_header(sample.time)
        headers = (*(header for header in sample.headers if header[0] != timed[0]), timed)
        return Send("keyed", self._write_key(sample.client), self._encode(sample), None, headers)

    def changed_state(self) -> Iterable[StateChange]:
        for partition in [partition for partition, remembered in self._written.items() if not remembered]:
            self._written[partition] = True
            yield StateChange("state", partition, WRITTEN, b"1")
        if self._assembly is not None:
            for partition, key, value in self._assembly.changed_state():
                yield StateChange("state", partition, key, value)

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        return self._assembly is not None and self._assembly.forget(name)

    def measure(self) -> Iterable[Measurement]:
        yield RekeyingMetrics.rekeyed_records(self._counts.rekeyed_records)
        if self._assembly is not None:
            yield RekeyingMetrics.unused_records(self._counts.unused_records)
            yield from self._assembly.measure()
