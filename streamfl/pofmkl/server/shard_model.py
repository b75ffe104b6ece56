"""The parameters of one shard of the server: how updates move them, and how they are published and stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.pofmkl.client.model import LARGEST_PARAMETERS
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import ShardVersion, Update
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.publication import Publication
from streamfl.pofmkl.server.update_problems import UpdateProblems
from streamfl.pofmkl.state import BOOK, COPY, STEP

__all__ = ["Restore", "ShardModel", "blocks", "norms"]

# Raw bytes of steps processed at a time: in double precision they grow, and a poll may hold hundreds of
# megabytes.
BLOCK_BYTES = 4_000_000
# A little below the largest norm that clients accept, for rounding.
LONGEST_ROW = 0.999 * LARGEST_PARAMETERS

Item = TypeVar("Item")
Restore = Callable[[bytes, bytes], None]
"""Takes a changelog key without its prefix, and a value."""


class ShardModel:
    """The kernels ``number``, ``number`` + shards, … and their records in the model topic.

    version: of this shard.
    updates: applied so far.
    step: moves the parameters.
    """

    def __init__(
        self, settings: PofmklSettings, given: ServerGiven, number: int, problems: UpdateProblems
    ) -> None:
        learning, shards = settings.learning, settings.federation.shards
        kernels = range(number, settings.kernel_count, shards)
        self.number = number
        self.kernels = frozenset(kernels)
        self.parameters: NDArray[Any] = np.zeros((len(kernels), learning.row_length), learning.dtype)
        self.step = given.step(len(kernels))
        self.version = 0
        self.updates = 0
        self._fingerprint = given.fingerprints[0]
        self._shards = shards
        self._signs = given.signing is not None
        self._sent_type = np.dtype(learning.dtype).newbyteorder("<")
        self._problems = problems
        self._publication = Publication(kernels, learning, given)
        self._changed_kernels: set[int] = set()
        self._published = True
        self._book_changed = False
        self._mending = False
        # Whether any state of the server was restored.
        self._remembered = False

    def apply(self, updates: Sequence[Update]) -> None:
        """Take a step of these updates, in order."""
        parameters, shortened = self.parameters, self.step.shortened
        for block in blocks(updates, lambda update: update):
            kernels = list(chain.from_iterable(update.kernels for update in block))
            with np.errstate(over="ignore", invalid="ignore"):
                places = np.array(kernels, dtype=np.intp) // self._shards
                parameters = self.step.apply(parameters, places, self.steps_of(block))
            self._changed_kernels.update(kernels)
        if shortened := self.step.shortened - shortened:
            self._problems.bounded += shortened
            self._problems.say(
                "update_bounded",
                f"shard {self.number}: {shortened} kernels' updates were longer than a client's can be, and "
                "were shortened. Do server and clients have the same [learning], or does somebody else write "
                "updates?",
            )
        # A learning rate that is far too large makes parameters grow without end. Clients refuse longer ones.
        parameters = np.clip(np.nan_to_num(parameters), -LARGEST_PARAMETERS, LARGEST_PARAMETERS)
        lengths = norms(parameters)
        if lengths.max(initial=0.0) > LONGEST_ROW:
            parameters *= np.minimum(1.0, LONGEST_ROW / np.maximum(lengths, LONGEST_ROW))[:, np.newaxis]
            self._problems.bounded += 1
            self._problems.say(
                "model_bounded",
                f"shard {self.number}: parameters reached a norm of {lengths.max():g} and were shortened to "
                f"{LONGEST_ROW:g}. Is learning.learning_rate far too large, or does somebody else write "
                "updates?",
            )
        self.parameters = parameters.astype(self.parameters.dtype)
        self._published = False
        self._problems.applied += len(updates)

    def steps_of(self, updates: Iterable[Update]) -> NDArray[Any]:
        """The steps of all kernels of all updates, in order: (kernels sent, 2 D)."""
        numbers = np.frombuffer(b"".join(update.steps for update in updates), self._sent_type)
        return numbers.reshape(-1, self.parameters.shape[1])

    def count_updates(self) -> None:
        """Count an update that is applied as it comes: the version counts updates."""
        self.updates += 1
        self.version = self.updates

    def end_round(self, updates: int, misled: bool) -> None:
        """Count a round of ``updates`` updates: the version counts rounds. misled: skip the next version,
        which is taken."""
        self.version += 2 if misled else 1
        # A version has at least one update.
        self.updates = max(self.updates + updates, self.version)

    def count_updates_from_now(self) -> None:
        """Let the version count updates, after it counted rounds."""
        self.version, self._published = self.updates, False

    def tell_again(self, version: int) -> None:
        """Publish the server's version again: another writer may have given a client this version, or kept
        newer ones from it."""
        self._published = False
        if version < self.version - 1:
            self._changed_kernels.update(self.kernels)

    def publish_anew(self, update: Update) -> None:
        """Publish all kernels again, after whatever lies in the topic: a client read a version that was never
        published.

        At most once a commit, however many clients report it: no more than a commit of many updates
        publishes.
        """
        self._problems.mended += not self._mending
        self._changed_kernels.update(self.kernels)
        self._mending, self._published = True, False
        self._problems.say(
            "unknown_version",
            f"client {update.client!r} names version {update.model_version} of shard {self.number}, the "
            f"server has published {self.version}: all of it is published again. Who else may write into the "
            "model topic?",
        )

    def check_fingerprint(self, fingerprint: int) -> None:
        """Raises BadRecord if an update was made with other settings."""
        if fingerprint != self._fingerprint:
            self._publication.check_fingerprint(fingerprint)
            raise BadRecord(
                "configuration",
                "made without federation.features, or with others: use the server's in the client's "
                "[federation]",
            )

    def settle(self, dimension: int) -> None:
        """Take over the restored state, once, after all of it is there. dimension: of the clients' inputs."""
        kept_a_book = self._publication.has_a_book
        settled = self._publication.settle(self._remembered, self.number, dimension)
        self.version, self.updates = settled.model_version, settled.updates
        for kernel, row in settled.parameters.items():
            self.parameters[kernel // self._shards] = row
        self._changed_kernels |= settled.again
        self._published = not (settled.again or settled.marker_again)
        self._book_changed = not kept_a_book
        if self._signs and self._remembered:
            # All kernels are published again under today's key, so that an older key can be removed.
            self._changed_kernels, self._published = set(self.kernels), False
        if settled.mended is not None:
            self._problems.mended += 1
            self._problems.say("model_mended", settled.mended)
        if settled.taken_over:
            self._problems.say("taken_over")

    def changed_state(self, dimension: int) -> Iterable[StateChange]:
        """State and model records that changed since the last call. dimension: of the clients' inputs."""
        fingerprint, step = self._fingerprint, STEP.prefix
        for key, value in self.step.changed_state():
            yield StateChange("state", self.number, step + key, value)
        if not self._published:
            marker = ShardVersion(VERSION, fingerprint, dimension, self.number, self.version, self.updates)
            yield from self._publication.changes(self.number, self._changed_kernels, self.parameters, marker)
        elif self._book_changed:
            yield self._publication.book(self.number, fingerprint, self.version, self.updates)
        self._changed_kernels = set()
        self._published, self._book_changed, self._mending = True, False, False

    def was_remembered(self) -> None:
        """Note that state of the server was restored: it is not a new server."""
        self._remembered = True

    @property
    def restores(self) -> Mapping[bytes, Restore]:
        """What restores the model's rows of the changelog, by prefix."""
        publication = self._publication
        return {
            STEP.prefix: self.step.restore,
            BOOK.prefix: publication.restore_book,
            COPY.prefix: publication.restore_copy,
        }

    def restore_topic(self, key: bytes, value: bytes) -> None:
        """Restore a record of the model topic, into which others may have written."""
        try:
            self._publication.restore_topic(key, value)
        except BadRecord:
            # The first releases stored nothing to repair the topic from.
            if self._remembered and not self._publication.has_a_book:
                raise
            self._publication.spoil(key)


def norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Euclidean norms, (n,), of rows (n, 2 D)."""
    # An infinite square exceeds any bound as well.
    with np.errstate(over="ignore", invalid="ignore"):
        lengths: NDArray[Any] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        return lengths


def blocks(items: Sequence[Item], update_of: Callable[[Item], Update]) -> Iterator[Sequence[Item]]:
    """The items in order, cut where the steps of their updates would exceed ``BLOCK_BYTES``."""
    start = size = 0
    for index, item in enumerate(items):
        steps = len(update_of(item).steps)
        if size + steps > BLOCK_BYTES and index > start:
            yield items[start:index]
            start, size = index, 0
        size += steps
    yield items[start:]
