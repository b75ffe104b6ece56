"""What the scenarios of most systems have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.kinds import federation_topics, find_kind
from streamfl.runtime.worker import Worker
from streamfl.testing.faults.fault_rates import Rates
from streamfl.testing.faults.federation import Reading
from streamfl.testing.faults.permanent_faults import PermanentFault, with_a_process_left

__all__ = ["MembersScenario"]


@dataclass(frozen=True, kw_only=True)
class MembersScenario:
    """A scenario of members and their processes. A subclass is a
    :class:`~streamfl.testing.faults.federation.Shape` when it has ``of`` and ``standing``.

    workers: by member, its number of processes.
    partitions: of each topic that may have any number.
    readings: what each producer writes.
    last: what is written after the final restart.
    faulty_seconds: seconds from the beginning after which nothing fails.
    permanent_fault: the fault that stays, if any.
    """

    seed: int
    workers: Mapping[str, int]
    partitions: int = 1
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    rates: Rates
    faulty_seconds: float
    permanent_fault: PermanentFault | None = None

    def of(self, member: str) -> RoleSettings:
        """The settings of a member."""
        raise NotImplementedError

    @property
    def calm(self) -> Self:
        """The same federation and data, one process of each member, and no fault."""
        return replace(
            self,
            workers=dict.fromkeys(self.workers, 1),
            rates=Rates(),
            faulty_seconds=0.0,
            readings=tuple(tuple(replace(one, at=0.0) for one in producer) for producer in self.readings),
        )

    @property
    def faults(self) -> str:
        """The rates of faults and the fault that stays, for a description."""
        rates = ", ".join(
            f"{name} {value:.3g}" for name, value in dataclasses.asdict(self.rates).items() if value
        )
        return rates if self.permanent_fault is None else f"{rates}; {self.permanent_fault}"

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        return {name: (count, self.of(name)) for name, count in self.workers.items()}

    @property
    def repeatable(self) -> Collection[str]:
        return ()

    @property
    def topics(self) -> Sequence[TopicSpec]:
        return federation_topics((settings for _, settings in self.members.values()), self.partitions)

    @cached_property
    def tasks(self) -> int:
        # A channel may say itself how many partitions its topic has.
        partitions = {spec.name: spec.partitions or self.partitions for spec in self.topics}
        left = map(self.of, with_a_process_left(self.workers, self.permanent_fault))
        inputs = [find_kind(one.role.kind).channels(one).inputs.values() for one in left]
        return sum(max(partitions[source.topic] for source in own) for own in inputs)

    def prepare(self, worker: Worker) -> None:
        """Change nothing."""

    def check_bounds(self, worker: Worker) -> None:
        """Check nothing."""
