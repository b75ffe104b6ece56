"""Messages between guest and host to score entities with a model that both have learnt.

A *session* finds common entities by its own private set intersection, and brings the guest the host's part of
their outputs. Its messages are question, found, chosen, points. In the header ``run`` is the model's version
and ``round`` the session's number under it.
"""

from __future__ import annotations

import msgspec

from streamfl.encoding.wire import VERSION
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.members.given import PartyGiven
from streamfl.quasi_newton.messages import (
    Aligned,
    Answer,
    Blinded,
    Message,
    content_of,
    records_of,
    seal,
    unseal,
)
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.roles.partitioned_role import Outbox

__all__ = ["NO_POINTS", "ChosenPlaces", "Closed", "Points", "ScoringAnswer", "ScoringLink", "ScoringQuestion"]

NO_POINTS = -(2**31)
"""In place of points: the host's part is beyond the public bound, or the host has forgotten the entity."""


class ScoringQuestion(Blinded, frozen=True):
    """The guest has entities without a score. points: theirs, blinded."""


class ScoringAnswer(Answer, frozen=True):
    """own: points of the entities that the host may answer for, blinded. twice: the guest's, blinded by both,
    in its order."""


class ChosenPlaces(Aligned, frozen=True):
    """The entities in common. places: 32-bit numbers in the order of the host's points; none ends the
    session."""


class Points(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A host's part of the chosen entities' outputs. points: signed 32-bit multiples of the quantum, in the
    order of the places."""

    points: bytes


class Closed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The host refuses: it has answered for as many versions of the model as scoring.versions allows."""


class ScoringLink:
    """The two scoring topics between this party and another one.

    channel: that the party sends to.
    other: name of the other party.
    host: name of the host of the two.
    """

    def __init__(
        self,
        settings: QuasiNewtonSettings,
        given: PartyGiven,
        outbox: Outbox[MemberCounts],
        channel: str,
        other: str,
        host: str,
    ) -> None:
        self._settings = settings
        self._given = given
        self._outbox = outbox
        self._channel = channel
        self._other = other
        self._host = host

    def session(self, version: int, number: int) -> bytes:
        """The name of a session's alignment, which differs from that of any training."""
        federation = self._settings.federation
        return msgspec.msgpack.encode(
            (federation.name, "scoring", version, number, federation.guest_party, self._host)
        )

    def tell(
        self, version: int, number: int, kind: str, content: msgspec.Struct, alignment: bytes = b""
    ) -> None:
        """Seal a message and send it to the other party. alignment: digest of the chosen entities, once they
        are known."""
        settings, other = self._settings, self._other
        message = Message(
            VERSION, settings.fingerprint, settings.required_party(), version, number, kind, alignment, b""
        )
        topic = settings.linked(other, "questions" if settings.is_guest else "answers")
        sealed = seal(message, content_of(content), self._given.links[other], topic)
        self._outbox.send(self._channel, records_of(self._given.codec, sealed))

    def heard(self, message: Message) -> bytes:
        """The content of a message, unsealed. BadRecord if the other party did not send it."""
        settings, other = self._settings, self._other
        topic = settings.linked(other, "answers" if settings.is_guest else "questions")
        return unseal(message, other, self._given.links[other], topic)
