"""What a member sends in one iteration."""

from __future__ import annotations

from collections.abc import Iterator

from streamfl.contract.measurement import Measurement
from streamfl.quasi_newton.metrics import TrafficMetrics

__all__ = ["TrafficCounter"]


class TrafficCounter:
    """Counts what a member sends in one iteration.

    place: run and iteration of the latest message.
    ciphertexts, bytes: sent in the latest iteration of which this process has sent every message; None before
    the first.
    """

    def __init__(self) -> None:
        self.ciphertexts: int | None = None
        self.bytes: int | None = None
        self.place: tuple[int, int] | None = None
        self._is_whole = False
        self._said = (0, 0)

    def add(self, run: int, iteration: int, ciphertexts: int, size: int) -> None:
        """Count a message of this iteration. size: its bytes."""
        if (run, iteration) != self.place:
            if self._is_whole:
                self.ciphertexts, self.bytes = self._said
            # Another process may have sent part of the iteration in which this process began.
            self._is_whole = self.place is not None or iteration == 0
            self.place, self._said = (run, iteration), (0, 0)
        self._said = (self._said[0] + ciphertexts, self._said[1] + size)

    def measure(self) -> Iterator[Measurement]:
        """Metrics of the latest whole iteration; none before the first."""
        if self.ciphertexts is not None and self.bytes is not None:
            yield TrafficMetrics.iteration_ciphertexts(self.ciphertexts)
            yield TrafficMetrics.iteration_bytes(self.bytes)
