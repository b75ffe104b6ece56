"""A whole federation on the memory bus, with a virtual clock: parties take turns until nothing moves any
more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.config import FdsklFederation, FdsklSettings
from streamfl.fdskl.learning.model import Expansion
from streamfl.fdskl.messages import TURN, Prediction
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.tools.simulated_members import BETWEEN, labels_topic, members
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.worker import Worker
from streamfl.simulation.vertical.federation import TurnFederation

__all__ = ["KernelFederation", "settings_of_all"]

# Numbers that are computed at once when a model is evaluated.
EVALUATED = 2**22


def settings_of_all(parties: Sequence[str], **sections: Mapping[str, Any]) -> FdsklSettings:
    """The settings that all members share, for :class:`KernelFederation`, which fills in those of a single
    member.

    sections: values that differ from the defaults, by the section's name.
    """
    federation = FdsklFederation.model_validate(
        {"name": "f", "parties": list(parties), **sections.pop("federation", {})}
    )
    active = members(federation, dict.fromkeys(parties, 1))[federation.active_party]
    return FdsklSettings.model_validate({"federation": federation, **active, **sections})


class KernelFederation(TurnFederation[FdsklSettings]):
    """One partition, every party in its worker.

    settings: of any member; those of a single member are filled in here.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    columns: by party, the names of its columns. Frequencies are drawn by name.
    labels: (entities,); each of several active parties gets its own ones.
    network_delay: virtual seconds from one party to another.
    overheard: called with each message between parties.
    """

    prediction = Prediction

    def __init__(
        self,
        settings: FdsklSettings,
        inputs: Sequence[NDArray[np.float64]],
        columns: Sequence[Sequence[str]],
        labels: NDArray[np.float64],
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        super().__init__(settings, BETWEEN, inputs, labels, network_delay=network_delay, overheard=overheard)
        # The log of several active parties, each of which reads all of it.
        self.bus.logs.add(f"{settings.federation.name}.turns")
        # Secrets are drawn here, so no file is read.
        aggregation = settings.aggregation.model_copy(update={"secret_file": None})
        self._lives: dict[str, int] = {}
        self.columns = dict(zip(self.inputs, columns, strict=True))
        self._of_party = {
            name: self.settings.model_copy(update={**own, "aggregation": aggregation})
            for name, own in members(settings.federation, self.columns).items()
        }
        for name in self._of_party:
            self.workers[name] = self._begin(name)

    @property
    def roles(self) -> Mapping[str, FdsklParty]:
        return {name: cast(FdsklParty, worker.role) for name, worker in self.workers.items()}

    @property
    def active(self) -> FdsklParty:
        """The active party's role, or the first one's."""
        return self.roles[self.settings.federation.active_party]

    @property
    def held(self) -> ActivePartition:
        """What the active party has of the one partition."""
        return self.active.active_partition(0)

    @property
    def expansions(self) -> dict[str, Expansion]:
        """By active party, its part of the model."""
        return {
            name: self.roles[name].active_partition(0).model.snapshot()
            for name in self.settings.federation.active_parties
        }

    @property
    def learners(self) -> list[str]:
        """By iteration, the active party that made it."""
        names = self.settings.federation.active_parties
        if len(names) == 1:
            return names * self.held.model.version
        said = (TURN.read(record) for record in self.bus.read(f"{self.settings.federation.name}.turns"))
        return [message.sender for message in said if message.learnt]

    def learner_of(self, entity: int) -> str:
        """The active party that knows the entity's label: labels are dealt out in turn."""
        names = self.settings.federation.active_parties
        return names[entity % len(names)]

    def labels_topic_of(self, entity: int) -> str:
        return labels_topic(self.settings.federation, self.learner_of(entity))

    def run(self, most_seconds: float = 1e9) -> None:
        """Run until nothing moves and nothing is waited for, or for ``most_seconds`` virtual seconds."""
        until = self.now + most_seconds
        while self.now < until and self.turn(until):
            pass

    def standardised(
        self, inputs: Sequence[NDArray[np.float64]], absent: str | None = None
    ) -> list[NDArray[np.float64]]:
        """By party, standardised columns of other entities, (n, columns); for an absent party their mean."""
        rows = []
        for (name, role), own in zip(self.roles.items(), inputs, strict=True):
            known = np.full(len(own), name != absent)
            rows.append(role.partition(0).standardisation.apply(own, known))
        return rows

    def evaluate(
        self, inputs: Sequence[NDArray[np.float64]], absent: str | None = None
    ) -> NDArray[np.float64]:
        """f of other entities by the current model, computed with every party's own frequencies and without
        noise: (n,).

        absent: a party that knows none of them.
        """
        parts, count = list(self.expansions.values()), len(inputs[0])
        # A party's coefficients are 0 where another party has them.
        expansion = replace(parts[0], alphas=np.sum([one.alphas for one in parts], axis=0))
        outputs = np.zeros(count)
        if not len(expansion.alphas):
            return outputs
        ranges = [(one.first, one.count) for one in expansion.ranges]
        rows = self.standardised(inputs, absent)
        drawn = [
            role.partition(0).sums.own_part.contributions.frequencies(expansion.bandwidth)
            for role in self.roles.values()
        ]
        for part in _parts(count, max(1, EVALUATED // len(expansion.alphas))):
            phases: Any = sum(
                one.partial_phases(own[part], ranges) for one, own in zip(drawn, rows, strict=True)
            )
            outputs[part] = expansion.evaluate(np.sqrt(2.0) * np.cos(phases))
        return outputs

    def stop(self, name: str) -> None:
        """The party's process ends."""
        self.workers.pop(name).close()

    def restart(self, name: str) -> None:
        """Start another process of the party, from its changelog alone."""
        if name in self.workers:
            self.stop(name)
        started = {**self.workers, name: self._begin(name)}
        self.workers = {one: started[one] for one in self.settings.federation.parties if one in started}

    def _wake_at(self) -> float:
        # Nothing happens by the clock alone that a result depends on.
        return super()._wake_at() if any(role.waiting for role in self.roles.values()) else math.inf

    def _begin(self, name: str) -> Worker:
        """A party's process, with secrets that are drawn from the seed, so that others compute the same
        figures."""
        settings, privacy = self._of_party[name], self.settings.privacy
        life = self._lives[name] = self._lives.get(name, 0) + 1
        draws = rng_for(
            settings.federation.seed, "fdskl", "simulation", name, *([str(life)] if life > 1 else [])
        )

        def prepare(worker: Worker) -> None:
            role = cast(FdsklParty, worker.role)
            role.given = replace(role.given, secret=draws.bytes(32), entropy=lambda: draws.bytes(32))
            if privacy.input_noise is not None:
                role.given = replace(role.given, noise_secret=draws.bytes(32).hex())

        worker = self._start(settings, prepare=prepare)
        # A party tells the others of its incarnation before the next one begins.
        worker.step(0.0)
        return worker


def _parts(count: int, size: int) -> Iterator[slice]:
    return (slice(begin, begin + size) for begin in range(0, count, size))
