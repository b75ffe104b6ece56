"""What a party asks background tasks in an alignment with another party, and what they answer."""

from __future__ import annotations

from typing import Any

from streamfl.contract.role import BadRecord
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.training.background_tasks import Aligning, read_alignment, request
from streamfl.quasi_newton.training.given import PartyGiven
from streamfl.roles.partitioned_role import Outbox

__all__ = ["AlignmentTasks"]


class AlignmentTasks:
    """The background tasks of a party's alignments, for training and for scoring."""

    def __init__(
        self, settings: QuasiNewtonSettings, given: PartyGiven, outbox: Outbox[MemberCounts]
    ) -> None:
        self._settings = settings.alignment
        self._given = given
        self._outbox = outbox

    def request(
        self, other: str, session: bytes, names: list[str], theirs: bytes = b"", twice: bytes = b""
    ) -> bytes:
        """The request for a task of an alignment. theirs, twice: the other's points, if they have come."""
        settings = self._settings
        key = self._given.links[other].alignment_key if settings.hashed else b""
        return request(Aligning(self._given.secret, session, names, settings.limit, theirs, twice, key))

    def points_of_both(self, result: bytes, early: str = "") -> tuple[Any, ...] | None:
        """The own points, the guest's points blinded by both, and names in the order of the own; None if
        early points are refused.

        early: what the guest's points are for if they came in an earlier message. Then an error in them must
        not refuse the present message, whose sender did not send them. Empty: they are from the present
        message.
        """
        try:
            return read_alignment(result)
        except BadRecord as error:
            if not early:
                raise
            self._outbox.counts.refused_alignments += 1
            self._outbox.notices.say("alignment", f"the guest's points for {early} are refused: {error.text}")
            return None
