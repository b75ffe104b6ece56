"""What the server asks of parties in a window, and what it makes of their answers, for any estimator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Calculation", "Estimator", "PartyQuestion"]


@dataclass(frozen=True)
class PartyQuestion:
    """kind: of the message to a party. answer: kind of the party's answer. iteration, content: of the
    message."""

    kind: str
    answer: str
    iteration: int
    content: bytes


@dataclass(frozen=True)
class Calculation:
    """Work to be done. then: called with its result."""

    function: Callable[[bytes], bytes]
    content: bytes
    then: Callable[[bytes], None]


class Estimator(Protocol):
    """Owns what a window's estimate is computed from."""

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
        """Begins a window and forgets the one before."""

    def questions(self, party: str) -> Iterator[PartyQuestion]:
        """One question, or none if nothing is due from the party at present."""

    def take(self, party: str, kind: str, iteration: int, content: bytes) -> None:
        """Takes an answer that was owed, perhaps late. Raises BadRecord, before anything changes, if it is
        wrong."""

    def settle(self) -> Calculation | None:
        """Goes on with the answers so far, once no present party owes anything."""
