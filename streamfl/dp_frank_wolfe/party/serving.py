"""What a party's task needs of predictions between fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Measurement

__all__ = ["NoServing", "PartyServing"]


class PartyServing(Protocol):
    """A party's part of predictions between fits.

    It has keys of its own among the partition's parts. Releases with noise go through the ledger's chain of
    predictions, at a tick, and only for rows that ``remembered`` has reported as remembered. Samples and the
    server's model come from two topics, so only remembered rows come again in the same order when the work is
    done again.
    """

    @property
    def wake_at(self) -> float | None: ...

    def take_row(self, entity: str, columns: NDArray[np.int16], now: float) -> None:
        """Takes an entity's record as whole numbers, (columns,). Zeros where it cannot be read."""

    def take_model(self, version: int, weights: NDArray[np.float64]) -> None:
        """Takes the party's own weights, (columns,), of the window ``version``. The party still has those of
        the version before."""

    def pass_time(self, now: float) -> None: ...

    def remembered(self) -> None:
        """Reports that everything to be remembered until now is written with this step."""

    def measure(self) -> Iterator[Measurement]: ...


class NoServing:
    """Predicts nothing."""

    wake_at: float | None = None

    def take_row(self, entity: str, columns: NDArray[np.int16], now: float) -> None:
        pass

    def take_model(self, version: int, weights: NDArray[np.float64]) -> None:
        pass

    def pass_time(self, now: float) -> None:
        pass

    def remembered(self) -> None:
        pass

    def measure(self) -> Iterator[Measurement]:
        return iter(())
