"""The targets of all installed systems that provide fuzzing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from streamfl.contract.system import load
from streamfl.testing.fuzz.federations import Fuzzed
from streamfl.testing.fuzz.targets import Target
from streamfl.testing.proof import installed_proofs

__all__ = ["fuzzed_systems", "targets"]


def fuzzed_systems() -> list[Fuzzed]:
    return [load(proof.fuzz) for proof in installed_proofs().values() if proof.fuzz]


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """Makes all targets whose names contain ``only``, one at a time."""
    for system in fuzzed_systems():
        for name, make in system.targets(random).items():
            if only in name:
                yield make(name)
