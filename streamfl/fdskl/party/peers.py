"""What a party knows about the others in a partition: the current life of each, and its key to agree on
masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Amount
from streamfl.encoding.wire import Count
from streamfl.fdskl.messages import Incarnation
from streamfl.fdskl.state import ANNOUNCED, PEER
from streamfl.fdskl.sums.masks import OwnIncarnation, life_number
from streamfl.roles.received_numbers import NumberRange, check_numbers, note, was_heard
from streamfl.state.changelog import ChangedParts

__all__ = ["PUBLIC_BYTES", "GivenAnswers", "Peers"]

PUBLIC_BYTES = 32
# Lives of a party that are remembered. Its messages may be written twice, or by a process that has lost the
# partition, so the last one received need not be the current life.
MOST_LIVES = 8
# From a party's mistake to the announcement that corrects it. One announcement corrects all mistakes until
# then: if each had its own, two parties with many unread announcements of earlier lives would answer one
# another without end.
CORRECTION_SECONDS = 0.1


class _Life(msgspec.Struct, array_like=True):
    """number, public: of an incarnation."""

    number: Count
    public: bytes


class _Peer(msgspec.Struct, array_like=True):
    """lives: the last one received at the end. revisions, tellings: numbers of those received, tellings by
    life."""

    lives: list[_Life] = []
    revisions: list[NumberRange] = []
    tellings: list[NumberRange] = []


class GivenAnswers(msgspec.Struct, array_like=True):
    """bandwidth: of the first answer with features, 0: there was none. distances: rounds of distances that
    were answered."""

    bandwidth: Amount = 0.0
    distances: Count = 0


class _Told(msgspec.Struct, array_like=True):
    """number: of the own life that was announced to the others. telling: how often it was announced to
    anybody."""

    number: Count = 0
    telling: Count = 0
    # Last, so that a release without this field can read the rest. Such a release writes the record without
    # it before it sends anything. So the answers are forgotten where it may have drawn features of any
    # bandwidth alike.
    answers: GivenAnswers = msgspec.field(default_factory=GivenAnswers)


class Peers:
    """The parties of a federation as one of them knows them in a partition.

    The party's own incarnation begins with the object and is never remembered: after a restart nobody, not
    even the party itself, can compute the earlier masks.

    names: of all parties, in order.
    own: this party's place among them.
    entropy: gives 32 secret bytes that were never given before.
    """

    def __init__(
        self, parts: ChangedParts, names: Sequence[str], own: int, entropy: Callable[[], bytes]
    ) -> None:
        self._kept_peers = parts.named(PEER, int, _Peer, self.restore)
        self._remember_told = parts.single(ANNOUNCED, _Told, self._restore_told)
        self._names = names
        self._own = own
        self._peers: dict[int, _Peer] = {}
        # By party and incarnation.
        self._secrets: dict[tuple[int, int], bytes] = {}
        self._entropy = entropy
        self.incarnation = OwnIncarnation(entropy())
        self._told = _Told()
        # Computed when it is first needed.
        self._is_complete: bool | None = None
        # Since when a party takes another life for the current one.
        self.mistaken_since: float | None = None

    @property
    def complete(self) -> bool:
        """Whether every other party has announced its life, and no two announced the same: then one of them
        would be false."""
        if self._is_complete is None:
            self._is_complete = not self.missing and len(set(self.numbers)) == len(self._names)
        return self._is_complete

    @property
    def missing(self) -> list[str]:
        """The parties that have not announced their life."""
        return [
            name
            for number, name in enumerate(self._names)
            if number != self._own and not self.knows_of(number)
        ]

    @property
    def numbers(self) -> list[int]:
        """The incarnations of all parties, in order; KeyError if one is unknown."""
        return [self.number_of(party) for party in range(len(self._names))]

    def number_of(self, party: int) -> int:
        """The latest incarnation of a party; KeyError if none is known."""
        return self.incarnation.number if party == self._own else self._peers[party].lives[-1].number

    def knows_of(self, party: int) -> bool:
        """Whether the party has ever announced a life."""
        peer = self._peers.get(party)
        return peer is not None and bool(peer.lives)

    def know(self, numbers: Sequence[int]) -> bool:
        """Whether these are known incarnations of all parties, with the current one of this party.

        Only the other party knows which of its own is the current one. It does not answer to any other.
        """
        return self.complete and all(
            number == self.incarnation.number
            if party == self._own
            else any(life.number == number for life in self._peers[party].lives)
            for party, number in enumerate(numbers)
        )

    def knows(self, party: int, number: int) -> bool:
        """Whether this incarnation of another party is known."""
        peer = self._peers.get(party)
        return peer is not None and any(life.number == number for life in peer.lives)

    def was_heard(self, party: int, message: Incarnation) -> bool:
        """Whether this very message came before, so that it may be outdated."""
        known = self._peers.get(party)
        return known is not None and was_heard(known.tellings, message.number, message.telling)

    def hear(self, party: int, message: Incarnation) -> bool:
        """Take a party's announcement of its life. Returns whether another was its latest. BadRecord for a
        key of another number.

        Nothing proves that the party wrote it. The party's next announcement corrects a false one, and every
        message to it that names a wrong life makes it announce again.
        """
        if len(message.public) != PUBLIC_BYTES or life_number(message.public) != message.number:
            raise BadRecord(
                "malformed", f"incarnation {message.number} of {message.sender!r} has a key of another number"
            )
        known = self._peers.get(party)
        if known is not None and known.lives and known.lives[-1].number == message.number:
            note(known.tellings, message.number, message.telling)
            self._kept_peers.remember(party, known)
            return False
        try:
            secret = self.incarnation.pair_secret(message.public)
        except ValueError as error:
            raise BadRecord(
                "malformed", f"incarnation {message.number} of {message.sender!r}: {error}"
            ) from None
        self._secrets[party, message.number] = secret
        peer = self._peers.setdefault(party, _Peer())
        peer.lives = [life for life in peer.lives if life.number != message.number]
        peer.lives.append(_Life(message.number, message.public))
        for gone in peer.lives[:-MOST_LIVES]:
            self._secrets.pop((party, gone.number), None)
        peer.lives = peer.lives[-MOST_LIVES:]
        self._is_complete = None
        note(peer.tellings, message.number, message.telling)
        self._kept_peers.remember(party, peer)
        return True

    def pair_secrets(self, numbers: Sequence[int]) -> Mapping[int, bytes]:
        """By party, the secret that only this party's current life and that incarnation can compute. All have
        to be known."""
        return {
            party: self._pair_secret(party, number)
            for party, number in enumerate(numbers)
            if party != self._own
        }

    def _pair_secret(self, party: int, number: int) -> bytes:
        if (party, number) not in self._secrets:
            (life,) = (life for life in self._peers[party].lives if life.number == number)
            self._secrets[party, number] = self.incarnation.pair_secret(life.public)
        return self._secrets[party, number]

    def note_revision(self, party: int, epoch: int, sequence: int, at: float) -> bool:
        """Whether a revision with these numbers is new. BadRecord for numbers that no party can have
        reached."""
        check_numbers(epoch, sequence, at)
        # It may come before the party's first announcement, which is in another topic.
        peer = self._peers.setdefault(party, _Peer())
        if was_heard(peer.revisions, epoch, sequence):
            return False
        note(peer.revisions, epoch, sequence)
        self._kept_peers.remember(party, peer)
        return True

    @property
    def are_told(self) -> bool:
        """Whether this life was announced to the others."""
        return self._told.number == self.incarnation.number

    def tell(self) -> int:
        """Count an announcement of this life to a party. Returns the number of the announcement."""
        before = self._told.telling if self._told.number == self.incarnation.number else 0
        self._told = _Told(self.incarnation.number, before + 1, self._told.answers)
        self._remember_told(self._told)
        return self.incarnation.telling(self._told.telling)

    @property
    def answers(self) -> GivenAnswers:
        """What the party has answered, in all its lives."""
        return self._told.answers

    def answered(self) -> None:
        """Remember :attr:`answers`, which have changed."""
        self._remember_told(self._told)

    @property
    def correction_at(self) -> float | None:
        """When to announce this life to all again, because a party takes another one for it; None: never."""
        return None if self.mistaken_since is None else self.mistaken_since + CORRECTION_SECONDS

    def is_mistaken(self, now: float) -> None:
        """A party takes another life for the current one."""
        if self.mistaken_since is None:
            self.mistaken_since = now

    def begin_anew(self) -> None:
        """Begin another life, because it is no longer known what this one has answered."""
        self.incarnation = OwnIncarnation(self._entropy())
        self._secrets.clear()
        self._is_complete = None

    def restore(self, party: int, peer: _Peer) -> None:
        if not 0 <= party < len(self._names) or party == self._own:
            raise BadRecord(
                "malformed", f"peer {party} is remembered, there are {len(self._names)} parties, from 0"
            )
        if any(len(life.public) != PUBLIC_BYTES for life in peer.lives):
            raise BadRecord("malformed", f"peer {party} is remembered with a key that is none")
        self._peers[party] = peer
        self._is_complete = None

    def _restore_told(self, told: _Told) -> None:
        self._told = told
