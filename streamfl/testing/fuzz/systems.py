"""The targets of all installed systems that provide fuzzing."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from streamfl.contract.system import load
from streamfl.testing.fuzz.targets import Target
from streamfl.testing.proof import installed_proofs

__all__ = ["targets"]


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """Makes all targets whose names contain ``only``, one at a time."""
    for proof in installed_proofs().values():
        for name, make in load(proof.fuzz)(random).items() if proof.fuzz else ():
            if only in name:
                yield make(name)
