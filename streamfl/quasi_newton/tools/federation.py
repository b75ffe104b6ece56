"""A whole federation on the memory bus, with a virtual clock. Members take turns until a training is over."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.config import PreprocessingSection, QuasiNewtonSettings
from streamfl.quasi_newton.rows.preprocessing import EVIDENCE
from streamfl.quasi_newton.tools.made_up_secrets import MadeUp
from streamfl.quasi_newton.tools.simulated_members import BETWEEN, members
from streamfl.quasi_newton.tools.steps import MeasuredWork, Seconds
from streamfl.quasi_newton.training.coordinator import CoordinatorTask
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.quasi_newton.training.training_progress import FAILED, TRAINED
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.vertical.federation import TurnFederation
from streamfl.simulation.vertical.members import HEAD

__all__ = ["CurvatureFederation"]


class CurvatureFederation(TurnFederation[QuasiNewtonSettings]):
    """Guest, hosts and coordinator, each in its worker, on one partition.

    settings: of any member. Each member's own settings, keys and secrets are filled in here.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    labels: 0 and 1, (entities,).
    network_delay: virtual seconds that a message takes.
    overheard: called with each message between members.
    look: called after each step of a party, with its name.
    """

    def __init__(
        self,
        settings: QuasiNewtonSettings,
        inputs: Sequence[NDArray[np.float64]],
        labels: NDArray[np.float64],
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
        look: Callable[[str], None] = lambda party: None,
    ) -> None:
        super().__init__(settings, BETWEEN, inputs, labels, network_delay=network_delay, overheard=overheard)
        self._look_at = look
        self.seconds = Seconds()
        self._folder = tempfile.TemporaryDirectory(prefix="streamfl-")
        made_up = MadeUp(settings, Path(self._folder.name))
        work = MeasuredWork(self.seconds)
        # Scoring is off, because only the training is measured.
        shared: dict[str, Any] = {"scoring": settings.scoring.model_copy(update={"enabled": False})}
        for name, own in members(settings.federation, self.columns).items():
            changed = {**shared, **own, "encryption": made_up.encryption(own["role"].kind, name)}
            if (
                name not in (HEAD, settings.federation.guest_party)
                and settings.preprocessing.method == EVIDENCE
            ):
                # This method is for the guest alone, because it needs labels.
                changed["preprocessing"] = PreprocessingSection()
            self.workers[name] = self._start(self.settings.model_copy(update=changed), work)
        self.write_samples(range(len(labels)))
        self.write_labels(range(len(labels)))

    @property
    def parties(self) -> dict[str, PartyTask]:
        """Each party's partition, by name."""
        return {
            name: cast(PartitionedRole[PartyTask], worker.role).task(0)
            for name, worker in self.workers.items()
            if name
        }

    @property
    def coordinator(self) -> CoordinatorTask:
        return cast(PartitionedRole[CoordinatorTask], self.workers[HEAD].role).task(0)

    @property
    def over(self) -> bool:
        """Whether the training has ended at every party."""
        return all(party.progress.phase in (TRAINED, FAILED) for party in self.parties.values())

    @property
    def failure(self) -> str | None:
        """Why the training has failed, if it has. The text of the party that could not go on comes first."""
        found = [party.progress.failure for party in self.parties.values() if party.progress.failure]
        return min(found, key=lambda text: "another party" in text, default=None)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    def _look(self, name: str) -> None:
        if name != HEAD:
            self._look_at(name)
