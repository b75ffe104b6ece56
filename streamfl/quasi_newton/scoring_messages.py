"""What guest and host say to one another to score entities with a model that both have come to.

A *session* finds entities that both have, by a private set intersection of its own, and brings the guest the host's part of their
outputs: question, found, chosen, points. In the header ``run`` is the model's version and ``round`` the session's number under it.
"""

from __future__ import annotations

import msgspec

from streamfl.partitioned_role import Outbox
from streamfl.quasi_newton.messages import Aligned, Answer, Blinded, Message, content_of, records_of, seal, unseal
from streamfl.quasi_newton.party_settings import PartySettings
from streamfl.wire import VERSION

__all__ = ["NO_POINTS", "Chosen", "Closed", "Found", "Line", "Points", "Question"]

NO_POINTS = -(2**31)
"""In place of points: the host has none within the public bound, or has forgotten the entity."""


class Question(Blinded, frozen=True):
    """The guest has entities without a score. points: theirs, blinded."""


class Found(Answer, frozen=True):
    """own: points of the entities that the host may answer for, blinded. twice: the guest's, blinded by both, in its order."""


class Chosen(Aligned, frozen=True):
    """The entities in common. places: 32-bit numbers in the order of the host's points; none ends the session."""


class Points(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """A host's part of the chosen entities' outputs. points: signed 32-bit multiples of the quantum, in the order of the places."""

    points: bytes


class Closed(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The host has answered for as many versions of the model as it does."""


class Line:
    """The two scoring topics between this party and another one.

    channel: what the party sends to. host: whose line it is.
    """

    def __init__(self, settings: PartySettings, outbox: Outbox, channel: str, other: str, host: str) -> None:
        self._settings = settings
        self._outbox = outbox
        self._channel = channel
        self._other = other
        self._host = host

    def session(self, version: int, number: int) -> bytes:
        """The name of a session's alignment. No training's is the same."""
        settings = self._settings
        return msgspec.msgpack.encode((settings.federation, "scoring", version, number, settings.guest, self._host))

    def tell(self, version: int, number: int, kind: str, content: msgspec.Struct, alignment: bytes = b"") -> None:
        """alignment: digest of the chosen entities, where they are known."""
        settings, other = self._settings, self._other
        message = Message(VERSION, settings.fingerprint, settings.own, version, number, kind, alignment, b"")
        sealed = seal(message, content_of(content), settings.links[other], settings.scoring.topics[other][0])
        self._outbox.send(self._channel, records_of(settings.codec, sealed))

    def heard(self, message: Message) -> bytes:
        """What the other said. PeerError where it was not that one."""
        settings, other = self._settings, self._other
        return unseal(message, other, settings.links[other], settings.scoring.topics[other][1])
