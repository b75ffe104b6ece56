"""All that is given wrong messages: every installed system that has a part for it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from streamfl.system import parts_of_systems
from streamfl.testing.fuzz.federations import Fuzzed
from streamfl.testing.fuzz.targets import Target

__all__ = ["fuzzed_systems", "targets"]


def fuzzed_systems() -> list[Fuzzed]:
    """What each system brings."""
    return list(parts_of_systems("fuzz").values())


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """All of them whose names contain ``only``, new, each made when it is asked for."""
    for system in fuzzed_systems():
        for name, make in system.targets(random).items():
            if only in name:
                yield make(name)
