"""What the parties of a simulated federation used and said, whether it was committed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl import contributions
from streamfl.fdskl.active import ActivePartition
from streamfl.fdskl.masks import mask_key
from streamfl.fdskl.messages import Prediction
from streamfl.role import Record

__all__ = ["Said", "decode_prediction", "recorded"]


@dataclass
class Said:
    """What no topic shows.

    lives: the parties' names, one for each secret that was made.
    hidden: by party and key of a keystream, digest of the numbers that it hid.
    reused: keystreams that hid two different things.
    trouble: whether the active party ever said that nobody answers. announced, abandoned: whether it asked for any round, or gave
    one up.
    begun: by partition and version of the model, the entities of each iteration that began there.
    """

    lives: list[str] = field(default_factory=list)
    hidden: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    trouble: bool = False
    announced: bool = False
    abandoned: bool = False
    begun: dict[tuple[int, int], list[list[str]]] = field(default_factory=dict)

    def hides(self, numbers: NDArray[Any], secrets: Mapping[int, bytes], own: int, identity: bytes, purpose: bytes) -> None:
        """A party adds a keystream for each of these secrets to its numbers."""
        digest = hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
        for peer, secret in secrets.items():
            place = own, mask_key(secret, identity, purpose, 8 * numbers.dtype.itemsize)
            if self.hidden.setdefault(place, digest) != digest:
                self.reused.append(f"party {own} hid two things with one mask between it and party {peer}")


def decode_prediction(record: Record) -> Prediction:
    return msgspec.json.decode(record.value or b"", type=Prediction)


@contextmanager
def recorded(said: Said) -> Iterator[None]:
    """Whatever roles of this process mask, or begin to learn from, is noted meanwhile."""
    masked, next_iteration = contributions.masked, ActivePartition._next_iteration

    def noted(
        numbers: NDArray[Any], secrets: Mapping[int, bytes], own: int, identity: bytes, purpose: bytes
    ) -> NDArray[Any]:
        said.hides(np.asarray(numbers), secrets, own, identity, purpose)
        return masked(numbers, secrets, own, identity, purpose)

    def begun(self: ActivePartition) -> Any:
        iteration = next_iteration(self)
        entities = list(getattr(iteration, "_entities", ()))
        said.begun.setdefault((self._partition.partition, self.model.version), []).append(entities)
        return iteration

    contributions.masked = noted
    ActivePartition._next_iteration = begun  # type: ignore[method-assign]
    try:
        yield
    finally:
        contributions.masked = masked
        ActivePartition._next_iteration = next_iteration  # type: ignore[method-assign]
