"""What a party knows of the others in a partition: the present life of each, and with it the key to agree on masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from streamfl.changelog import ChangedParts
from streamfl.changelog_checks import Amount
from streamfl.fdskl.masks import Incarnation as OwnIncarnation
from streamfl.fdskl.masks import life_number
from streamfl.fdskl.messages import Incarnation
from streamfl.received_numbers import NumberRange, check_numbers, note, was_heard
from streamfl.role import PeerError
from streamfl.wire import Count

__all__ = ["PUBLIC_BYTES", "Answers", "Peers"]

PUBLIC_BYTES = 32
KEY = b"peer/"
# Lives of a party that are remembered. Its messages may be written twice, or by a process that has lost the partition, so the last
# that was heard of need not be the present one.
MOST_LIVES = 8


class _Life(msgspec.Struct, array_like=True):
    """number, public: of an incarnation."""

    number: Count
    public: bytes


class _Peer(msgspec.Struct, array_like=True):
    """lives: the one that was heard of last at the end. revisions, tellings: whose numbers were heard, these by life."""

    lives: list[_Life] = []
    revisions: list[NumberRange] = []
    tellings: list[NumberRange] = []


class Answers(msgspec.Struct, array_like=True):
    """bandwidth: of the first answer with features, 0: there was none. distances: rounds of distances that were answered."""

    bandwidth: Amount = 0.0
    distances: Count = 0


class _Told(msgspec.Struct, array_like=True):
    """number: of the own life that the others were told of. telling: how often anybody was told of it."""

    number: Count = 0
    telling: Count = 0
    # Last, so that a release that does not know of it takes the rest. Before it says anything it writes this record without it: so
    # what was answered is forgotten where features of any bandwidth may have been drawn alike meanwhile.
    answers: Answers = msgspec.field(default_factory=Answers)


class Peers:
    """The parties of a federation as one of them knows them in a partition; remembered as ``peer/NUMBER`` and ``told``.

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
        # By party and incarnation.
        self._secrets: dict[tuple[int, int], bytes] = {}
        self._entropy = entropy
        self.incarnation = OwnIncarnation(entropy())
        self._told = _Told()
        # Found when it is first asked for.
        self._is_complete: bool | None = None
        # Since when somebody takes another life for the present one.
        self.mistaken_since: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every other party has said how to reach it, and no two say the same: then one of them is not who it says."""
        if self._is_complete is None:
            self._is_complete = not self.missing and len(set(self.numbers)) == len(self._names)
        return self._is_complete

    @property
    def missing(self) -> list[str]:
        """The parties that have not."""
        return [name for number, name in enumerate(self._names) if number != self._own and not self.knows_of(number)]

    @property
    def numbers(self) -> list[int]:
        """The incarnations of all parties, in order; KeyError if one was never heard of."""
        return [self.number_of(party) for party in range(len(self._names))]

    def number_of(self, party: int) -> int:
        """The latest incarnation of a party; KeyError if it was never heard of."""
        return self.incarnation.number if party == self._own else self._peers[party].lives[-1].number

    def knows_of(self, party: int) -> bool:
        """Whether the party has ever said how to reach it."""
        peer = self._peers.get(party)
        return peer is not None and bool(peer.lives)

    def know(self, numbers: Sequence[int]) -> bool:
        """Whether these are incarnations of all parties, this one's present one among them.

        Which of another's is the present one it knows itself, and answers to no other.
        """
        return self.complete and all(
            number == self.incarnation.number
            if party == self._own
            else any(life.number == number for life in self._peers[party].lives)
            for party, number in enumerate(numbers)
        )

    def knows(self, party: int, number: int) -> bool:
        """Whether this incarnation of another party was heard of."""
        peer = self._peers.get(party)
        return peer is not None and any(life.number == number for life in peer.lives)

    def was_heard(self, party: int, message: Incarnation) -> bool:
        """Whether this very message came before: what it says may be over by now."""
        known = self._peers.get(party)
        return known is not None and was_heard(known.tellings, message.number, message.telling)

    def hear(self, party: int, message: Incarnation) -> bool:
        """A party says which life of it this is. Returns whether another was its latest. PeerError for a key of another number.

        Nothing proves that the party said so. What is wrong is put right by its next word, to which every answer leads that names
        another life than its own.
        """
        if len(message.public) != PUBLIC_BYTES or life_number(message.public) != message.number:
            raise PeerError("malformed", f"incarnation {message.number} of {message.sender!r} has a key of another number")
        known = self._peers.get(party)
        if known is not None and known.lives and known.lives[-1].number == message.number:
            note(known.tellings, message.number, message.telling)
            self._parts.remember(KEY + b"%d" % party, known)
            return False
        try:
            secret = self.incarnation.pair_secret(message.public)
        except ValueError as error:
            raise PeerError("malformed", f"incarnation {message.number} of {message.sender!r}: {error}") from None
        self._secrets[party, message.number] = secret
        peer = self._peers.setdefault(party, _Peer())
        peer.lives = [life for life in peer.lives if life.number != message.number]
        peer.lives.append(_Life(message.number, message.public))
        for gone in peer.lives[:-MOST_LIVES]:
            self._secrets.pop((party, gone.number), None)
        peer.lives = peer.lives[-MOST_LIVES:]
        self._is_complete = None
        note(peer.tellings, message.number, message.telling)
        self._parts.remember(KEY + b"%d" % party, peer)
        return True

    def pair_secrets(self, numbers: Sequence[int]) -> Mapping[int, bytes]:
        """By party, what only this party's present life and that incarnation of it can compute; of ones that it knows."""
        return {party: self._pair_secret(party, number) for party, number in enumerate(numbers) if party != self._own}

    def _pair_secret(self, party: int, number: int) -> bytes:
        if (party, number) not in self._secrets:
            (life,) = (life for life in self._peers[party].lives if life.number == number)
            self._secrets[party, number] = self.incarnation.pair_secret(life.public)
        return self._secrets[party, number]

    def note_revision(self, party: int, epoch: int, sequence: int, at: float) -> bool:
        """Whether a revision with these numbers is new. PeerError for numbers that no party can have come to."""
        check_numbers(epoch, sequence, at)
        # It may come before the party's first word: that lies in another topic.
        peer = self._peers.setdefault(party, _Peer())
        if was_heard(peer.revisions, epoch, sequence):
            return False
        note(peer.revisions, epoch, sequence)
        self._parts.remember(KEY + b"%d" % party, peer)
        return True

    @property
    def are_told(self) -> bool:
        """Whether the others were told of this life."""
        return self._told.number == self.incarnation.number

    def tell(self) -> int:
        """Somebody is told of this life. Returns the number of this telling."""
        before = self._told.telling if self._told.number == self.incarnation.number else 0
        self._told = _Told(self.incarnation.number, before + 1, self._told.answers)
        self._parts.remember(b"told", self._told)
        return self.incarnation.telling(self._told.telling)

    @property
    def answers(self) -> Answers:
        """What the party has answered, in all its lives."""
        return self._told.answers

    def answered(self) -> None:
        """There are more :attr:`answers`."""
        self._parts.remember(b"told", self._told)

    def is_mistaken(self, now: float) -> None:
        """Somebody takes another life for the present one: at the next tick all are told again."""
        if self.mistaken_since is None:
            self.mistaken_since = now

    def begin_anew(self) -> None:
        """Take another life, for it is not known any more what this one has answered."""
        self.incarnation = OwnIncarnation(self._entropy())
        self._secrets.clear()
        self._is_complete = None

    def restore(self, name: bytes, value: bytes) -> None:
        party = int(name)
        if not 0 <= party < len(self._names) or party == self._own:
            raise PeerError("malformed", f"peer {party} is remembered, there are {len(self._names)} parties, from 0")
        peer = msgspec.msgpack.decode(value, type=_Peer)
        if any(len(life.public) != PUBLIC_BYTES for life in peer.lives):
            raise PeerError("malformed", f"peer {party} is remembered with a key that is none")
        self._peers[party] = peer
        self._is_complete = None

    def restore_told(self, value: bytes) -> None:
        self._told = msgspec.msgpack.decode(value, type=_Told)
