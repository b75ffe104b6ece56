"""What a party knows of the others in a partition: the present life of each, and with it the key to agree on masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.fdskl.masks import Incarnation as OwnIncarnation
from streamfl.fdskl.masks import life_number
from streamfl.fdskl.messages import Incarnation
from streamfl.role import PeerError
from streamfl.sequences import Run, check_numbers, note, was_heard
from streamfl.wire import Count

__all__ = ["PUBLIC_BYTES", "Peers"]

PUBLIC_BYTES = 32
KEY = b"peer/"


class _Peer(msgspec.Struct, array_like=True):
    """number, public: of its latest incarnation. revisions: whose numbers were heard."""

    number: Count
    public: bytes
    revisions: list[Run] = []


class Peers:
    """The parties of a federation as one of them knows them in a partition; remembered as ``peer/NUMBER``.

    The party's own incarnation begins with the object and is never remembered: after a restart nobody, not even the party itself,
    can make the masks of before.

    names: of all parties, in order.
    own: this party's place among them.
    entropy: gives 32 secret bytes that were never given before.
    """

    def __init__(self, parts: ChangedParts, names: Sequence[str], own: int, entropy: Callable[[], bytes]) -> None:
        self._parts = parts
        self._names = names
        self._own = own
        self._peers: dict[int, _Peer] = {}
        self._secrets: dict[int, bytes] = {}
        self.incarnation = OwnIncarnation(entropy())
        self.told: int | None = None

    @property
    def complete(self) -> bool:
        """Whether every other party has said how to reach it."""
        return len(self._peers) == len(self._names) - 1

    @property
    def missing(self) -> list[str]:
        """The parties that have not."""
        return [name for number, name in enumerate(self._names) if number != self._own and number not in self._peers]

    @property
    def numbers(self) -> list[int]:
        """The incarnations of all parties, in order; complete only."""
        return [self.number_of(party) for party in range(len(self._names))]

    def number_of(self, party: int) -> int:
        """The latest incarnation of a party; KeyError if it was never heard of."""
        return self.incarnation.number if party == self._own else self._peers[party].number

    def are_present(self, numbers: Sequence[int]) -> bool:
        """Whether these are the incarnations of all parties, as far as is known."""
        return self.complete and list(numbers) == self.numbers

    def hear(self, party: int, message: Incarnation) -> bool:
        """A party says that a life of it has begun. Returns whether that is new. PeerError for a key that fits no number."""
        if len(message.public) != PUBLIC_BYTES or life_number(message.public) != message.number:
            raise PeerError("malformed", f"incarnation {message.number} of {message.sender!r} has a key of another number")
        known = self._peers.get(party)
        if known is not None and known.number == message.number:
            return False
        try:
            secret = self.incarnation.pair_secret(message.public)
        except ValueError as error:
            raise PeerError("malformed", f"incarnation {message.number} of {message.sender!r}: {error}") from None
        self._secrets[party] = secret
        self._peers[party] = peer = _Peer(message.number, message.public, [] if known is None else known.revisions)
        self._parts.remember(KEY + b"%d" % party, peer)
        return True

    def pair_secrets(self) -> Mapping[int, bytes]:
        """By party, what only this party's present life and its can compute."""
        for party, peer in self._peers.items():
            if party not in self._secrets:
                self._secrets[party] = self.incarnation.pair_secret(peer.public)
        return self._secrets

    def note_revision(self, party: int, epoch: int, sequence: int, at: float) -> bool:
        """Whether a revision with these numbers is new. PeerError for numbers that no party can have come to."""
        check_numbers(epoch, sequence, at)
        peer = self._peers.get(party)
        if peer is None or was_heard(peer.revisions, epoch, sequence):
            return False
        note(peer.revisions, epoch, sequence)
        self._parts.remember(KEY + b"%d" % party, peer)
        return True

    def tell(self) -> bool:
        """Whether the others have still to be told of this life; then they are."""
        if self.told == self.incarnation.number:
            return False
        self.told = self.incarnation.number
        self._parts.remember(b"told", msgspec.msgpack.encode(self.told))
        return True

    def restore(self, name: bytes, value: bytes) -> None:
        party = int(name)
        if not 0 <= party < len(self._names) or party == self._own:
            raise PeerError("malformed", f"peer {party} is remembered, there are {len(self._names)} parties, from 0")
        peer = msgspec.msgpack.decode(value, type=_Peer)
        if len(peer.public) != PUBLIC_BYTES:
            raise PeerError("malformed", f"peer {party} is remembered with a key of {len(peer.public)} bytes")
        self._peers[party] = peer

    def restore_told(self, value: bytes) -> None:
        self.told = msgspec.msgpack.decode(value, type=Count)
