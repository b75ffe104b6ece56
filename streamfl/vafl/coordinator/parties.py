"""The coordinator's state of each party in a partition: which of its embeddings came, how old they are, and
their mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Headers
from streamfl.encoding.changelog_checks import check_number
from streamfl.encoding.wire import Count, encode_array
from streamfl.roles.received_numbers import NumberRange, note, was_heard
from streamfl.state.changelog import ChangedParts
from streamfl.vafl.messages import bounded_array
from streamfl.vafl.state import HEARD_PARTY

__all__ = ["Parties", "SentEmbeddings"]

# Embeddings in the running mean, about: it has to follow the party's changing model.
MEAN_OF = 1000

# -1: no embedding came yet.
Epoch = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]


class _Party(msgspec.Struct, array_like=True):
    """A party in the changelog.

    epoch, sequence, parameters_version: of the embedding that was taken last.
    count: number of embeddings in the mean, up to 1000.
    mean: of its embeddings, float64 numbers.
    ranges: numbers of the embeddings that were taken.
    behind: whether the coordinator stopped waiting for the party at some entity, and the party has not been
    in time since."""

    epoch: Epoch = -1
    sequence: Count = 0
    parameters_version: Count = 0
    count: Count = 0
    mean: bytes = b""
    ranges: list[NumberRange] = []
    behind: bool = False


@dataclass(frozen=True, slots=True)
class SentEmbeddings:
    """Embeddings of one party, each of another entity: names, numbers, ``headers`` for a prediction made from
    it, and ``values`` (n, embedding size)."""

    names: list[str]
    epochs: list[int]
    sequences: list[int]
    versions: list[int]
    headers: list[Headers]
    values: NDArray[Any]

    def __getitem__(self, part: slice) -> SentEmbeddings:
        return SentEmbeddings(
            self.names[part],
            self.epochs[part],
            self.sequences[part],
            self.versions[part],
            self.headers[part],
            self.values[part],
        )

    def only(self, places: Sequence[int]) -> SentEmbeddings:
        return SentEmbeddings(
            [self.names[place] for place in places],
            [self.epochs[place] for place in places],
            [self.sequences[place] for place in places],
            [self.versions[place] for place in places],
            [self.headers[place] for place in places],
            self.values[places],
        )


class Parties:
    """M parties in one partition.

    parts: where they are remembered.
    means: running mean of each party's embeddings, (M, embedding size) float64.
    """

    def __init__(self, parts: ChangedParts, count: int, embedding_size: int) -> None:
        self._kept = parts.named(HEARD_PARTY, check_number, _Party, self._restore)
        self.means = np.zeros((count, embedding_size))
        self._parties = [_Party(ranges=[]) for _ in range(count)]
        self._epochs = np.full(count, -1, np.int64)
        self._versions = np.zeros(count, np.int64)
        self._touched: set[int] = set()

    @property
    def have_stepped(self) -> bool:
        """Whether any party had taken a step before its latest embedding."""
        return bool((self._versions > 0).any())

    def unheard(
        self, number: int, epochs: Sequence[int], sequences: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Note the sequence numbers of one party's embeddings.

        Returns the places of new embeddings, of those that came before, and of new ones that came after a
        later one.
        """
        ranges, places = self._parties[number].ranges, range(len(sequences))
        if len(ranges) == 1:
            latest = ranges[0]
            following = range(latest.last + 1, latest.last + 1 + len(sequences))
            if list(following) == sequences and set(epochs) == {latest.epoch}:
                # Nearly all embeddings come in this order.
                latest.last += len(sequences)
                return list(places), [], []
        new: list[int] = []
        again: list[int] = []
        late: list[int] = []
        for place, epoch, sequence in zip(places, epochs, sequences, strict=True):
            if was_heard(ranges, epoch, sequence):
                again.append(place)
                continue
            if note(ranges, epoch, sequence):
                late.append(place)
            new.append(place)
        return new, again, late

    def take(self, number: int, shown: SentEmbeddings) -> NDArray[np.int64]:
        """Take new embeddings of one party, at least one. Returns the age of each when it came, (n,).

        The age is 0 unless a later embedding came before.

        mean_n = mean_(n-1) + (h_n - mean_(n-1)) / c_n with c_n = min(n, 1000). It is computed for all
        embeddings at once: h_i has the weight 1 / c_i times the product over j > i of (1 - 1 / c_j).
        """
        party, values = self._parties[number], shown.values
        known, newest = party.epoch, party.parameters_version
        ages = []
        for epoch, version in zip(shown.epochs, shown.versions, strict=True):
            if epoch != known or version > newest:
                known, newest = epoch, version
            ages.append(newest - version)
        party.epoch, party.sequence, party.parameters_version = known, shown.sequences[-1], newest
        self._epochs[number], self._versions[number] = known, newest
        counts = np.minimum(party.count + np.arange(1.0, len(values) + 1), MEAN_OF)
        # The shares of the old mean and of each embedding that are left after the embeddings that follow.
        left = np.cumprod(np.concatenate([(1.0,), 1 - 1 / counts[::-1]]))[::-1]
        self.means[number] = left[0] * self.means[number] + (left[1:] / counts) @ values.astype(np.float64)
        party.count = int(counts[-1])
        self._touched.add(number)
        return np.array(ages, np.int64)

    def ages(
        self,
        epochs: NDArray[np.int64],
        versions: NDArray[np.int64],
        bound: int | None,
        newest: tuple[int, NDArray[np.int64]] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The age tau of embeddings, (n, M), and whether each is too old.

        tau counts the steps that the party is known to have taken since it made the embedding. For an
        embedding of another epoch it counts the steps of the present epoch; with a bound, such an embedding
        is always too old.

        epochs, versions: numbers of the embeddings, (n, M).
        bound: the largest tau that is not too old; None: no embedding is.
        newest: the number of the party that has just sent all entities, and each embedding's age when it
        came, (n,).
        """
        known = epochs == self._epochs
        ages = np.maximum(self._versions - np.where(known, versions, 0), 0)
        if newest is not None:
            number, own = newest
            ages[:, number], known[:, number] = own, True
        return ages, np.zeros_like(known) if bound is None else ~known | (ages > bound)

    @property
    def behind(self) -> NDArray[np.bool_]:
        """Parties that the coordinator waited for in vain and that do not keep up yet, (M,)."""
        return np.array([party.behind for party in self._parties])

    def keep_up(self, number: int, missed: NDArray[np.bool_]) -> None:
        """Note that a party sent entities. It keeps up if it is in time for at least one of them.

        missed: for which entities it is too late, (n,).
        """
        self._parties[number].behind &= bool(missed.all())

    def fall_behind(self, missing: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Note parties that the coordinator waited for in vain, entity by entity. Returns which are behind at
        each entity, (n, M).

        missing: which parties are missing for each entity, (n, M).
        """
        behind = np.logical_or.accumulate(np.concatenate([self.behind[np.newaxis], missing]))[1:]
        for number in np.flatnonzero(missing.any(axis=0)).tolist():
            self._parties[number].behind = True
            self._touched.add(number)
        return np.asarray(behind)

    @property
    def touched(self) -> bool:
        return bool(self._touched)

    def remember(self) -> None:
        """Remember the parties that changed since the last call, in their order."""
        for number in sorted(self._touched):
            party = self._parties[number]
            party.mean = encode_array(self.means[number])
            self._kept.remember(number, party)
        self._touched = set()

    def _restore(self, number: int, party: _Party) -> None:
        self.check_numbers([number])
        self.means[number] = bounded_array(party.mean, np.float64, self.means.shape[1], "mean")
        if not party.ranges and party.epoch >= 0:
            # The first releases remembered no ranges: everything up to the latest number was taken.
            party.ranges.append(NumberRange(party.epoch, 0, party.sequence))
        self._parties[number] = party
        self._epochs[number], self._versions[number] = party.epoch, party.parameters_version

    def check_numbers(self, numbers: Iterable[int]) -> None:
        """BadRecord if one of them is not the number of a party."""
        for number in numbers:
            if not 0 <= number < len(self._parties):
                raise BadRecord(
                    "malformed",
                    f"party {number} is remembered, federation.parties has {len(self._parties)}, from 0",
                )
