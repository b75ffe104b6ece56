"""What the coordinator remembers of the present training."""

from __future__ import annotations

import msgspec

from streamfl.encoding.wire import Count

__all__ = ["ALIGNING", "FAILED", "GATHERING", "ROUND", "TRAINED", "CoordinatorRun"]

# Phases. GATHERING waits for parties to be ready, ALIGNING for their rows, ROUND for a round's uploads.
GATHERING, ALIGNING, ROUND, TRAINED, FAILED = range(5)


class CoordinatorRun(msgspec.Struct, array_like=True):
    """The state of the present training.

    number: of the training, from 1; 0: there was none.
    phase: one of the above. round: the latest.
    ready: by party that is ready, digest of the key that it takes.
    key: digest of the run's key.
    joined: by party, how many numbers each of its uploads has.
    opened: by party, digest of the upload that was decrypted in the round.
    losses: of the epoch's batches.
    loss: of the present batch, in a round for curvature.
    failure: the text for the operator.
    """

    number: Count = 0
    phase: int = GATHERING
    round: Count = 0
    ready: dict[str, bytes] = msgspec.field(default_factory=dict)
    joined: dict[str, Count] = msgspec.field(default_factory=dict)
    alignment: bytes = b""
    batches: Count = 0
    opened: dict[str, bytes] = msgspec.field(default_factory=dict)
    losses: list[float] = msgspec.field(default_factory=list)
    loss: float = 0.0
    failure: str = ""
    key: bytes = b""
