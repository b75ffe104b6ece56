"""Batches that a training has learnt from. They keep their order, and their rows as these were then.

A party gets X'D of every batch. As long as a record is in one batch for life, more trainings give the party
no new equations. So a batch is never filled up, is never mixed with another, and is forgotten as a whole. Its
entities never join another batch."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_number, decode_restored
from streamfl.encoding.wire import LONGEST_NAME
from streamfl.identity.keys import derive
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.rows.alignment import set_digest
from streamfl.quasi_newton.state import BATCH, GONE
from streamfl.state.changelog import ChangedParts
from streamfl.state.value_fragments import VALUE_FRAGMENT_BYTES, ValueFragments

__all__ = ["MOST_EVER", "NAME_BYTES", "LearntBatches"]

Floats = NDArray[np.float64]
NAME_BYTES = 4 * LONGEST_NAME + 5
MOST_EVER = 10_000_000
"""Most entities that were in a batch at any time: of forgotten batches the names' digests are kept, 8 bytes
each."""


class _Batch:
    """names: of the entities, in the order of the rows. inputs: raw columns. signs: labels; empty at a
    host."""

    def __init__(self, parts: ChangedParts, number: int, size: int, columns: int) -> None:
        sizes = {"names": 5 + size * NAME_BYTES, "inputs": 8 * size * columns, "signs": size}
        self.fragments = {
            kind.encode(): ValueFragments(parts, BATCH, most, f"{number}/{kind}", registered=False)
            for kind, most in sizes.items()
        }
        self.names, self.inputs, self.signs = self.fragments.values()

    def names_in_order(self) -> list[str]:
        """The entities' names; empty as long as they are not restored."""
        return _names(self.names.content) if self.names else []


def _batch_number(content: bytes) -> int:
    number = check_number(content)
    if number >= MOST_EVER:
        raise BadRecord("malformed", f"state of batch {number}: there are at most {MOST_EVER}")
    return number


def _names(content: bytes) -> list[str]:
    return decode_restored(content, list[str], "names of a batch in state")


class LearntBatches(Collection[str]):
    """The batches, and who was in those that are gone. As a collection: names of the entities in batches.

    ``in`` is also true for entities whose batch is gone.

    largest: most rows of a batch; the first training may have had fewer.
    columns: how many raw ones.
    most: most batches at a time; a newer one displaces the oldest.
    secret: of the party. Names of batches that are gone are kept as digests keyed with it.
    counts: the member's counters.
    """

    def __init__(
        self, parts: ChangedParts, largest: int, columns: int, most: int, secret: bytes, counts: MemberCounts
    ) -> None:
        self._parts = parts
        parts.register(BATCH.prefix, self._restore)
        self._kept_gone = parts.named(GONE, _batch_number, bytes, self._restore_gone)
        self._largest = largest
        self._columns = columns
        self._most = most
        self._key = derive(secret, b"quasi-newton learnt entities")[:32]
        self._counts = counts
        self._batches: dict[int, _Batch] = {}
        self._gone: dict[int, bytes] = {}
        self._size: int | None = None
        self._known: frozenset[str] | None = None
        self._known_gone: NDArray[np.uint64] | None = None

    @property
    def count(self) -> int:
        """Number of batches."""
        return len(self._batches)

    @property
    def size(self) -> int:
        """Rows of each batch, as the first training divided them; 0 before it."""
        if self._size is None:
            first = self._batches.get(min(self._batches, default=0))
            self._size = 0 if first is None else len(first.inputs.content) // (8 * self._columns)
        return self._size

    def size_with(self, entities: int, least: int = 1) -> int:
        """Rows of a batch when this number of entities, one or more, fills new batches. It is the same for
        life.

        Entities that are too few for a whole batch form one if there are at least ``least``, because some of
        those that a training waits for are held out, or not common. Every party computes this from the
        entities that it receives.
        """
        return self.size or (entities if least <= entities < self._largest else self._largest)

    @property
    def room(self) -> int:
        """Number of batches that may ever be added."""
        return max(0, MOST_EVER // (self.size or self._largest) - len(self._gone) - len(self._batches))

    def __len__(self) -> int:
        return len(self._batches) * self.size

    def __iter__(self) -> Iterator[str]:
        """The names, in the order of the rows."""
        for _, batch in sorted(self._batches.items()):
            yield from batch.names_in_order()

    def __contains__(self, name: object) -> bool:
        if self._known is None:
            self._known = frozenset(self)
        return name in self._known or (bool(self._gone) and isinstance(name, str) and self._is_gone(name))

    @property
    def raw(self) -> Floats:
        """Raw columns, (rows, columns). BadRecord if the state does not fit together."""
        content = b"".join(batch.inputs.content for _, batch in sorted(self._batches.items()))
        names = sum(1 for _ in self)
        if (
            len(content) != 8 * len(self) * self._columns
            or names != len(self)
            or bool(content) != bool(self._batches)
        ):
            text = f"{len(content)} bytes and {names} names of batches in state are not {len(self)} rows"
            raise BadRecord("malformed", text)
        return np.frombuffer(content, "<f8").reshape(len(self), self._columns).astype(np.float64)

    @property
    def signs(self) -> Floats:
        """Labels -1 and 1, (rows,); none at a host."""
        content = b"".join(batch.signs.content for _, batch in sorted(self._batches.items()))
        return np.frombuffer(content, np.int8).astype(np.float64)

    def digest(self, names: Sequence[str], session: bytes) -> bytes:
        """Digest of which entity is in which batch once these names fill new ones. All parties have to agree
        on it."""
        kept = sorted(self._batches)
        first, size = self._next, self.size_with(len(names))
        new = [f"{first + place // size} {name}" for place, name in enumerate(names)]
        remaining = kept[max(0, len(kept) + len(names) // size - self._most) :]
        old = [f"{number} {name}" for number in remaining for name in self._batches[number].names_in_order()]
        return set_digest(old + new, session)

    def add(self, names: Sequence[str], inputs: Floats, signs: NDArray[np.int8]) -> None:
        """Add as many new batches as the names fill. If there are too many batches the oldest are forgotten.

        inputs: raw, (names, columns).
        signs: (names,); empty at a host.
        """
        size = self.size_with(len(names))
        assert len(names) % size == 0
        for begin in range(0, len(names), size):
            rows = slice(begin, begin + size)
            number = self._next
            batch = self._batches[number] = _Batch(self._parts, number, self._largest, self._columns)
            batch.names.write(msgspec.msgpack.encode(list(names[rows])))
            batch.inputs.write(inputs[rows].astype("<f8").tobytes())
            batch.signs.write(signs[rows].astype(np.int8).tobytes())
        while len(self._batches) > self._most:
            self._expire(min(self._batches))
        self._known = self._size = None

    def _restore(self, name: bytes, value: bytes) -> None:
        found, _, part = name.partition(b"/")
        kind, _, place = part.partition(b"/")
        number = _batch_number(found)
        batch = self._batches.get(number) or _Batch(self._parts, number, self._largest, self._columns)
        if number not in self._batches and len(self._batches) >= self._most:
            raise BadRecord("malformed", f"more than {self._most} batches in state")
        if part == b"names/0" and len(value) < VALUE_FRAGMENT_BYTES:
            # The names are complete, so they are checked here. Longer ones are checked when they are needed.
            _names(value)
        if kind not in batch.fragments:
            raise BadRecord("malformed", f"state {name[:60]!r} is of no batch")
        batch.fragments[kind].restore(place, value)
        self._batches[number], self._known, self._size = batch, None, None

    def _restore_gone(self, number: int, digests: bytes) -> None:
        if len(digests) % 8 or not 0 < len(digests) <= 8 * self._largest:
            raise BadRecord("malformed", f"{len(digests)} bytes are not the digests of a batch")
        self._gone[number], self._known_gone = digests, None

    @property
    def _next(self) -> int:
        return 1 + max((*self._batches, *self._gone), default=-1)

    def _expire(self, number: int) -> None:
        batch = self._batches.pop(number)
        digests = np.array([self._digest(name) for name in batch.names_in_order()], "<u8").tobytes()
        self._gone[number], self._known_gone = digests, None
        self._kept_gone.remember(number, digests)
        for fragments in batch.fragments.values():
            fragments.clear()
        self._counts.expired_batches += 1

    def _digest(self, name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), key=self._key, digest_size=8).digest(), "little")

    def _is_gone(self, name: str) -> bool:
        if self._known_gone is None:
            self._known_gone = np.sort(np.frombuffer(b"".join(self._gone.values()), "<u8").astype(np.uint64))
        digest = np.uint64(self._digest(name))
        place = int(np.searchsorted(self._known_gone, digest))
        return place < len(self._known_gone) and bool(self._known_gone[place] == digest)
