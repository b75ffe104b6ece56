"""Frequencies of random features, drawn from a kernel's spectral density: each party draws its own columns,
any range of features.

A draw is a function of a key, the feature's number and the column's name. For private frequencies the key is
the party's secret: nobody else can draw them, and the sums over the parties are still features of the same
kernel. For shared frequencies, as in the paper, the key is the seed.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv, ndtri

from streamfl.contract.seeding import philox_key
from streamfl.fdskl.sums.keystream import keystream
from streamfl.identity.keys import derive

__all__ = ["Frequencies", "SpectralDensity"]

# Features that are drawn together, fewer if there are many columns.
CHUNK, CHUNK_NUMBERS = 1024, 2**20
# Numbers that are kept once drawn: 64 MB. What does not fit is drawn again.
KEPT_NUMBERS = 2**23


@dataclass(frozen=True)
class SpectralDensity:
    """The density that frequencies of a shift-invariant kernel are drawn from. ValueError for parameters that
    have none.

    - gaussian: exp(-||r||_2^2 / (2 bandwidth^2)); a normal for each column, divided by the bandwidth.
    - laplacian: exp(-||r||_1 / bandwidth); a Cauchy variable for each column, divided by the bandwidth.
    - matern: 2^(1-nu) / Gamma(nu) s^nu K_nu(s), s = sqrt(2 nu) ||r||_2 / bandwidth; a normal for each column,
      divided by the bandwidth and by sqrt(c). c is drawn once for a feature: a chi-square variable of 2 nu
      degrees of freedom divided by 2 nu.

    Source: Rahimi & Recht 2007, theorem 1.
    bandwidth: in units of the inputs.
    matern_nu: smoothness, from 1/2 to 50.
    share: with this probability a feature looks at a column, and its frequency there is divided by
        sqrt(share); otherwise it is 0. The kernel is then one of sums over few columns. 1: every feature
        looks at every column.
    """

    kernel: Literal["gaussian", "laplacian", "matern"]
    bandwidth: float
    matern_nu: float = 1.5
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.kernel not in ("gaussian", "laplacian", "matern"):
            raise ValueError(f"kernel {self.kernel!r} is not one of gaussian, laplacian, matern")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ValueError(f"bandwidth {self.bandwidth!r} is not a positive number")
        if not 0 < self.share <= 1:
            raise ValueError(f"share {self.share!r} is not above 0 and up to 1")
        if not 0.5 <= self.matern_nu <= 50:
            raise ValueError(f"matern_nu {self.matern_nu!r} is not from 0.5 to 50")


class Frequencies:
    """omega_i on one party's columns and b_i where the party owns feature i, for any range of features.

    density: of the frequencies.
    columns: names of the party's columns, each once. Two columns with one name would have the same
    frequencies.
    seed: of the federation; shared frequencies, owners and Matern scales are drawn from it.
    secret: the party's, for private frequencies; None for shared ones.
    parties: how many there are.
    own: number of the party.
    active: number of the party with labels, which owns no feature unless it is alone.
    """

    def __init__(
        self,
        density: SpectralDensity,
        columns: Sequence[str],
        seed: int,
        secret: bytes | None,
        parties: int,
        own: int,
        active: int,
    ) -> None:
        if len(set(columns)) < len(columns):
            raise ValueError("a column is named twice")
        if not (0 <= own < parties and 0 <= active < parties):
            raise ValueError(f"parties {own} and {active} are not among {parties}")
        self._density = density
        self._columns = tuple(columns)
        self._parties, self._own, self._active = parties, own, active
        self._owners, self._scales = (_Stream(seed, None, name) for name in ("owners", "scales"))
        self._offsets = _Stream(seed, secret, "offsets")
        self._of_column = [_Stream(seed, secret, "frequencies", name) for name in columns]
        self._chosen = [_Stream(seed, secret, "chosen", name) for name in columns]
        self._chunk = max(1, min(CHUNK, CHUNK_NUMBERS // (len(columns) + 1)))
        self._most_chunks = max(1, KEPT_NUMBERS // (self._chunk * (len(columns) + 1)))
        self._chunks: dict[int, NDArray[np.float64]] = {}

    @property
    def fingerprint(self) -> str:
        """16 digits that differ if seed, secret, density or columns differ. They show nothing of the
        secret."""
        content = repr((self._density, self._parties, self._own, self._active, self._columns)).encode()
        keys = b"".join(stream.fingerprint for stream in (self._offsets, *self._of_column))
        return hashlib.blake2b(keys + content, digest_size=8, person=b"fdskl frequency").hexdigest()

    def frequencies(self, first: int, count: int) -> NDArray[np.float64]:
        """omega_i on the party's columns for features first .. first + count - 1: (count, columns)."""
        drawn = np.empty((count, len(self._columns)))
        for column, stream in enumerate(self._of_column):
            drawn[:, column] = stream.uniform(first, count)
        if self._density.kernel == "laplacian":
            drawn -= 0.5
            drawn *= math.pi
            np.tan(drawn, out=drawn)
        else:
            ndtri(drawn, out=drawn)
        if self._density.kernel == "matern":
            nu = self._density.matern_nu
            # All columns share one scale, drawn from the shared seed. Otherwise the kernel would be a product
            # over the parties.
            scale = gammaincinv(nu, self._scales.uniform(first, count)) / nu
            drawn /= np.sqrt(scale)[:, None]
        drawn /= self._density.bandwidth
        if (share := self._density.share) < 1:
            for column, stream in enumerate(self._chosen):
                drawn[:, column] *= (stream.uniform(first, count) < share) / math.sqrt(share)
        return drawn

    def offsets(self, first: int, count: int) -> NDArray[np.float64]:
        """b_i, uniform on 0 .. 2 pi, where the party owns feature i, and 0 elsewhere: (count,)."""
        return np.where(
            self.owners(first, count) == self._own, 2 * math.pi * self._offsets.uniform(first, count), 0.0
        )

    def owners(self, first: int, count: int) -> NDArray[np.int64]:
        """p'(i), the party whose b_i is the feature's phase, the same at all parties: (count,). (Algorithm
        3.)

        All parties but the active one have the same probability.
        """
        if self._parties == 1:
            return np.zeros(count, np.int64)
        drawn = (self._owners.uniform(first, count) * (self._parties - 1)).astype(np.int64)
        return drawn + (drawn >= self._active)

    def partial_phases(
        self, inputs: NDArray[np.float64], ranges: Sequence[tuple[int, int]]
    ) -> NDArray[np.float64]:
        """omega_i x_p, plus b_i where the party owns i, feature after feature of all ranges: (n, sum of
        counts). (Algorithm 3.)

        inputs: (n, columns), in the order of the party's columns.
        ranges: (first, count) of each range of features.
        """
        inputs = np.asarray(inputs, np.float64)
        if inputs.ndim != 2 or inputs.shape[1] != len(self._columns):
            raise ValueError(f"inputs of shape {inputs.shape} have not {len(self._columns)} columns")
        # A column of ones behind the inputs makes the product add the offsets at no cost.
        inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
        result = np.empty((len(inputs), sum(count for _, count in ranges)))
        at = 0
        for first, count in ranges:
            for drawn in self._drawn(first, count):
                np.matmul(inputs, drawn.T, out=result[:, at : at + len(drawn)])
                at += len(drawn)
        return result

    def _drawn(self, first: int, count: int) -> Iterator[NDArray[np.float64]]:
        """Frequencies of the range, chunk by chunk, with offsets in the last column. A chunk that is kept is
        not drawn again."""
        end = first + count
        for number in range(first // self._chunk, -(-end // self._chunk)):
            start = number * self._chunk
            if number not in self._chunks:
                while len(self._chunks) >= self._most_chunks:
                    del self._chunks[next(iter(self._chunks))]
                drawn = self.frequencies(start, self._chunk), self.offsets(start, self._chunk)
                self._chunks[number] = np.hstack([drawn[0], drawn[1][:, None]])
            yield self._chunks[number][max(first - start, 0) : end - start]


class _Stream:
    """Uniforms with random access: number i is a function of the seed, the secret and the path alone.

    Without a secret it is the stream (seed, "fdskl", path) of :mod:`streamfl.contract.seeding`. That is
    Philox, which is no cipher, so a secret is used as a key of AES.
    """

    __slots__ = ("_key", "_secret")

    def __init__(self, seed: int, secret: bytes | None, *path: str) -> None:
        self._key = philox_key(seed, "fdskl", *path)
        named = struct.pack("<q", seed) + b"".join(
            struct.pack("<I", len(part.encode())) + part.encode() for part in path
        )
        self._secret = None if secret is None else derive(secret, b"fdskl " + named)

    @property
    def fingerprint(self) -> bytes:
        """Bytes that differ between streams and show nothing of a secret."""
        return self._key.tobytes() if self._secret is None else derive(self._secret, b"fdskl fingerprint")

    def uniform(self, first: int, count: int) -> NDArray[np.float64]:
        """Numbers first .. first + count - 1, each strictly between 0 and 1: (count,)."""
        if first < 0 or count < 0:
            raise ValueError(f"features {first} .. {first + count - 1} are none")
        if self._secret is not None:
            words = keystream(self._secret, count, 64, first)
        else:
            # Four words a counter step.
            block, skipped = divmod(first, 4)
            words = np.random.Philox(key=self._key, counter=block).random_raw(skipped + count)[skipped:]
        # One word in 2^53 would be rounded to 1, where the normal quantile is infinite.
        return np.asarray(
            np.minimum(((words >> np.uint64(11)) + 0.5) * 2.0**-53, 1 - 2.0**-53), dtype=np.float64
        )
