"""Fixed-point numbers, with an exponent and a bound that are public and the same for all values of a message.

An encoder whose exponent follows the value reveals the value's size to everybody. Here each kind of number
has a fixed count of fraction bits, and a bound from the configuration. Sums and products of kinds are kinds.
So the bound of a result, and the slot that it needs in a packed plaintext, are derived and not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["FixedPoint", "Kinds", "OutOfBounds", "kinds"]

INT64_BITS = 63


class OutOfBounds(ValueError):
    """One of the member's own values is beyond the public bound."""


@dataclass(frozen=True)
class FixedPoint:
    """Whole numbers v that stand for v 2^-fraction_bits, |v| <= largest.

    >>> inner_products, inputs = FixedPoint.bounded(64, 24), FixedPoint.bounded(256, 8)
    >>> (inner_products * inputs).sum_of(1000).slot_bits
    57
    """

    fraction_bits: int
    largest: int

    @classmethod
    def bounded(cls, bound: float, fraction_bits: int) -> FixedPoint:
        """The kind of values of size ``bound`` or less. ``bound`` is above 0."""
        if not (bound > 0 and fraction_bits >= 0):
            raise ValueError(
                f"bound {bound}, {fraction_bits} fraction bits: a bound is above 0, and bits are at least 0"
            )
        return cls(fraction_bits, int(Fraction(bound) * 2**fraction_bits))

    @property
    def slot_bits(self) -> int:
        """Bits of a signed number of this kind."""
        return self.largest.bit_length() + 1

    @property
    def bound(self) -> float:
        """The largest value."""
        return float(Fraction(self.largest, 2**self.fraction_bits))

    def __add__(self, other: FixedPoint) -> FixedPoint:
        """The kind of a sum of one value of each. ValueError if the exponents differ."""
        if self.fraction_bits != other.fraction_bits:
            raise ValueError(f"{self.fraction_bits} and {other.fraction_bits} fraction bits cannot be added")
        return FixedPoint(self.fraction_bits, self.largest + other.largest)

    def __mul__(self, other: FixedPoint) -> FixedPoint:
        """The kind of a product of one value of each."""
        return FixedPoint(self.fraction_bits + other.fraction_bits, self.largest * other.largest)

    def sum_of(self, count: int) -> FixedPoint:
        """The kind of a sum of ``count`` values."""
        return FixedPoint(self.fraction_bits, self.largest * count)

    def clip(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values, clipped to the bound. NaN stays, so that :meth:`encode` refuses it."""
        return np.asarray(np.clip(values, -self.bound, self.bound), dtype=np.float64)

    def encode(self, values: NDArray[np.float64]) -> NDArray[Any]:
        """round(v 2^fraction_bits), half to even, in the values' shape: int64, or Python integers if that is
        too short.

        OutOfBounds if a value is not finite or beyond the bound. Not clipped: a clipped inner product would
        be another model's."""
        values = np.asarray(values, dtype=np.float64)
        if not np.isfinite(values).all():
            raise OutOfBounds("a value is not finite")
        with np.errstate(over="ignore"):
            scaled = np.rint(np.ldexp(values, self.fraction_bits))
        if not np.isfinite(scaled).all():
            raise OutOfBounds(f"a value is beyond the bound of {self.bound:g}")
        if self.slot_bits <= INT64_BITS and np.all(np.abs(scaled) < 2.0**INT64_BITS):
            encoded: NDArray[Any] = scaled.astype(np.int64)
        else:
            encoded = np.array([int(number) for number in scaled.flat], dtype=object).reshape(scaled.shape)
        if encoded.size and np.max(np.abs(encoded)) > self.largest:
            raise OutOfBounds(f"a value is beyond the bound of {self.bound:g}")
        return encoded

    def decode(self, numbers: NDArray[Any]) -> NDArray[np.float64]:
        """The values of whole numbers, each rounded once, in the numbers' shape.

        numbers: int64, or Python integers.
        """
        divisor = 2**self.fraction_bits
        flat = [int(number) / divisor for number in np.asarray(numbers).flat]
        return np.array(flat, dtype=np.float64).reshape(np.shape(numbers))


@dataclass(frozen=True)
class Kinds:
    """The kind of the numbers in each kind of message. All members derive them from the same public settings.

    inputs: x, clipped to the bound.
    inner_products: u = x'w of a party, refused beyond the bound.
    labels: y in the exponent of inner products.
    residuals: D = sum_p u_p - 2 y, four times the paper's d.
    gradients: sum_i D_i x_i over a batch, and the column sum_i D_i y_i for the loss.
    changes: s'x of a party, s the difference of two mean iterates.
    changes_sum: of all parties.
    curvature: sum_i h_i x_i over the Hessian's batch.
    """

    inputs: FixedPoint
    inner_products: FixedPoint
    labels: FixedPoint
    residuals: FixedPoint
    gradients: FixedPoint
    changes: FixedPoint
    changes_sum: FixedPoint
    curvature: FixedPoint


def kinds(
    parties: int,
    batch: int,
    hessian_batch: int,
    *,
    input_bound: float = 256.0,
    input_fraction_bits: int = 8,
    inner_bound: float = 64.0,
    inner_fraction_bits: int = 24,
) -> Kinds:
    """The kinds of a federation.

    parties: number of hosts and guest.
    batch, hessian_batch: records of S and S_H. The bounds and bits are public settings.
    """
    inputs = FixedPoint.bounded(input_bound, input_fraction_bits)
    # In the sum for the loss the labels are a column of inputs, so the bound has to allow 1.
    if input_bound < 1:
        raise ValueError(
            f"input bound {input_bound:g}: a label is 1, and inputs are bounded by at least that"
        )
    inner_products = FixedPoint.bounded(inner_bound, inner_fraction_bits)
    labels = FixedPoint.bounded(1.0, inner_fraction_bits)
    residuals = inner_products.sum_of(parties) + labels.sum_of(2)
    changes = inner_products.sum_of(2)
    return Kinds(
        inputs=inputs,
        inner_products=inner_products,
        labels=labels,
        residuals=residuals,
        gradients=(residuals * inputs).sum_of(batch),
        changes=changes,
        changes_sum=changes.sum_of(parties),
        curvature=(changes.sum_of(parties) * inputs).sum_of(hessian_batch),
    )
