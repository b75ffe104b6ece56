"""The settings of a worker of FDSKL, the same for all of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from streamfl.fdskl.sums.contributions import Contributions, InputNoise, KernelSettings
from streamfl.fdskl.sums.topology import Aggregation
from streamfl.records.header_propagation import Carry, carried_nothing

__all__ = ["WorkerSettings"]


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """What is the same in all partitions of a party. See :class:`~streamfl.fdskl.worker.role.FdsklWorker`.

    features_per_entity: most that a party answers; None: no limit, because a stranger may have asked if members have no keys.
    carry: at the party that predicts, which headers of a sample's record its prediction gets.
    """

    federation: str
    parties: tuple[str, ...]
    own: int
    actives: tuple[int, ...]
    fingerprint: int
    seed: int
    columns: tuple[str, ...]
    distances: bool
    kernel: KernelSettings
    secret: bytes
    secret_is_given: bool
    shared: bool
    mask: str
    is_open: bool
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
    features_per_entity: int | None
    entropy: Callable[[], bytes]
    carry: Carry = carried_nothing

    @property
    def name(self) -> str:
        """The name of this party."""
        return self.parties[self.own]

    @property
    def root(self) -> int:
        """The first active party, which predicts."""
        return self.actives[0]

    def contributions(self, secret: bytes, partition: int) -> Contributions:
        """The party's part of sums. secret: the one that its frequencies are drawn from."""
        return Contributions(
            kernel=self.kernel,
            columns=self.columns,
            seed=self.seed,
            secret=secret,
            shared=self.shared,
            parties=len(self.parties),
            own=self.own,
            root=self.root,
            mask=self.mask,
            bits=self.bits,
            noise=self.noise,
            place=(self.fingerprint, partition),
        )
