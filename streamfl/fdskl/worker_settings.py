"""What a worker of FDSKL is told once, for all of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.fdskl.contributions import InputNoise, Kernel
from streamfl.fdskl.topology import Aggregation

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What is the same in all partitions of a party. See :class:`~streamfl.fdskl.worker.FdsklWorker`."""

    federation: str
    parties: tuple[str, ...]
    own: int
    root: int
    fingerprint: int
    seed: int
    columns: tuple[str, ...]
    kernel: Kernel
    secret: bytes
    secret_is_given: bool
    shared: bool
    mask: str
    bits: int
    trees: dict[int, Aggregation]
    round_seconds: float
    rounds_in_flight: int
    reply_seconds: float
    expiry: float
    limit: int
    features_limit: int
    standardise: bool
    first_entities: int
    auto: bool
    noise: InputNoise | None
    entropy: Callable[[], bytes]

    @property
    def name(self) -> str:
        """Of this party."""
        return self.parties[self.own]
