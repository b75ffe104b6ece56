"""Records what a shard of the server published last, to find and repair what others write into the model
topic.

Anyone with the right to write into the model topic may write a version or parameters into it. The server
therefore keeps a *book* in its own changelog: its version, and a digest of each kernel as it was published
last. It keeps a *copy* of each kernel there too. After a restart the server uses the parameters with the
book's digest, wherever they lie among what others wrote. Where they are gone, it uses the copy.

With every fourth version the server publishes and copies one kernel in turn, changed or not. So each of n
kernels is published and copied at least once in 4 n versions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, StateChange
from streamfl.encoding.wire import VERSION, Count, decode_array, encode_array
from streamfl.pofmkl.learning.section import LearningSection
from streamfl.pofmkl.messages import (
    KERNEL_PARAMETERS,
    MARKER_KEY,
    SHARD_VERSION,
    SIGNED_KEY,
    SIGNED_VERSION,
    KernelParameters,
    ShardVersion,
    kernel_key,
)
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.signed_model import SignedShard, empty_row
from streamfl.pofmkl.state import BOOK, COPY

__all__ = ["Publication", "Settled"]

DIGEST_BYTES = 16
VERSIONS_A_TURN = 4
NEVER = bytes(DIGEST_BYTES)


class _Book(msgspec.Struct, array_like=True):
    """The book as it is stored.

    turn: how many versions were published.
    digests: of every kernel of the shard; zeros for a kernel that was never published.
    """

    fingerprint: Count
    model_version: Count
    updates: Count
    turn: Count
    digests: bytes


@dataclass
class Settled:
    """A shard's state after a restart.

    parameters: (2 D,) by kernel.
    again: kernels to publish again; those without parameters begin at 0.
    marker_again: whether to publish the marker again.
    mended: a text about what others wrote; None if nothing was found.
    taken_over: whether the book or the marker has a former fingerprint of the federation.
    """

    model_version: int = 0
    updates: int = 0
    parameters: dict[int, NDArray[Any]] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)
    marker_again: bool = False
    mended: str | None = None
    taken_over: bool = False


class Publication:
    """The book of one shard, and the records of each version.

    kernels: of the shard.
    """

    def __init__(self, kernels: range, learning: LearningSection, given: ServerGiven) -> None:
        self._kernels = kernels
        self._row_length = learning.row_length
        self._dtype = learning.dtype
        self._fingerprints = given.fingerprints
        empty = empty_row(self._row_length, self._dtype)
        self._signed = None if given.signing is None else SignedShard(given.signing, kernels, empty)
        self._digests = [NEVER] * len(kernels)
        self._turn = 0
        self._uncopied: set[int] = set()
        self._foreign: list[bytes] = []
        # All of these are needed only until ``settle`` is called.
        self._book: _Book | None = None
        self._copies: dict[int, NDArray[Any]] = {}
        # By kernel: the last parameters in the topic, and those with the book's digest. Others may have
        # written after these.
        self._found: dict[int, NDArray[Any]] = {}
        self._own: dict[int, NDArray[Any]] = {}
        self._marker: ShardVersion | None = None
        # The marker of the other kind, signed or unsigned: from before keys were set or dropped.
        self._other_marker: ShardVersion | None = None
        self._spoilt: set[bytes] = set()

    @property
    def _marker_key(self) -> bytes:
        return MARKER_KEY if self._signed is None else SIGNED_KEY

    @property
    def has_a_book(self) -> bool:
        return self._book is not None

    @property
    def published(self) -> list[int]:
        """The kernels that were ever published."""
        return [
            kernel for kernel, digest in zip(self._kernels, self._digests, strict=True) if digest != NEVER
        ]

    # ---- restore

    def restore_book(self, _: bytes, value: bytes) -> None:
        """BadRecord if it was made with other settings."""
        book = msgspec.msgpack.decode(value, type=_Book)
        self.check_fingerprint(book.fingerprint)
        if len(book.digests) != DIGEST_BYTES * len(self._kernels):
            raise BadRecord(
                "shape",
                f"the book has {len(book.digests)} bytes of digests, for {len(self._kernels)} kernels",
            )
        self._book, self._turn = book, book.turn
        self._digests = [
            book.digests[start : start + DIGEST_BYTES] for start in range(0, len(book.digests), DIGEST_BYTES)
        ]

    def restore_copy(self, kernel: bytes, value: bytes) -> None:
        self._copies[int(kernel)] = self._row(value)

    def restore_topic(self, key: bytes, value: bytes) -> None:
        """Note a record of the model topic; BadRecord if it does not belong to this shard.

        Called with all records in their order. The last one of a key counts, unless the book differs.
        """
        if key in (MARKER_KEY, SIGNED_KEY):
            marker = SHARD_VERSION.decode(value) if key == MARKER_KEY else SIGNED_VERSION.decode(value).marker
            self.check_fingerprint(marker.fingerprint)
            if key == self._marker_key:
                self._marker = marker
            else:
                self._other_marker = marker
            self._spoilt.discard(key)
            return
        message = KERNEL_PARAMETERS.decode(value)
        if message.kernel not in self._kernels or key != kernel_key(message.kernel):
            raise BadRecord(
                "kernel", f"kernel {message.kernel} does not belong to the key {key!r} of this shard"
            )
        row = self._found[message.kernel] = self._row(message.parameters)
        self._spoilt.discard(key)
        if self._book is not None and _digest(row) == self._digests[self._kernels.index(message.kernel)]:
            self._own[message.kernel] = row

    def spoil(self, key: bytes) -> None:
        """Note that the record under this key of the model topic is not the server's."""
        self._spoilt.add(key)

    def check_fingerprint(self, fingerprint: int) -> None:
        """Raises BadRecord if the fingerprint belongs to another federation or other settings."""
        if fingerprint not in self._fingerprints:
            raise BadRecord(
                "configuration",
                "another federation name, seed, federation.features (names or their order), preset, loss, "
                "kernel dictionary (an uplink.kernels_per_upload of 1 or 2 has its own), features_per_kernel "
                "or precision was used to make it",
            )

    def settle(self, remembered: bool, shard: int, dimension: int) -> Settled:
        """Decide the shard's state from all that was restored. To be called once, before anything is
        published.

        remembered: whether the server had a state before.
        """
        settled = (
            self._as_found() if self._book is None and remembered else self._by_the_book(shard, dimension)
        )
        if settled.marker_again:
            # All kernels: readers refused those that came before a marker of another federation.
            settled.again |= settled.parameters.keys()
        for kernel, row in settled.parameters.items():
            if self._signed is not None:
                self._signed.note(kernel, encode_array(row))
            self._digests[self._kernels.index(kernel)] = _digest(row)
        self._uncopied = settled.parameters.keys() - self._copies.keys()
        self._foreign = sorted(self._spoilt - {MARKER_KEY, SIGNED_KEY, *map(kernel_key, self._kernels)})
        if self._other_marker is not None:
            # Deleted, or every later reader would find and refuse it.
            self._foreign.append(SIGNED_KEY if self._signed is None else MARKER_KEY)
        self._book = None
        self._copies = {}
        self._found = {}
        self._own = {}
        self._marker = None
        self._spoilt = set()
        self._other_marker = None
        return settled

    def _as_found(self) -> Settled:
        """The state that the topic shows: the first releases kept no book."""
        settled, marker = Settled(parameters=self._found, again=self._spoilt_kernels), self._marker
        if marker is not None:
            settled.model_version, settled.updates = marker.model_version, marker.updates
            settled.taken_over = settled.marker_again = marker.fingerprint != self._fingerprints[0]
        return settled

    def _by_the_book(self, shard: int, dimension: int) -> Settled:
        """The state that the book says, with what has to be published again. Without a book: that of a new
        server."""
        book, marker, settled = self._book, self._marker, Settled(again=self._spoilt_kernels)
        if book is not None:
            settled.model_version, settled.updates = book.model_version, book.updates
            settled.taken_over = book.fingerprint != self._fingerprints[0]
        expected = ShardVersion(
            VERSION, self._fingerprints[0], dimension, shard, settled.model_version, settled.updates
        )
        for kernel, digest in zip(self._kernels, self._digests, strict=True):
            if digest != NEVER:
                self._find(kernel, digest, settled)
            elif kernel in self._found:
                settled.again.add(kernel)
        settled.marker_again = (marker is not None or settled.model_version > 0) and marker != expected
        # The other kind of marker is as expected: keys were set or dropped since, and nobody else wrote.
        as_told = marker is None and self._other_marker == expected
        if settled.again or self._spoilt or (settled.marker_again and not settled.taken_over and not as_told):
            settled.mended = _mended(shard, settled)
        return settled

    @property
    def _spoilt_kernels(self) -> set[int]:
        return {kernel for kernel in self._kernels if kernel_key(kernel) in self._spoilt}

    def _find(self, kernel: int, digest: bytes, settled: Settled) -> None:
        """Find the parameters that the book has: in the topic, or else as a copy."""
        found = self._found.get(kernel)
        if kernel not in self._own and found is not None and _digest(found) == digest:
            # The record was restored before the book.
            self._own[kernel] = found
        own = self._own.get(kernel)
        row = self._copies.get(kernel) if own is None else own
        if row is not None:
            settled.parameters[kernel] = row
        if own is not found or found is None:
            settled.again.add(kernel)

    # ---- write

    def changes(
        self, partition: int, changed: set[int], parameters: NDArray[Any], marker: ShardVersion
    ) -> Iterator[StateChange]:
        """The records of a version: the book, copies, kernels, and the marker.

        changed: the kernels to publish; one more is published in turn.
        parameters: of all kernels of the shard, (kernels, 2 D).
        marker: of the version.
        """
        in_turn: set[int] = set()
        published = self.published
        turn, rest = divmod(self._turn, VERSIONS_A_TURN)
        if published and not rest:
            in_turn = {published[turn % len(published)]}
        self._turn += 1
        kernels = sorted(changed | in_turn)
        rows = {kernel: encode_array(parameters[self._kernels.index(kernel)]) for kernel in kernels}
        copied = in_turn | self._uncopied | (changed - set(published))
        for kernel, row in rows.items():
            self._digests[self._kernels.index(kernel)] = _digest_of(row)
            if self._signed is not None:
                self._signed.note(kernel, row)
        yield self.book(partition, marker.fingerprint, marker.model_version, marker.updates)
        for kernel in sorted(copied):
            content = encode_array(parameters[self._kernels.index(kernel)])
            yield StateChange("state", partition, b"%s%d" % (COPY.prefix, kernel), content)
        self._uncopied = set()
        for kernel, row in rows.items():
            message = KernelParameters(VERSION, kernel, row)
            yield StateChange("model", partition, kernel_key(kernel), KERNEL_PARAMETERS.encode(message))
        for key in self._foreign:
            yield StateChange("model", partition, key, None)
        self._foreign = []
        # Last in the step: readers take the parameters before it as one version.
        value = SHARD_VERSION.encode(marker) if self._signed is None else self._signed.sign(marker)
        yield StateChange("model", partition, self._marker_key, value)

    def book(self, partition: int, fingerprint: int, model_version: int, updates: int) -> StateChange:
        book = _Book(fingerprint, model_version, updates, self._turn, b"".join(self._digests))
        return StateChange("state", partition, BOOK.prefix, msgspec.msgpack.encode(book))

    def _row(self, content: bytes) -> NDArray[Any]:
        row: NDArray[Any] = decode_array(content, self._dtype, (self._row_length,), "parameters")
        return row


def _mended(shard: int, settled: Settled) -> str:
    """What to say about records that others wrote."""
    doubtful = sorted(settled.again)
    without = [kernel for kernel in doubtful if kernel not in settled.parameters]
    return (
        f"shard {shard}: the model topic does not hold what this server published last, of kernels "
        f"{doubtful[:5]} ({len(doubtful)} in all): it is published again as version {settled.model_version}"
        + (f", without a copy of {without[:5]}, which start over" if without else "")
        + ". Let only the server write into it."
    )


def _digest(row: NDArray[Any]) -> bytes:
    return _digest_of(encode_array(row))


def _digest_of(content: bytes) -> bytes:
    digest = hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
    # Zeros mark a kernel that was never published.
    return digest if digest != NEVER else bytes(DIGEST_BYTES - 1) + b"\1"
