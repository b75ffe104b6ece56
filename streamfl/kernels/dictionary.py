"""Kernel dictionaries: the kernels that a federation combines, numbered from 0 in the order of the tuple."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from streamfl.contract.role import ConfigurationError

__all__ = ["FAMILIES", "Kernel", "grid", "paper_dictionary"]

FAMILIES = ("gaussian", "laplacian", "matern")
# A row of frequencies takes 2 nu more normals, and above this smoothness the kernel hardly differs from the
# Gaussian.
LARGEST_SMOOTHNESS = 50.0


@dataclass(frozen=True)
class Kernel:
    """One shift-invariant kernel, of distance r = x - x'.

    - gaussian: exp(-||r||_2^2 / (2 bandwidth^2));
    - laplacian: exp(-||r||_1 / bandwidth);
    - matern of smoothness nu: 2^(1-nu) / Gamma(nu) s^nu K_nu(s) with s = sqrt(2 nu) ||r||_2 / bandwidth. nu
      is a multiple of 1/2 up to 50 (1/2 is exp(-||r||_2 / bandwidth)), so that its spectral density,
      Student's t, can be drawn from normals alone.

    ``bandwidth`` is in the unit of the inputs. ConfigurationError for an unknown family, a bandwidth that is
    not positive, a Matern kernel without a usable smoothness, or another kernel with one.
    """

    family: str
    bandwidth: float
    smoothness: float | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ConfigurationError(f"kernel family {self.family!r} is not one of {', '.join(FAMILIES)}")
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise ConfigurationError(f"kernel bandwidth {self.bandwidth!r} is not a positive number")
        if self.family == "matern":
            nu = self.smoothness
            if nu is None or not 0 < nu <= LARGEST_SMOOTHNESS or 2 * nu != int(2 * nu):
                raise ConfigurationError(
                    f"smoothness {nu!r} of a matern kernel is not one of 0.5, 1, 1.5, 2, 2.5, ..., "
                    f"{LARGEST_SMOOTHNESS:g}"
                )
        elif self.smoothness is not None:
            raise ConfigurationError(
                f"smoothness {self.smoothness!r} is for matern kernels, not for {self.family}"
            )


@cache
def paper_dictionary() -> tuple[Kernel, ...]:
    """51 Gaussian kernels of bandwidth sigma_i = 10^((2 i - 52) / 25), i = 1 .. 51: from 0.01 to 100.

    The POF-MKL paper names no bandwidths; these are what ``preset = "paper"`` stands for.

    >>> [round(paper_dictionary()[i].bandwidth, 12) for i in (0, 25, 50)]
    [0.01, 1.0, 100.0]
    """
    return tuple(Kernel("gaussian", 10.0 ** ((2 * i - 52) / 25)) for i in range(1, 52))


def grid(
    families: Sequence[str], bandwidths: Sequence[float], smoothness: float | None = None
) -> tuple[Kernel, ...]:
    """Every family with every bandwidth, family by family; ``smoothness`` applies to the Matern kernels
    alone.

    ConfigurationError as for :class:`Kernel`, and for a grid that holds no kernel, or one twice.

    >>> [(kernel.family, kernel.bandwidth) for kernel in grid(["gaussian", "laplacian"], [0.1, 1.0])]
    [('gaussian', 0.1), ('gaussian', 1.0), ('laplacian', 0.1), ('laplacian', 1.0)]
    """
    kernels = tuple(
        Kernel(family, float(bandwidth), smoothness if family == "matern" else None)
        for family in families
        for bandwidth in bandwidths
    )
    if not kernels:
        raise ConfigurationError("a kernel dictionary needs at least one family and one bandwidth")
    if len(set(kernels)) < len(kernels):
        raise ConfigurationError("a kernel dictionary names the same family or the same bandwidth twice")
    return kernels
