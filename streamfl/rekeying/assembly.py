"""Puts together samples that come in several records. Bounded in number and time; each sample is sent
once."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from streamfl.contract.measurement import Counts, Measurement, counter, gauge
from streamfl.contract.role import BadRecord, Headers
from streamfl.encoding.changelog_checks import Time, check_name, decode_restored
from streamfl.encoding.wire import Count
from streamfl.records.header_propagation import LONGEST_HEADERS
from streamfl.rekeying.assembly_rows import AssemblyRow, Scalar, Values, check_size
from streamfl.state.changelog import ChangedParts

__all__ = ["Assembled", "Assembly", "AssemblyMetrics", "Together", "client_of"]


class AssemblyMetrics(Counts):
    """Metrics of samples that come in several records."""

    samples_in_assembly = gauge("Samples of which some records have come", headline=True)
    assembled_samples = counter(
        "Samples that were sent on, by reason: complete, their span over, expired, or displaced by newer "
        "ones (limit)",
        reason=("complete", "over", "expired", "displaced"),
    )
    incomplete_samples = counter("Samples sent on without all of their inputs")
    surplus_values = counter("Records for a sample that already had this input")


@dataclass(frozen=True)
class Together:
    """Which rows are one sample, and when the sample is sent.

    fields: the sample is complete with all of these.
    several: which of several values for one input to take.
    span: a place is the number of a span of this many seconds; None: it is an id.
    grace: a span is over with a row this many seconds past its end; None: never.
    expiry: seconds after the first row.
    limit: most samples in a partition, those already sent included.
    """

    fields: Collection[str]
    several: str = "first"
    span: float | None = None
    grace: float | None = None
    expiry: float = 300.0
    limit: int = 10_000


class SamplePlace(NamedTuple):
    """A sample of a client."""

    client: str
    place: str


class Assembled(NamedTuple):
    """A sample to be sent. time: of its newest row, in seconds. written: that time as the row's record has
    it."""

    client: str
    place: str
    time: float
    written: Scalar | None
    values: Values
    headers: Headers


class _Entry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A sample that is being put together or was sent. Once sent, ``values`` is empty and ``lacked`` names
    its missing inputs.

    since: when its first row came, or when it was sent.
    counts: number of values in each mean, from two upward.
    """

    since: Time
    gone: bool
    time: Time = 0.0
    written: Scalar | None = None
    values: Values = {}
    counts: dict[str, Count] = {}
    lacked: tuple[str, ...] = ()
    headers: Annotated[Headers, msgspec.Meta(max_length=LONGEST_HEADERS)] = ()


@dataclass
class _Partition:
    """The samples of one partition.

    entries: by place.
    open: by client, the places that are being put together.
    ages: a heap that finds the oldest entry; its items may be stale, because an entry was removed or became
    younger.
    """

    entries: dict[SamplePlace, _Entry] = field(default_factory=dict)
    open: dict[str, set[str]] = field(default_factory=dict)
    ages: list[tuple[float, SamplePlace]] = field(default_factory=list)
    parts: ChangedParts = field(default_factory=ChangedParts)

    def put(self, place: SamplePlace, entry: _Entry) -> None:
        self.entries[place] = entry
        if not entry.gone:
            self.open.setdefault(place.client, set()).add(place.place)
        heapq.heappush(self.ages, (entry.since, place))

    def take(self, place: SamplePlace) -> _Entry:
        entry = self.entries.pop(place)
        if not entry.gone:
            own = self.open[place.client]
            own.remove(place.place)
            if not own:
                del self.open[place.client]
        return entry

    def oldest(self) -> tuple[float, SamplePlace] | None:
        """The oldest entry. Ties go to the first name, so that a restart changes nothing."""
        while self.ages:
            since, place = self.ages[0]
            entry = self.entries.get(place)
            if entry is not None and entry.since == since:
                return since, place
            heapq.heappop(self.ages)
        return None


class Assembly:
    """Puts rows together and sends each sample once. Refuses rows that come too late for it, counts rows that
    it does not need."""

    def __init__(self, together: Together) -> None:
        self._together = together
        self._fields = frozenset(together.fields)
        self._partitions: dict[int, _Partition] = {}
        self._metrics = AssemblyMetrics()

    def open(self, partition: int) -> None:
        self._partitions[partition] = _Partition()

    def close(self, partition: int) -> None:
        del self._partitions[partition]

    def take(self, partition: int, row: AssemblyRow, headers: Headers, now: float) -> list[Assembled]:
        """Take a row in. Returns the samples to be sent because of it, oldest span first.

        BadRecord with reason late if the row's sample was already sent without it, oversized if the sample
        would be too long."""
        held, place = self._partitions[partition], self._place(row.client, row.place)
        done = self._spans_over(held, row)
        entry = held.entries.get(place)
        if entry is None:
            entry = _Entry(now, False, row.time, row.written, {}, {}, (), headers)
        elif entry.gone:
            if row.values.keys().isdisjoint(entry.lacked):
                self._metrics.surplus_values += 1
                return self._go_on(held, done, "over", now)
            lacked = ", ".join(sorted(row.values))
            raise BadRecord(
                "late", f"the sample {row.place!r} of {row.client!r} was sent on without {lacked:.200}"
            )
        added = self._added(entry, row)
        if place not in held.entries:
            held.put(place, entry)
        self._add(entry, row, added)
        self._remember(held, place)
        sent = self._go_on(held, done, "over", now)
        if self._together.several == "first" and self._fields <= entry.values.keys():
            sent += self._go_on(held, [place], "complete", now)
        while len(held.entries) > self._together.limit and (oldest := held.oldest()) is not None:
            sent += self._give_way(held, oldest[1], now)
        return sent

    def expire(self, now: float) -> Iterator[Assembled]:
        """The samples to be sent because they have waited too long. Forgets samples that were sent long
        ago."""
        for held in self._partitions.values():
            while (oldest := held.oldest()) is not None and oldest[0] + self._together.expiry <= now:
                place = oldest[1]
                if held.entries[place].gone:
                    self._forget(held, place)
                else:
                    yield from self._go_on(held, [place], "expired", now)

    @property
    def wake_at(self) -> float | None:
        """When something expires next."""
        oldest = [found[0] for held in self._partitions.values() if (found := held.oldest()) is not None]
        return min(oldest) + self._together.expiry if oldest else None

    def set_back(self, now: float) -> None:
        """The clock was ahead: entries dated after ``now`` are dated ``now``."""
        for held in self._partitions.values():
            for place, entry in held.entries.items():
                if entry.since > now:
                    entry.since = now
                    heapq.heappush(held.ages, (now, place))
                    self._remember(held, place)

    def forget(self, client: str) -> bool:
        """Forget everything about a client. Returns whether there was anything."""
        found = False
        for held in self._partitions.values():
            for place in [place for place in held.entries if place.client == client]:
                self._forget(held, place)
                found = True
        return found

    def changed_state(self) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Partition, key and value of what has changed since the last call."""
        for partition, held in self._partitions.items():
            for key, value in held.parts.changed_state():
                yield partition, key, value

    def restore(self, partition: int, key: bytes, value: bytes) -> None:
        """Restore one value; BadRecord if it cannot be one that was written."""
        kind, _, rest = key.partition(b"/")
        if kind != b"sample":
            raise BadRecord(
                "malformed", f"{key[:60]!r} is not a key of the state of samples in several records"
            )
        end = 2 + int.from_bytes(rest[:2], "big")
        place = self._place(check_name(rest[2:end]), check_name(rest[end:]))
        entry = decode_restored(value, _Entry, "a sample in several records")
        check_size(entry.values)
        if entry.gone == bool(entry.values):
            raise BadRecord("malformed", "a sample in several records is stored only until it is sent on")
        if not all(math.isfinite(one) for one in entry.values.values() if isinstance(one, float)):
            raise BadRecord("not_finite", "a value is remembered that is no number")
        self._partitions[partition].put(place, entry)

    def measure(self) -> Iterable[Measurement]:
        """Counters and gauges."""
        being = sum(len(own) for held in self._partitions.values() for own in held.open.values())
        yield AssemblyMetrics.samples_in_assembly(being)
        for one in self._metrics.measure_counts():
            # Only complete ones belong in the line of progress.
            yield msgspec.structs.replace(one, headline=("reason", "complete") in one.labels)

    def _place(self, client: str, place: str) -> SamplePlace:
        if self._together.span is not None and re.fullmatch("-?[0-9]{1,20}", place) is None:
            raise BadRecord("malformed", f"{place[:60]!r} is no number of a span")
        return SamplePlace(client, place)

    def _added(self, entry: _Entry, row: AssemblyRow) -> Values:
        """The values of the entry with those of the row; BadRecord if they would be too long."""
        values = dict(entry.values)
        for name, value in row.values.items():
            before = values.get(name)
            if before is None or self._together.several == "last":
                values[name] = value
            elif self._together.several == "mean" and _is_number(before) and _is_number(value):
                count = entry.counts.get(name, 1) + 1
                mean = before + (value - before) / count  # type: ignore[operator]
                values[name] = mean if math.isfinite(mean) else before
        check_size(values)
        return values

    def _add(self, entry: _Entry, row: AssemblyRow, values: Values) -> None:
        if self._together.several == "mean":
            for name in row.values.keys() & entry.values.keys():
                entry.counts[name] = entry.counts.get(name, 1) + 1
        elif self._together.several == "first" and not row.values.keys() - entry.values.keys():
            self._metrics.surplus_values += 1
        entry.values = values
        if row.time > entry.time:
            entry.time, entry.written = row.time, row.written

    def _spans_over(self, held: _Partition, row: AssemblyRow) -> list[SamplePlace]:
        """The client's spans that this row ends, oldest first."""
        span, grace = self._together.span, self._together.grace
        if span is None or grace is None:
            return []
        over = [
            (int(place), place)
            for place in held.open.get(row.client, ())
            if place != row.place and (int(place) + 1) * span + grace <= row.time
        ]
        return [SamplePlace(row.client, place) for _, place in sorted(over)]

    def _go_on(
        self, held: _Partition, places: Iterable[SamplePlace], why: str, now: float
    ) -> list[Assembled]:
        sent = []
        for place in places:
            entry = held.take(place)
            lacked = tuple(sorted(self._fields - entry.values.keys()))
            self._metrics.assembled_samples[why] += 1
            self._metrics.incomplete_samples += bool(lacked)
            sent.append(Assembled(*place, entry.time, entry.written, entry.values, entry.headers))
            held.put(place, _Entry(now, True, lacked=lacked))
            self._remember(held, place)
        return sent

    def _give_way(self, held: _Partition, place: SamplePlace, now: float) -> list[Assembled]:
        sent = [] if held.entries[place].gone else self._go_on(held, [place], "displaced", now)
        self._forget(held, place)
        return sent

    def _forget(self, held: _Partition, place: SamplePlace) -> None:
        held.take(place)
        held.parts.forget(_key(place))

    def _remember(self, held: _Partition, place: SamplePlace) -> None:
        held.parts.remember(_key(place), held.entries[place])


def client_of(key: bytes) -> str | None:
    """The client whose sample is stored under this changelog key; None if the key is not a sample's.

    >>> client_of(_key(SamplePlace("north", "60"))), client_of(b"written")
    ('north', None)
    """
    kind, _, rest = key.partition(b"/")
    return check_name(rest[2 : 2 + int.from_bytes(rest[:2], "big")]) if kind == b"sample" else None


def _key(place: SamplePlace) -> bytes:
    client = place.client.encode()
    return b"sample/" + len(client).to_bytes(2, "big") + client + place.place.encode()


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
