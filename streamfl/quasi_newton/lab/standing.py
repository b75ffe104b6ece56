"""How a member of a quasi-Newton federation stands: what the first training waits for, and what it would refuse."""

from __future__ import annotations

from collections.abc import Mapping

from streamfl.member import Member
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.coordinator import CoordinatorTask
from streamfl.quasi_newton.party import PartyTask
from streamfl.runtime.bus import Bus
from streamfl.simulation.laboratory import Standing

__all__ = ["coordinator_standing", "party_standing"]


def party_standing(
    settings: QuasiNewtonSettings, bus: Bus, unread: Mapping[str, int], role: Member[PartyTask] | None
) -> list[Standing]:
    """Of guest or host. role: that took its state back; None: the topics alone are asked."""
    return _first_training(role)


def coordinator_standing(
    settings: QuasiNewtonSettings, bus: Bus, unread: Mapping[str, int], role: Member[CoordinatorTask] | None
) -> list[Standing]:
    """The same of the coordinator."""
    return _first_training(role)


def _first_training(role: Member[PartyTask] | Member[CoordinatorTask] | None) -> list[Standing]:
    waits = None if role is None else role.backlog
    return [] if waits is None else [Standing("first training", waits)]
