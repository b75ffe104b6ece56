"""What the server asks of parties in a window, and what it makes of their answers, whatever is estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Calculation", "Estimator", "Question"]


@dataclass(frozen=True)
class Question:
    """kind: of the message to a party. answer: kind of the message that it owes for it. iteration, content: of the message."""

    kind: str
    answer: str
    iteration: int
    content: bytes


@dataclass(frozen=True)
class Calculation:
    """Work to be done, and what is done with its result."""

    function: Callable[[bytes], bytes]
    content: bytes
    then: Callable[[bytes], None]


class Estimator(Protocol):
    """The owner of what a window's estimate is made of."""

    @property
    def over(self) -> bool:
        """Whether :attr:`weights` are the window's."""

    @property
    def weights(self) -> Mapping[str, NDArray[np.float64]]:
        """x by party, in scaled features."""

    @property
    def iteration(self) -> int: ...

    @property
    def support(self) -> int: ...

    @property
    def l1_norm(self) -> float: ...

    @property
    def uplink_numbers(self) -> int:
        """Signed indices and numbers that were released in the window, as the server has counted them."""

    def begin(self, window: int) -> None:
        """Of a window, instead of what was."""

    def questions(self, party: str) -> Iterator[Question]:
        """One, or none if nothing is due of a party at present."""

    def take(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        """An answer that was owed, perhaps after the server has gone on. PeerError, before anything changes, if it is wrong."""

    def settle(self) -> Calculation | None:
        """Nobody who is there owes anything: go on with what has come."""

    def restore(self, key: bytes, value: bytes) -> bool:
        """Restores a part. False if the key belongs to another owner."""
