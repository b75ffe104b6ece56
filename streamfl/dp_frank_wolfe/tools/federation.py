"""A whole federation on the memory bus, with a virtual clock. Members take turns until nothing moves any
more."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.dp_frank_wolfe.config import DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.party.fit import ReleaseContext
from streamfl.dp_frank_wolfe.party.role import PartyTask
from streamfl.dp_frank_wolfe.tools.members import BETWEEN, members
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.vertical.federation import TurnFederation
from streamfl.simulation.vertical.members import HEAD

__all__ = ["FrankWolfeFederation", "bounds_of", "name_of"]

SECRET_BYTES = 32


class FrankWolfeFederation(TurnFederation[DPFrankWolfeSettings]):
    """The parties and the server, each in its worker, on one partition.

    settings: of any member; what belongs to a single one is filled in here. Noise is drawn from
        federation.seed with privacy.insecure_test_noise, and from a secret of this run without it.
    inputs: by party, in the order of federation.parties, (entities, its columns).
    labels: (entities,). All are learnt from.
    network_delay: virtual seconds of a message.
    overheard: called with each message between members.
    """

    def __init__(
        self,
        settings: DPFrankWolfeSettings,
        inputs: Sequence[NDArray[np.float64]],
        labels: NDArray[np.float64],
        network_delay: float = 0.0,
        overheard: Callable[[Outgoing], None] | None = None,
    ) -> None:
        super().__init__(settings, BETWEEN, inputs, labels, network_delay=network_delay, overheard=overheard)
        self._folder = tempfile.TemporaryDirectory(prefix="streamfl-")
        for name, own in members(settings.federation).items():
            changed = own if name == HEAD else {**own, **self._bounds_and_privacy(name)}
            self.workers[name] = self._start(self.settings.model_copy(update=changed))
        self.write_samples(range(len(labels)))
        self.write_labels(range(len(labels)))

    @property
    def trouble(self) -> str | None:
        """Trouble of the first member that has any."""
        found = (worker.role.trouble for worker in self.workers.values())
        return next((text for text in found if text is not None), None)

    def places(self, window: int) -> dict[str, ReleaseContext]:
        """Where each party's releases of a window belong, with the secret that their noise is drawn from."""
        return {name: party.given.place(party.settings, window) for name, party in self._parties.items()}

    @property
    def spent(self) -> float:
        """Cost of the entity that was charged most, over all parties. Infinite where no promise holds."""
        return sum(party.ledger.spend.largest for party in self._parties.values())

    def name_of(self, entity: int) -> str:
        return name_of(entity)

    def close(self) -> None:
        super().close()
        self._folder.cleanup()

    @property
    def _parties(self) -> dict[str, PartyTask]:
        return {
            name: cast(PartitionedRole[PartyTask], worker.role).task(0)
            for name, worker in self.workers.items()
            if name
        }

    def _bounds_and_privacy(self, name: str) -> dict[str, Any]:
        privacy = self.settings.privacy
        # A file's secret and ledger belong to one party. Here ledgers end with the run.
        own = {
            "secret_file": self._secret(name) if privacy.is_private else None,
            "ledger": None,
            "ledger_file": None,
        }
        return {"bounds": bounds_of(self.settings, name), "privacy": privacy.model_copy(update=own)}

    def _secret(self, name: str) -> str:
        path = Path(self._folder.name) / f"{name}.secret"
        path.touch(mode=0o600)
        path.write_bytes(os.urandom(SECRET_BYTES))
        return str(path)


def name_of(entity: int) -> str:
    """An entity's name. Names sort in the order of the entities' numbers."""
    return f"{entity:09d}"


def bounds_of(settings: DPFrankWolfeSettings, party: str) -> Any:
    """``[bounds]`` of a party. The file has one number, or one for each column of all parties."""
    columns, bounds = settings.federation.columns, settings.bounds
    before = settings.federation.parties[: settings.federation.parties.index(party)]
    start = sum(columns[name] for name in before)
    given = {key: getattr(bounds, key) for key in ("centre", "bound")}
    own = {
        key: value[start : start + columns[party]] for key, value in given.items() if isinstance(value, list)
    }
    return bounds.model_copy(update=own)
