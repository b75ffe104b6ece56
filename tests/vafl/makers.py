"""A coordinator or a party of a small federation, of which a test says only what it is about."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamfl.configuration.settings import load_settings
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.role import AlignmentPolicy, HeadSteps, VaflCoordinator
from streamfl.vafl.functions.heads import SQUARE, SumHead

__all__ = ["make_coordinator", "party_settings"]


def make_coordinator(**said: Any) -> VaflCoordinator:
    """Of embeddings of size 1 from a bank and a shop that are added up, with the square loss; ``said`` wins."""
    usual: dict[str, Any] = {
        "parties": ("bank", "shop"),
        "embedding_size": 1,
        "head": SumHead(np.float64),
        "loss": SQUARE,
        "steps": HeadSteps(),
        "alignment": AlignmentPolicy(),
        "seed": 0,
        "dtype": np.float64,
    }
    return VaflCoordinator(**{**usual, **said})


def party_settings(**sections: dict[str, Any]) -> VaflSettings:
    """Of a party of one feature, alone with embeddings of size 1; with these sections beside."""
    usual = {
        "federation": {"name": "f", "parties": ["a"], "embedding_size": 1},
        "role": {"kind": "vafl-party"},
        "party": {"name": "a"},
        "samples": {"topic": "t", "features": ["x"]},
    }
    return load_settings(None, VaflSettings, {**usual, **sections})
