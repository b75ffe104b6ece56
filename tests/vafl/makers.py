"""A coordinator of a small federation, of which a test says only what it is about."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamfl.vafl.coordinator import Alignment, HeadSteps, VaflCoordinator
from streamfl.vafl.heads import SQUARE, SumHead

__all__ = ["make_coordinator"]


def make_coordinator(**said: Any) -> VaflCoordinator:
    """Of embeddings of size 1 from a bank and a shop that are added up, with the square loss; ``said`` wins."""
    usual: dict[str, Any] = {
        "parties": ("bank", "shop"),
        "embedding_size": 1,
        "head": SumHead(np.float64),
        "loss": SQUARE,
        "steps": HeadSteps(),
        "alignment": Alignment(),
        "seed": 0,
        "dtype": np.float64,
    }
    return VaflCoordinator(**{**usual, **said})
