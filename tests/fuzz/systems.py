"""All that is given wrong messages: a system is fuzzed once it is named here."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from fuzz.pofmkl import POFMKL
from fuzz.targets import Target
from fuzz.vafl import VAFL

__all__ = ["SYSTEMS", "targets"]

SYSTEMS = (POFMKL, VAFL)


def targets(random: Random, only: str = "") -> Iterator[Target]:
    """All of them whose names contain ``only``, new, each made when it is asked for."""
    for system in SYSTEMS:
        for name, make in system.targets(random).items():
            if only in name:
                yield make(name)
