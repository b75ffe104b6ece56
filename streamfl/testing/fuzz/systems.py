"""The targets of all installed systems that provide fuzzing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random

from streamfl.contract.system import load, systems_with
from streamfl.testing.fuzz.clients import client_targets
from streamfl.testing.fuzz.targets import Target
from streamfl.testing.proof import installed_proofs

__all__ = ["targets"]


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """Makes all targets whose names contain ``only``, one at a time."""
    members = systems_with("members")
    for system, proof in installed_proofs().items():
        own: Mapping[str, Callable[[str], Target]] = {}
        if proof.fuzz:
            own = load(proof.fuzz)(random)
        elif system in members:
            own = client_targets(random, system, load(members[system].members or ""))
        for name, make in own.items():
            if only in name:
                yield make(name)
