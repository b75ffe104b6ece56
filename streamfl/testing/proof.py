"""What proves that a system works, and where it is found.

A system's manifest does not name it, because a worker's image holds no proof. It is registered in the group
``streamfl.proofs``, under the system's name, by the package that holds it::

    [project.entry-points."streamfl.proofs"]
    running-mean = "running_mean.proof:PROOF"
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import entry_points

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import installed_systems

__all__ = ["GROUP", "Proof", "installed_proofs"]

GROUP = "streamfl.proofs"


@dataclass(frozen=True)
class Proof:
    """The proof of one system. Each value is a place, "module:attribute", and is loaded only when it is
    needed.

    faults: a :class:`streamfl.testing.faults.FaultSimulation`: scenarios by seed, and what has to hold in
    each. None, where the manifest names ``members``: scenarios of these. Nothing is lost or doubled in them.
    check: a :data:`streamfl.testing.faults.clients.Check`: what else has to hold in such scenarios.
    fuzz: a function that takes a ``random.Random`` and returns, by name, what makes each target of wrong
    messages; most come from :func:`streamfl.testing.fuzz.targets.member_targets`. None, where the manifest
    names ``members``: a target for each of these.
    """

    faults: str | None = None
    fuzz: str | None = None
    check: str | None = None


@functools.cache
def installed_proofs() -> dict[str, Proof]:
    """The proof of each installed system that has one, by the system's name, in the order of the systems.

    If a proof cannot be loaded, this raises. Without it a run would say that everything holds.
    """
    found: dict[str, Proof] = {}
    for entry in entry_points(group=GROUP):
        proof = entry.load()
        if not isinstance(proof, Proof):
            raise ConfigurationError(
                f"{entry.value} in the group {GROUP}: it is a {type(proof).__name__}, not a Proof"
            )
        found[entry.name] = proof
    return {system.name: found[system.name] for system in installed_systems() if system.name in found}
