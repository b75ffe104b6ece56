"""What the parties of a simulated federation used and sent, whether it was committed or not."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from numpy.typing import NDArray

from streamfl.contract.role import Record
from streamfl.fdskl.messages import Prediction
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.sums import contributions, masks

__all__ = ["Observed", "decode_prediction", "recorded"]


@dataclass
class Observed:
    """Facts about a run that no topic shows.

    lives: the parties' names, one for each secret that was made.
    hidden: by party and key of a keystream, digest of the numbers that it hid. A round is answered once, so
    no key may come again.
    reused: for each key that did, a sentence on what it hid.
    trouble: whether the active party ever reported that nobody answers.
    announced, abandoned: whether it asked for any round, or gave one up.
    begun: by partition and version of the model, the entities of each iteration that began there.
    """

    lives: list[str] = field(default_factory=list)
    hidden: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    trouble: bool = False
    announced: bool = False
    abandoned: bool = False
    begun: dict[tuple[int, int], list[list[str]]] = field(default_factory=dict)

    def hides(self, numbers: NDArray[Any], own: int, key: bytes) -> None:
        """Note that a party adds the keystream of this key to its numbers, or subtracts it."""
        digest = hashlib.blake2b(numbers.tobytes(), digest_size=16).digest()
        before = self.hidden.get((own, key))
        if before is not None:
            self.reused.append(
                f"party {own} hid {'one thing twice' if before == digest else 'two things'} with one mask"
            )
        self.hidden[own, key] = digest


def decode_prediction(record: Record) -> Prediction:
    return msgspec.json.decode(record.value or b"", type=Prediction)


@contextmanager
def recorded(observed: Observed) -> Iterator[None]:
    """Note meanwhile what roles of this process mask, and what they begin to learn from."""
    # These modules import the functions by name, so the functions are replaced in the modules.
    places: list[tuple[Any, str]] = [
        (contributions, "masked"),
        (masks, "mask_key"),
        (ActivePartition, "_next_iteration"),
    ]
    before = [getattr(owner, name) for owner, name in places]
    masked, mask_key, next_iteration = before
    hiding: list[tuple[NDArray[Any], int]] = []

    def noted(
        numbers: NDArray[Any], secrets: Mapping[int, bytes], own: int, identity: bytes, purpose: bytes
    ) -> Any:
        hiding.append((numbers, own))
        try:
            return masked(numbers, secrets, own, identity, purpose)
        finally:
            hiding.pop()

    def drawn(*given: Any) -> bytes:
        key: bytes = mask_key(*given)
        for numbers, own in hiding:
            observed.hides(numbers, own, key)
        return key

    def begun(self: ActivePartition) -> Any:
        iteration = next_iteration(self)
        entities = list(getattr(iteration, "_entities", ()))
        observed.begun.setdefault((self._partition.partition, self.model.version), []).append(entities)
        return iteration

    for (owner, name), function in zip(places, (noted, drawn, begun), strict=True):
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in zip(places, before, strict=True):
            setattr(owner, name, function)
