"""The model where members have keys: a server signs each version of a shard as a whole, and clients accept
only signed versions.

The signature covers the version's marker and a digest of every kernel's parameters. A client has the version
once it holds or has received parameters for each digest, whatever else lies in the topic. Compaction may
delete parameters of an older version. Then the client tries the next version, with all parameters that it
received.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import VERSION
from streamfl.pofmkl.messages import SIGNED_VERSION, ShardVersion, SignedVersion

__all__ = ["ModelSigning", "SignedShard", "StagedShard", "empty_row"]

DIGEST_BYTES = 16
# Most candidates kept for a kernel: anyone with the right to write may put other parameters among a version's
# records.
MOST_CANDIDATES = 8


@dataclass(frozen=True)
class ModelSigning:
    """How versions are signed and checked.

    federation: its name.
    topic: of the model.
    sign: signs a statement.
    check: takes a statement and a signature; raises BadRecord if the signature is not a server's.
    """

    federation: str
    topic: str
    sign: Callable[[bytes], bytes]
    check: Callable[[bytes, bytes], None]

    def signed(self, marker: ShardVersion, digests: bytes) -> SignedVersion:
        """The signed version."""
        return SignedVersion(VERSION, marker, digests, self.sign(self._statement(marker, digests)))

    def digests(self, version: SignedVersion, kernels: Sequence[int]) -> dict[int, bytes]:
        """The digest of each kernel of the shard; BadRecord if they are not signed."""
        if len(version.digests) != DIGEST_BYTES * len(kernels):
            raise BadRecord(
                "forged",
                f"a signed version has {len(version.digests)} bytes of digests, for {len(kernels)} kernels",
            )
        self.check(self._statement(version.marker, version.digests), version.signature)
        starts = range(0, len(version.digests), DIGEST_BYTES)
        return {
            kernel: version.digests[start : start + DIGEST_BYTES]
            for kernel, start in zip(kernels, starts, strict=True)
        }

    def _statement(self, marker: ShardVersion, digests: bytes) -> bytes:
        """The signed bytes: federation, topic, marker, and the kernels' digests in order."""
        numbers = (marker.fingerprint, marker.dimension, marker.shard, marker.model_version, marker.updates)
        parts = [text.encode() for text in ("streamfl/1 model", self.federation, self.topic, repr(numbers))]
        return b"".join(struct.pack(">I", len(part)) + part for part in (*parts, digests))


class SignedShard:
    """Signs the versions of one shard at the server.

    kernels: of the shard, in order.
    empty: the bytes of a kernel that has learnt nothing.
    """

    def __init__(self, signing: ModelSigning, kernels: Sequence[int], empty: bytes) -> None:
        self._signing = signing
        self._digests = dict.fromkeys(kernels, _digest(empty))

    def note(self, kernel: int, content: bytes) -> None:
        """Note a kernel's new parameters."""
        self._digests[kernel] = _digest(content)

    def sign(self, marker: ShardVersion) -> bytes:
        """The record that signs this version."""
        return SIGNED_VERSION.encode(self._signing.signed(marker, b"".join(self._digests.values())))


class StagedShard:
    """A shard's parameters that a client received and no signed version has named yet.

    unsigned: counts parameters that no signed version named.
    """

    def __init__(self, signing: ModelSigning, kernels: Sequence[int], empty: bytes) -> None:
        self._signing = signing
        self._held = dict.fromkeys(kernels, _digest(empty))
        self._candidates: dict[int, dict[bytes, NDArray[Any]]] = {kernel: {} for kernel in kernels}
        self._version = 0
        self.unsigned = 0

    def add(self, kernel: int, content: bytes, parameters: NDArray[Any]) -> None:
        """Note parameters that may belong to the next version."""
        candidates = self._candidates[kernel]
        candidates[_digest(content)] = parameters
        if len(candidates) > MOST_CANDIDATES:
            del candidates[next(iter(candidates))]
            self.unsigned += 1

    def digests(self, version: SignedVersion) -> dict[int, bytes]:
        """The version's digest of each kernel; BadRecord if it is not signed."""
        return self._signing.digests(version, tuple(self._held))

    def take(self, version: SignedVersion, wanted: dict[int, bytes]) -> dict[int, NDArray[Any]]:
        """The parameters of the kernels that this version changes.

        wanted: the version's digest of each kernel, as :meth:`digests` gives it.

        BadRecord if the version is older than the last one taken, or if parameters are missing. Candidates
        are then kept."""
        number = version.marker.model_version
        if number < self._version:
            raise BadRecord(
                "replayed", f"version {number} of the model, repeated after version {self._version}"
            )
        changed = {kernel: digest for kernel, digest in wanted.items() if digest != self._held[kernel]}
        lost = [kernel for kernel, digest in changed.items() if digest not in self._candidates[kernel]]
        if lost:
            raise BadRecord(
                "incomplete",
                f"the parameters of the kernels {lost[:5]} of version {number} are not as they were signed: "
                "somebody else has written to the topic of the model; remove that right and restart the "
                "server, which writes them again",
            )
        taken = {kernel: self._candidates[kernel][digest] for kernel, digest in changed.items()}
        self.unsigned += sum(
            digest != wanted[kernel] for kernel, found in self._candidates.items() for digest in found
        )
        self._held, self._version = wanted, number
        for candidates in self._candidates.values():
            candidates.clear()
        return taken


def empty_row(row_length: int, dtype: Any) -> bytes:
    """The bytes of a kernel that has learnt nothing."""
    return bytes(row_length * np.dtype(dtype).itemsize)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, person=b"streamfl kernel").digest()
