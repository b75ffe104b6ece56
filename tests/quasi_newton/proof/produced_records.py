"""Records that users write in a scenario: entities that all parties know, and some that one party knows, in
one or two waves."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamfl.identity.keys import derive
from streamfl.simulation.vertical.members import LABELS, samples_topic
from streamfl.testing.faults.federation import Reading

__all__ = ["LAST_ENTITIES", "Again", "ProducedRecords", "is_held_out", "written"]

LATE = "late"
LAST_ENTITIES = 3
"""Number of entities that come after the final restart; all parties know them."""
# Most known entities whose columns, or labels, change in the second wave.
MOST_CHANGED = 4


@dataclass(frozen=True)
class Again:
    """A second wave, for another training.

    entities: how many new ones all parties know that are not held out.
    at: when the wave begins and ends, in seconds.
    late: whether labels of held-out entities come only in this wave.
    """

    entities: int
    at: tuple[float, float]
    late: bool


@dataclass
class ProducedRecords:
    """readings: by topic, in order. last: written after the final restart.

    known: by party and entity, all columns that ever count, in order.
    labels: by entity, likewise.
    first: entities of the first wave.
    complete: by party, how many of its own in the first wave a training may take.
    more: how many entities of the second wave a training may take at the guest.
    """

    readings: dict[str, list[Reading]] = field(default_factory=dict)
    last: list[Reading] = field(default_factory=list)
    known: dict[tuple[str, str], list[list[float]]] = field(default_factory=dict)
    labels: dict[str, list[int]] = field(default_factory=dict)
    first: frozenset[str] = frozenset()
    complete: dict[str, int] = field(default_factory=dict)
    more: int = 0


def is_held_out(secret: bytes, share: float, name: str) -> bool:
    """Whether an entity is held out of all batches, by a keyed hash of its name. secret: the guest's."""
    key = derive(secret, b"quasi-newton held out")[:32]
    digest = hashlib.blake2b(name.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(digest, "big") < int(share * 2**64)


def written(
    draws: np.random.Generator,
    columns: Mapping[str, int],
    guest: str,
    common: int,
    batch: int,
    seconds: float,
    settled: bool,
    held_out: tuple[bytes, float],
    again: Again | None,
) -> ProducedRecords:
    """Draws the records of columns and labels. Some are repeated or changed.

    If the parties wait for everything (``settled``), changes come before the last new entity.

    columns: how many each party has.
    common: entities of the first wave that all parties know and that are not held out.
    batch: entities of one.
    seconds: within which the first wave is written.
    held_out: the guest's secret, and the share.
    """
    return _Writer(draws, columns, guest, held_out).write(common, batch, seconds, settled, again)


class _Writer:
    def __init__(
        self,
        draws: np.random.Generator,
        columns: Mapping[str, int],
        guest: str,
        held_out: tuple[bytes, float],
    ) -> None:
        self._draws = draws
        self._columns = columns
        self._guest = guest
        self._held_out = held_out
        self._found = ProducedRecords()
        self._weights = {party: draws.normal(size=count) for party, count in columns.items()}

    def write(
        self, common: int, batch: int, seconds: float, settled: bool, again: Again | None
    ) -> ProducedRecords:
        found = self._found
        own = self._entities("e", common, max(0, batch - common), 5)
        found.first = frozenset(name for names in own.values() for name in names)
        found.complete = {party: len(names) for party, names in own.items()}
        found.complete[self._guest] -= sum(map(self._is_held_out, own[self._guest]))
        records = self._records(own)
        late = []
        if again is not None and again.late:
            late = [one for one in records[LABELS] if self._is_held_out(one[0])]
            records[LABELS] = [one for one in records[LABELS] if not self._is_held_out(one[0])]
        for topic, content in records.items():
            self._first_wave(topic, content, seconds, settled)
        if again is not None:
            self._second_wave(again, late)
        for one in range(LAST_ENTITIES):
            self._last(f"{LATE}-{one}", one % 2)
        return found

    def _is_held_out(self, name: str) -> bool:
        return is_held_out(*self._held_out, name)

    def _entities(self, prefix: str, common: int, least_own: int, most_own: int) -> dict[str, list[str]]:
        """New entities of each party, with columns and labels."""
        found, draws = self._found, self._draws
        shared: list[str] = []
        usable = 0
        while usable < common:
            shared.append(f"{prefix}{len(shared)}")
            usable += not self._is_held_out(shared[-1])
        own = {party: list(shared) for party in self._columns}
        number = 0
        for party, names in own.items():
            # Each party has to know as many entities as a batch has, whether others know them or not.
            wanted = len(names) + least_own + int(draws.integers(0, most_own))
            while len(names) < wanted:
                names.append(f"{prefix if prefix != 'e' else ''}{party}-{number}")
                number += 1
        for name in dict.fromkeys(name for names in own.values() for name in names):
            score = 0.0
            for party, names in own.items():
                if name in names:
                    columns = np.sinh(draws.normal(size=self._columns[party]))
                    found.known[party, name] = [columns.tolist()]
                    score += float(np.dot(self._weights[party], columns))
            if name in own[self._guest]:
                found.labels[name] = [int(draws.random() < 1 / (1 + np.exp(-score)))]
        return own

    def _records(self, own: Mapping[str, Sequence[str]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
        """The records of new entities, by topic."""
        found = {
            samples_topic(party): [
                (name, {"id": name, "x": self._found.known[party, name][0]}) for name in names
            ]
            for party, names in own.items()
        }
        return {
            **found,
            LABELS: [(name, {"id": name, "y": self._found.labels[name][0]}) for name in own[self._guest]],
        }

    def _first_wave(
        self, topic: str, records: list[tuple[str, dict[str, Any]]], seconds: float, settled: bool
    ) -> None:
        draws = self._draws
        order = [records[int(place)] for place in draws.permutation(len(records))]
        # The guest has columns of some entities that never get a label.
        for one in range(int(draws.integers(0, 3)) if topic == samples_topic(self._guest) else 0):
            order.insert(
                one, (f"nobody-{one}", {"id": f"nobody-{one}", "x": [0.5] * self._columns[self._guest]})
            )
        for place in draws.integers(0, len(order) - 1, size=int(draws.integers(0, 6))):
            name, content = order[int(place)]
            # Insert an earlier record of the entity: other values if that is allowed, or the same ones.
            earlier = dict(content)
            if settled and draws.random() < 0.6:
                earlier |= (
                    {"y": 1 - content["y"]}
                    if topic == LABELS
                    else {"x": [-1.5 * one for one in content["x"]]}
                )
            order.insert(int(draws.integers(0, int(place) + 1)), (name, earlier))
        times = np.sort(draws.uniform(0.0, seconds, size=len(order)) * draws.random())
        self._read(topic, order, times)

    def _second_wave(self, again: Again, late: list[tuple[str, dict[str, Any]]]) -> None:
        """Write new entities, late labels, and changed columns and labels of known entities."""
        found, draws = self._found, self._draws
        own = self._entities("more-", again.entities, 0, 3)
        found.more = len(own[self._guest]) - sum(map(self._is_held_out, own[self._guest]))
        records = self._records(own)
        records[LABELS] += late
        for party in self._columns:
            known = sorted(name for one, name in found.known if one == party and name in found.first)
            for place in draws.choice(
                len(known), size=int(draws.integers(0, MOST_CHANGED + 1)), replace=False
            ):
                columns = np.sinh(draws.normal(size=self._columns[party])).tolist()
                found.known[party, known[place]].append(columns)
                records[samples_topic(party)].append((known[place], {"id": known[place], "x": columns}))
        early = sorted(found.first & found.labels.keys() - {name for name, _ in late})
        for place in draws.choice(len(early), size=int(draws.integers(0, MOST_CHANGED + 1)), replace=False):
            label = 1 - found.labels[early[place]][0]
            found.labels[early[place]].append(label)
            records[LABELS].append((early[place], {"id": early[place], "y": label}))
        for topic, content in records.items():
            order = [content[int(place)] for place in draws.permutation(len(content))]
            self._read(topic, order, np.sort(draws.uniform(*again.at, size=len(order))))

    def _read(
        self, topic: str, order: Sequence[tuple[str, dict[str, Any]]], times: Sequence[float] | Any
    ) -> None:
        readings = [
            Reading(topic, name, content, float(at), True)
            for (name, content), at in zip(order, times, strict=True)
        ]
        self._found.readings.setdefault(topic, []).extend(readings)

    def _last(self, name: str, label: int) -> None:
        found = self._found
        for party, count in self._columns.items():
            columns = self._draws.normal(size=count).tolist()
            found.known[party, name] = [columns]
            found.last.append(Reading(samples_topic(party), name, {"id": name, "x": columns}, 0.0, True))
        found.labels[name] = [label]
        found.last.append(Reading(LABELS, name, {"id": name, "y": label}, 0.0, True))
