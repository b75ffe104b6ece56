"""Roles with a learner, a step or a fingerprint of a test's own, and for the rest with settings that a user could write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.role import PofmklServer

__all__ = ["new_server", "staleness"]


def staleness(lockstep: bool) -> str:
    """learning.staleness"""
    return "lockstep" if lockstep else "async"


def new_server(
    *,
    clients: int,
    kernels: int,
    features: int,
    dimension: int | None,
    step: Callable[[int], ServerStep] | None = None,
    fingerprints: tuple[int, ...] = (0,),
    federation: dict[str, Any] | None = None,
    learning: dict[str, Any] | None = None,
) -> PofmklServer:
    """A server without an open partition.

    kernels, features: N and D. dimension: of the samples. step: left out, that of equation (10).
    federation, learning: other keys of these sections.
    """
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "plant", "clients": clients, "features": dimension, **(federation or {})},
            "role": {"kind": "pofmkl-server"},
            "learning": {"features_per_kernel": features, **(learning or {})},
            "kernels": {"views": ["centred"], "bandwidths": [1.0 + number for number in range(kernels)]},
        }
    )
    return PofmklServer(settings, ServerGiven(step=step or (lambda kernels: AveragedStep(clients)), fingerprints=fingerprints))
