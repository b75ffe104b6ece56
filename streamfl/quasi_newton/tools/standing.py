"""Status of a quasi-Newton member: what it waits for, and whether a training would be refused."""

from __future__ import annotations

from collections.abc import Mapping

from streamfl.quasi_newton.config import GUEST, QuasiNewtonSettings
from streamfl.quasi_newton.rows.batches import least_batch
from streamfl.quasi_newton.rows.preprocessing import most_columns
from streamfl.quasi_newton.training.coordinator import CoordinatorTask
from streamfl.quasi_newton.training.party import PartyTask
from streamfl.records.samples import SampleReader
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.bus import Bus
from streamfl.simulation.system_tools import Standing

__all__ = ["coordinator_standing", "party_standing"]


def party_standing(
    settings: QuasiNewtonSettings,
    bus: Bus,
    unread: Mapping[str, int],
    role: PartitionedRole[PartyTask] | None,
) -> list[Standing]:
    """The status of a guest or host. role: with its state restored; None: without state."""
    return [*_batch(settings), *_waiting(role)]


def coordinator_standing(
    settings: QuasiNewtonSettings,
    bus: Bus,
    unread: Mapping[str, int],
    role: PartitionedRole[CoordinatorTask] | None,
) -> list[Standing]:
    """The status of the coordinator. Arguments as for :func:`party_standing`."""
    return _waiting(role)


def _batch(settings: QuasiNewtonSettings) -> list[Standing]:
    """A warning if a training may fail after the alignment, because a batch has too few rows for the party's
    columns."""
    learning, method = settings.learning, settings.preprocessing.method
    raw = SampleReader(settings.required_samples("a party").samples).dimension
    intercept = ", with the intercept" if settings.role.kind == GUEST else ""
    columns = most_columns(method, raw) + bool(intercept)
    if (needed := least_batch(columns, learning.min_batch)) <= learning.batch:
        return []
    return [
        Standing(
            "learning.batch",
            f'{raw:,} columns become up to {columns:,} (preprocessing.method = "{method}"{intercept}), for '
            "which a batch needs "
            f"up to {needed:,} rows, and learning.batch = {learning.batch:,}: a training with so many ends "
            "after the alignment",
            f"set learning.batch = {needed} and alignment.entities as large at every member, or take fewer "
            f"columns{' or another preprocessing.method' if method == 'quantile-bins' else ''}",
        )
    ]


def _waiting(
    role: PartitionedRole[PartyTask] | PartitionedRole[CoordinatorTask] | None,
) -> list[Standing]:
    waits = None if role is None else role.backlog
    return [] if waits is None else [Standing("waiting", waits)]
