"""Names of a federation's kernels, for people."""

from __future__ import annotations

from streamfl.pofmkl.config import PofmklSettings

__all__ = ["kernel_names"]


def kernel_names(settings: PofmklSettings) -> list[str]:
    """The names of all kernels, in their order."""
    if settings.learning.preset == "paper":
        return [f"{one.family} {one.bandwidth:g}" for one in settings.kernels.dictionary()]
    return [f"{view} {bandwidth:g}" for view in settings.views for bandwidth in settings.bandwidths]
