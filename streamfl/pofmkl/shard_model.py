"""The parameters of one shard of the server: how updates move them, and how they are published and remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamfl.pofmkl.messages import ShardVersion, Update
from streamfl.pofmkl.model import LARGEST_PARAMETERS
from streamfl.pofmkl.publication import Publication
from streamfl.pofmkl.server_steps import ServerStep
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.pofmkl.update_problems import UpdateProblems
from streamfl.role import PeerError, StateChange
from streamfl.wire import VERSION

__all__ = ["Federation", "ShardModel", "blocks", "norms"]

# Steps are taken this many raw bytes at a time, for they grow in double precision: a poll may hold hundreds of megabytes.
BLOCK_BYTES = 4_000_000
# A little below what clients take, for rounding.
LONGEST_ROW = 0.999 * LARGEST_PARAMETERS

Item = TypeVar("Item")


@dataclass(frozen=True)
class Federation:
    """What all shards of a server share.

    clients: K, the size of the federation.
    kernels, features: N and D.
    dimension: of the samples; None: what was remembered.
    shards: kernel i belongs to shard i modulo that.
    lockstep: a step a round; otherwise every update is applied as it comes.
    round_timeout: seconds after the first update of a round in which it is closed.
    client_expiry: seconds unseen after which a client makes room for another.
    fingerprint, former_fingerprint: of the settings, and before the features were named.
    dtype: of rows and parameters.
    signing: signs each version; None: members have no keys.
    """

    clients: int
    kernels: int
    features: int
    dimension: int | None
    shards: int
    lockstep: bool
    round_timeout: float
    client_expiry: float
    fingerprint: int
    former_fingerprint: int
    dtype: Any
    signing: ModelSigning | None

    @property
    def row_length(self) -> int:
        """2 D."""
        return 2 * self.features

    def steps(self, updates: Iterable[Update]) -> NDArray[Any]:
        """The steps of all kernels of all updates, in order: (kernels sent, 2 D)."""
        numbers = np.frombuffer(b"".join(update.steps for update in updates), np.dtype(self.dtype).newbyteorder("<"))
        return numbers.reshape(-1, self.row_length)


class ShardModel:
    """The kernels ``number``, ``number`` + shards, … and what lies of them in the model topic.

    Remembered as ``step/…`` and what :class:`Publication` keeps.

    version: of this shard. updates: applied so far.
    step: how updates move the parameters.
    """

    def __init__(self, federation: Federation, number: int, step: ServerStep, problems: UpdateProblems) -> None:
        kernels = range(number, federation.kernels, federation.shards)
        fingerprints = (federation.fingerprint, federation.former_fingerprint)
        self.number = number
        self.kernels = frozenset(kernels)
        self.parameters: NDArray[Any] = np.zeros((len(kernels), federation.row_length), federation.dtype)
        self.step = step
        self.version = 0
        self.updates = 0
        self._federation = federation
        self._problems = problems
        self._publication = Publication(kernels, federation.row_length, federation.dtype, fingerprints, federation.signing)
        self._changed_kernels: set[int] = set()
        self._published = True
        self._book_changed = False
        self._mending = False
        # Something of the server was restored.
        self._remembered = False

    def apply(self, updates: Sequence[Update]) -> None:
        """Take a step of these updates, in order."""
        federation, parameters, shortened = self._federation, self.parameters, self.step.shortened
        for block in blocks(updates, lambda update: update):
            kernels = list(chain.from_iterable(update.kernels for update in block))
            with np.errstate(over="ignore", invalid="ignore"):
                places = np.array(kernels, dtype=np.intp) // federation.shards
                parameters = self.step.apply(parameters, places, federation.steps(block))
            self._changed_kernels.update(kernels)
        if shortened := self.step.shortened - shortened:
            self._problems.bounded += shortened
            self._problems.say(
                "update_bounded",
                f"shard {self.number}: {shortened} kernels' updates were longer than a client's can be, and were shortened. Have "
                "server and clients the same [learning], or does somebody else write updates?",
            )
        # A learning rate that is far too large makes them grow without end, and what is longer no client takes.
        parameters = np.clip(np.nan_to_num(parameters), -LARGEST_PARAMETERS, LARGEST_PARAMETERS)
        lengths = norms(parameters)
        if lengths.max(initial=0.0) > LONGEST_ROW:
            parameters *= np.minimum(1.0, LONGEST_ROW / np.maximum(lengths, LONGEST_ROW))[:, np.newaxis]
            self._problems.bounded += 1
            self._problems.say(
                "model_bounded",
                f"shard {self.number}: parameters reached a norm of {lengths.max():g} and were shortened to {LONGEST_ROW:g}. Is "
                "learning.learning_rate far too large, or does somebody else write updates?",
            )
        self.parameters = parameters.astype(federation.dtype)
        self._published = False
        self._problems.applied += len(updates)

    def count_updates(self) -> None:
        """Another update is applied as it comes: the version counts updates."""
        self.updates += 1
        self.version = self.updates

    def end_round(self, updates: int, misled: bool) -> None:
        """A round of so many updates was applied: the version counts rounds. misled: the next version is taken already."""
        self.version += 2 if misled else 1
        # A version is of one update at least.
        self.updates = max(self.updates + updates, self.version)

    def count_updates_from_now(self) -> None:
        """Rounds were counted before."""
        self.version, self._published = self.updates, False

    def tell_again(self, version: int) -> None:
        """A client may have been told this version, or no newer one, by somebody else: publish the own one again."""
        self._published = False
        if version < self.version - 1:
            self._changed_kernels.update(self.kernels)

    def publish_anew(self, update: Update) -> None:
        """A client read a version that was never published: whatever lies in the topic, what counts comes after it.

        Once a commit, however many clients say so: that is no more than a commit of many updates publishes.
        """
        self._problems.mended += not self._mending
        self._changed_kernels.update(self.kernels)
        self._mending, self._published = True, False
        self._problems.say(
            "unknown_version",
            f"client {update.client!r} names version {update.model_version} of shard {self.number}, the server has published "
            f"{self.version}: all of it is published anew. Who else may write into the model topic?",
        )

    def check_fingerprint(self, fingerprint: int) -> None:
        """PeerError if an update was made with other settings."""
        if fingerprint != self._federation.fingerprint:
            self._publication.check_fingerprint(fingerprint)
            raise PeerError(
                "configuration", "made without federation.features, or with others: give the client's [federation] the server's"
            )

    def settle(self, dimension: int) -> None:
        """Look at what was restored, once, when all of it is there. dimension: of the clients' inputs."""
        kept_a_book = self._publication.has_a_book
        settled = self._publication.settle(self._remembered, self.number, dimension)
        self.version, self.updates = settled.model_version, settled.updates
        for kernel, row in settled.parameters.items():
            self.parameters[kernel // self._federation.shards] = row
        self._changed_kernels |= settled.again
        self._published = not (settled.again or settled.marker_again)
        self._book_changed = not kept_a_book
        if self._federation.signing is not None and self._remembered:
            # All of it once more, under the key of today: an older key may go.
            self._changed_kernels, self._published = set(self.kernels), False
        if settled.mended is not None:
            self._problems.mended += 1
            self._problems.say("model_mended", settled.mended)
        if settled.taken_over:
            self._problems.say("taken_over", "what was learnt before federation.features was given goes on with it")

    def changed_state(self, dimension: int) -> Iterable[StateChange]:
        """What has to be remembered and published since the last call. dimension: of the clients' inputs."""
        fingerprint = self._federation.fingerprint
        for key, value in self.step.changed_state():
            yield StateChange("state", self.number, b"step/" + key, value)
        if not self._published:
            marker = ShardVersion(VERSION, fingerprint, dimension, self.number, self.version, self.updates)
            yield from self._publication.changes(self.number, self._changed_kernels, self.parameters, marker)
        elif self._book_changed:
            yield self._publication.book(self.number, fingerprint, self.version, self.updates)
        self._changed_kernels = set()
        self._published, self._book_changed, self._mending = True, False, False

    def was_remembered(self) -> None:
        """Something of the server's state is restored: it is no new one."""
        self._remembered = True

    def restore(self, key: bytes, value: bytes) -> bool:
        """Take back a value of the server's changelog; False if the key is of something else."""
        kind, _, name = key.partition(b"/")
        if kind == b"step":
            self.step.restore(name, value)
            return True
        return self._publication.restore(key, value)

    def restore_topic(self, key: bytes, value: bytes) -> None:
        """Take back a record of the model topic, into which others may have written."""
        try:
            self._publication.restore_topic(key, value)
        except PeerError:
            # The first releases kept nothing to mend it from.
            if self._remembered and not self._publication.has_a_book:
                raise
            self._publication.spoil(key)


def norms(rows: NDArray[Any]) -> NDArray[Any]:
    """Euclidean, of rows (n, 2 D): (n,)."""
    # A number whose square is infinite is longer than any bound.
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
