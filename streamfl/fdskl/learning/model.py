"""The kernel model of a partition: random features that are kept, and their coefficients. Only active parties
have it.

If several parties are active, each has the coefficients of its own iterations, and of the others' only the
number of features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Amount, check_within
from streamfl.encoding.wire import Count, decode_array, encode_array
from streamfl.fdskl.learning.doubly_stochastic import SMALLEST_SCALE
from streamfl.fdskl.learning.section import MOST_FEATURES
from streamfl.fdskl.messages import LARGEST_BANDWIDTH, SMALLEST_BANDWIDTH, FeatureRange
from streamfl.fdskl.state import ALPHAS, MODEL
from streamfl.state.changelog import ChangedParts

__all__ = ["Expansion", "KernelModel"]

# Largest coefficient as it is remembered: divided by the common factor of all. Sums of squares of sums of
# these are finite.
LARGEST_ALPHA = 1e100


@dataclass(frozen=True)
class Expansion:
    """f(x) = sum_i alpha_i phi_i(x)   (FDSKL, eq. 7) as it was at a version.

    alphas: coefficients of the features from ``first`` on, 0 for those of other active parties.
    own: the features whose coefficients are this party's.
    """

    version: int
    first: int
    alphas: NDArray[np.float64]
    bandwidth: float
    own: tuple[FeatureRange, ...] = ()

    @property
    def ranges(self) -> list[FeatureRange]:
        """The features of the model. Without any f is 0."""
        return [FeatureRange(self.first, len(self.alphas))] if len(self.alphas) else []

    def evaluate(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """f of entities, (n,), from their features, (n, kept)."""
        return np.asarray(features @ self.alphas)

    def evaluate_own(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """f_l' of entities, (n,), from this party's own features of them, (n, those in ``own``)."""
        places = [np.arange(one.first, one.first + one.count) - self.first for one in self.own]
        return np.asarray(features @ self.alphas[np.concatenate(places)])


class _Record(msgspec.Struct, array_like=True):
    """The state of a model besides its coefficients.

    version: iterations that changed it.
    first, next: the kept features are ``first`` to ``next`` - 1.
    scale: the common factor of all coefficients.
    cursor: visits of blocks so far, with the solver ``newton``.
    bandwidth: of the kernel; 0: not known yet.
    dropped: how many features were dropped.
    """

    version: Count = 0
    first: Count = 0
    next: Count = 0
    scale: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    cursor: Count = 0
    bandwidth: Amount = 0.0
    dropped: Count = 0


class KernelModel:
    """Random features in blocks, the oldest first.

    parts: where it is remembered.
    block: features of a block, R.
    limit: most features kept, C. It is rounded down to a multiple of R.
    """

    def __init__(self, parts: ChangedParts, block: int, limit: int) -> None:
        self._remember = parts.single(MODEL, _Record, self.restore)
        self._kept_alphas = parts.named(ALPHAS, int, bytes, self.restore_alphas)
        self.block = block
        self.limit = limit // block * block
        self._record = _Record()
        self._alphas: dict[int, NDArray[np.float64]] = {}
        self._expansion: Expansion | None = None

    @property
    def version(self) -> int:
        return self._record.version

    @property
    def bandwidth(self) -> float | None:
        """The kernel's bandwidth; None: not known yet."""
        return self._record.bandwidth or None

    @property
    def kept(self) -> int:
        """How many features are kept."""
        return self._record.next - self._record.first

    @property
    def dropped(self) -> int:
        """How many features were dropped."""
        return self._record.dropped

    @property
    def visits(self) -> int:
        """How many blocks were visited so far."""
        return self._record.cursor

    @property
    def newest(self) -> FeatureRange:
        """The next block of features, which no iteration has used yet."""
        return FeatureRange(self._record.next, self.block)

    @property
    def oldest(self) -> FeatureRange:
        return FeatureRange(self._record.first, self.block)

    @property
    def is_full(self) -> bool:
        return self.kept >= self.limit

    def nth(self, number: int) -> FeatureRange:
        """The n-th kept block, the oldest first."""
        return FeatureRange(self._record.first + number * self.block, self.block)

    def alphas(self, block: FeatureRange) -> NDArray[np.float64]:
        """Coefficients of a kept block, or zeros of a new one, (R,): a copy."""
        own = self._alphas.get(block.first // self.block)
        return np.zeros(self.block) if own is None else own * self._record.scale

    def snapshot(self) -> Expansion:
        """The model as it is now. Later iterations do not change the snapshot."""
        record = self._record
        if self._expansion is None:
            numbers = range(record.first // self.block, record.next // self.block)
            blocks = [self._alphas.get(number, np.zeros(self.block)) for number in numbers]
            alphas = np.concatenate(blocks) * record.scale if blocks else np.zeros(0)
            own = _merged([number for number in numbers if number in self._alphas], self.block)
            self._expansion = Expansion(record.version, record.first, alphas, record.bandwidth, own)
        return self._expansion

    def set_bandwidth(self, bandwidth: float) -> None:
        """Set the bandwidth, before the first feature only: with another one the same numbers are other
        features."""
        assert not self._record.next
        self._record.bandwidth = bandwidth
        self._changed()

    def drop_oldest(self) -> None:
        record = self._record
        number = record.first // self.block
        if self._alphas.pop(number, None) is not None:
            self._kept_alphas.forget(number)
        record.first += self.block
        record.dropped += self.block
        self._changed()

    def keep_to_limit(self) -> bool:
        """If the limit was lowered, drop the oldest blocks and make a new version. Returns whether any were
        dropped."""
        if self.kept <= self.limit:
            return False
        while self.kept > self.limit:
            self.drop_oldest()
        self.end_iteration()
        return True

    def put(self, block: FeatureRange, alphas: NDArray[np.float64]) -> None:
        """Set coefficients, (R,), of a kept block or of the next new one. They are cut at
        ``LARGEST_ALPHA``."""
        number = block.first // self.block
        with np.errstate(over="ignore"):
            self._alphas[number] = np.clip(
                np.nan_to_num(alphas / self._record.scale), -LARGEST_ALPHA, LARGEST_ALPHA
            )
        self._record.next = max(self._record.next, block.first + self.block)
        self._kept_alphas.remember(number, encode_array(self._alphas[number]))
        self._changed()

    def decay_to(self, scale: float) -> None:
        """Set the common factor of all coefficients. If it is too small it is multiplied into them."""
        self._record.scale = scale
        if scale < SMALLEST_SCALE:
            for number, alphas in self._alphas.items():
                self._alphas[number] = alphas * scale
                self._kept_alphas.remember(number, encode_array(self._alphas[number]))
            self._record.scale = 1.0
        self._changed()

    @property
    def scale(self) -> float:
        return self._record.scale

    def take_turn(self, first: int, decay: float, bandwidth: float) -> None:
        """Take another active party's iteration. Its new features have no coefficients here. BadRecord for an
        impossible one.

        first: the first feature that is kept from now on.
        decay: factor of all earlier coefficients.
        """
        record = self._record
        if not (record.first <= first <= record.next and first % self.block == 0 and 0 < decay <= 1):
            raise BadRecord(
                "implausible",
                f"an iteration keeps features from {first} on, of {record.first} to {record.next}",
            )
        if not record.next:
            if not SMALLEST_BANDWIDTH <= bandwidth <= LARGEST_BANDWIDTH:
                raise BadRecord("implausible", f"an iteration with the bandwidth {bandwidth:g}")
            record.bandwidth = bandwidth
        self.decay_to(record.scale * decay)
        while record.first < first:
            self.drop_oldest()
        record.next += self.block
        self.end_iteration()

    def end_iteration(self) -> None:
        """Make a new version."""
        self._record.version += 1
        self._changed()

    def end_visits(self, count: int) -> None:
        """Count the blocks that were solved for, and make a new version."""
        self._record.cursor += count
        self.end_iteration()

    def restore(self, record: _Record) -> None:
        if record.first > record.next or record.first % self.block or record.next % self.block:
            raise BadRecord(
                "malformed",
                f"features {record.first} to {record.next} are remembered, in blocks of {self.block}",
            )
        if not SMALLEST_BANDWIDTH <= record.bandwidth <= LARGEST_BANDWIDTH and (
            record.next or record.bandwidth
        ):
            raise BadRecord(
                "malformed", f"{record.next} features are remembered, with the bandwidth {record.bandwidth:g}"
            )
        if record.next - record.first > MOST_FEATURES:
            raise BadRecord(
                "malformed",
                f"{record.next - record.first} features are remembered, {MOST_FEATURES} are kept at most",
            )
        self._record, self._expansion = record, None

    def restore_alphas(self, number: int, value: bytes) -> None:
        alphas = decode_array(value, np.float64, (self.block,), "alphas")
        check_within(alphas, -LARGEST_ALPHA, LARGEST_ALPHA, "alphas")
        self._alphas[number] = alphas
        self._expansion = None

    def check_whole(self) -> None:
        """BadRecord if coefficients of kept blocks were lost, where no other active party may have them."""
        kept = range(self._record.first // self.block, self._record.next // self.block)
        found = [number for number in kept if number in self._alphas]
        # Under at_least_once a crash may have dropped the oldest blocks before the record that says so.
        since = found[0] if found else 0
        lost = [number for number in kept if number not in self._alphas and number >= since]
        if lost:
            raise BadRecord(
                "malformed", f"the coefficients of {len(lost)} of {len(kept)} blocks of features are lost"
            )

    def _changed(self) -> None:
        self._expansion = None
        self._remember(self._record)


def _merged(numbers: list[int], block: int) -> tuple[FeatureRange, ...]:
    """The features of blocks with these numbers, neighbours together."""
    ranges: list[FeatureRange] = []
    for number in numbers:
        before = ranges[-1] if ranges else None
        if before is not None and before.first + before.count == number * block:
            ranges[-1] = FeatureRange(before.first, before.count + block)
        else:
            ranges.append(FeatureRange(number * block, block))
    return tuple(ranges)
