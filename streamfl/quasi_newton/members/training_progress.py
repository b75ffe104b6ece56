"""A party's progress in a training."""

from __future__ import annotations

import msgspec

from streamfl.encoding.wire import Count

__all__ = [
    "ADDING",
    "ALIGNING",
    "DECIDING",
    "FAILED",
    "GATHERING",
    "OPENING",
    "OUTPUTS",
    "READY",
    "TRAINED",
    "TrainingProgress",
]

# Phases. ALIGNING finds the common entities. In a round, OUTPUTS waits for peers' vectors, OPENING for what
# the coordinator decrypted, ADDING for hosts' inner products, DECIDING for the coordinator's decision.
GATHERING, READY, ALIGNING, OUTPUTS, OPENING, ADDING, DECIDING, TRAINED, FAILED = range(9)


class TrainingProgress(msgspec.Struct, array_like=True):
    """A party's place in a training; remembered as ``progress``.

    run, round, alignment: as in messages.
    modulus: of the run's key.
    batches: how many.
    digest: finds the mask of the round's upload again.
    gradient: g of the round's iteration.
    step, curvature: s and v, in a round for curvature.
    failure: the text for the operator.
    again: whether the party has reported that it is ready for another run after this one.
    told: digests of the keys for which it has reported ready since this run began, the latest last.
    """

    run: Count = 0
    phase: int = GATHERING
    round: Count = 0
    alignment: bytes = b""
    modulus: bytes = b""
    batches: Count = 0
    digest: bytes = b""
    gradient: bytes = b""
    step: bytes = b""
    curvature: bytes = b""
    failure: str = ""
    again: bool = False
    told: list[bytes] = msgspec.field(default_factory=list)

    @property
    def has_said(self) -> bool:
        """Whether the party has reported to the coordinator that it is ready for the next run."""
        return self.phase == READY or self.again

    def become(self, other: TrainingProgress) -> None:
        """Copy all fields of ``other`` in place, because other owners hold this object."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(other, name))
