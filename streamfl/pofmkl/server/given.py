"""What the server has besides its configuration file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.pofmkl.learning.server_steps import ServerStep
from streamfl.pofmkl.signed_model import ModelSigning

__all__ = ["ServerGiven"]


@dataclass(frozen=True, kw_only=True)
class ServerGiven:
    """step: makes what moves the parameters of a shard, from its number of kernels.

    fingerprints: of the federation's settings, and of these before the features were named.
    signing: signs each version; None: members have no keys.
    """

    step: Callable[[int], ServerStep]
    fingerprints: tuple[int, ...]
    signing: ModelSigning | None = None
