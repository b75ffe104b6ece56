"""The clients of a shard of the server: seats, received update numbers, and the clients that a lockstep round
waits for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.roles.received_numbers import NumberRange, note, was_heard
from streamfl.roles.rhythm import Rhythm

__all__ = ["MemberState", "ShardMembers"]

# A client that let m rounds time out is awaited again after it has taken part 2^m times; m is at most this.
MOST_DOUBLINGS = 10
# Awaited rounds that a client has to take part in to make good for one that it let time out.
ROUNDS_TO_MAKE_GOOD = 64
Misses = Annotated[int, msgspec.Meta(ge=0, le=MOST_DOUBLINGS)]
# -1: no version yet.
Tried = Annotated[int, msgspec.Meta(ge=-1, le=2**53)]


class MemberState(msgspec.Struct, array_like=True):
    """A shard's stored state of a client.

    epoch, sequence: of the last update received.
    seen_at: when that update was written.
    awaited: a round waits for the client until its timeout.
    ranges: the update numbers received.
    taught: the client has sent a kernel.
    misses: rounds that waited for it in vain, less those it made good.
    tries: updates towards being awaited again, or rounds towards making good.
    tried_on: the newest version that a try was counted for.
    rhythm: how often its updates come.
    """

    epoch: Count
    sequence: Count
    seen_at: Time
    awaited: bool
    ranges: list[NumberRange] = []
    taught: bool = True
    misses: Misses = 0
    tries: Count = 0
    tried_on: Tried = -1
    rhythm: Rhythm = msgspec.field(default_factory=Rhythm)


class ShardMembers:
    """Up to ``limit`` clients. A client without updates for ``expiry`` seconds makes room for a newcomer.

    A client that never sent a kernel makes room at once for a newcomer that does.
    """

    def __init__(self, limit: int, expiry: float) -> None:
        self.limit = limit
        self.expiry = expiry
        self.awaited: set[str] = set()
        self._members: dict[str, MemberState] = {}
        self._changed: dict[str, None] = {}
        # By whether the newcomer sends kernels: until when no seat becomes free. A batch may ask for a seat
        # thousands of times.
        self._full_until: dict[bool, float] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._members)

    def batch_is_over(self) -> None:
        self._full_until = {}

    def was_heard(self, name: str, epoch: int, sequence: int) -> bool:
        member = self._members.get(name)
        return member is not None and was_heard(member.ranges, epoch, sequence)

    def speaks_for(self, name: str, epoch: int) -> bool:
        """Whether the client's latest update had this epoch."""
        return name in self._members and self._members[name].epoch == epoch

    def set_back(self, now: float) -> None:
        """Set times after ``now`` back to ``now``: the clock was ahead."""
        for name, member in self._members.items():
            if member.rhythm.set_back(now) or member.seen_at > now:
                member.seen_at = min(member.seen_at, now)
                self._changed[name] = None
        self._full_until = {}

    def make_room(self, newcomer: str, at: float, teaches: bool) -> str | None:
        """The client to forget for the newcomer; None: there is a free seat. BadRecord if no seat can be
        freed.

        A newcomer that sends kernels takes the seat of a client that never did.
        """
        if newcomer in self._members or len(self._members) < self.limit:
            return None
        if at < self._full_until.get(teaches, at):
            raise self._too_many(newcomer)
        longest = min(
            self._members,
            key=lambda name: (not teaches or self._members[name].taught, self._members[name].seen_at),
        )
        given_up = teaches and not self._members[longest].taught
        if not given_up and at - self._members[longest].seen_at < self.expiry:
            self._full_until[teaches] = self._members[longest].seen_at + self.expiry
            raise self._too_many(newcomer)
        return longest

    def _too_many(self, newcomer: str) -> BadRecord:
        return BadRecord(
            "too_many_clients",
            f"{newcomer!r} would be client {self.limit + 1}: raise federation.clients, or wait until one has "
            f"been idle for federation.client_expiry_seconds = {self.expiry:g}",
        )

    def silent_from(self, name: str) -> float | None:
        """When the client's pause exceeds its usual pauses, by the clock; None: that is not known."""
        return None if name not in self else self._members[name].rhythm.overdue_at

    def note(self, name: str, epoch: int, sequence: int, at: float, now: float, taught: bool) -> bool:
        """Note an update that was written ``at`` and received ``now``. True if a later number of the client
        came just before."""
        member = self._members.get(name)
        if member is None:
            member = self._members[name] = MemberState(epoch, sequence, at, False, taught=taught)
        behind = note(member.ranges, epoch, sequence)
        member.epoch, member.sequence, member.seen_at = epoch, sequence, at
        member.taught = member.taught or taught
        member.rhythm.came(at, now)
        self._changed[name] = None
        return behind

    def takes_part(self, name: str, version: int) -> None:
        """Note a client's update for this round or the one before. Rounds wait for it again after 2^misses of
        these."""
        member = self._members[name]
        if member.awaited or version <= member.tried_on:
            return
        member.tried_on = version
        member.tries += 1
        if member.tries >= 2**member.misses:
            member.awaited, member.tries = True, 0
            self.awaited.add(name)

    def let_time_out(self, names: Iterable[str]) -> None:
        """Note that a round waited for these clients in vain."""
        for name in names:
            member = self._members[name]
            member.awaited, member.tries, member.misses = False, 0, min(member.misses + 1, MOST_DOUBLINGS)
            self.awaited.discard(name)
            self._changed[name] = None

    def were_there(self, names: Iterable[str]) -> None:
        """Note that a round closed with these clients in it."""
        for name in names:
            member = self._members.get(name)
            if member is None or not (member.awaited and member.misses):
                continue
            member.tries += 1
            if member.tries >= ROUNDS_TO_MAKE_GOOD:
                member.misses, member.tries = member.misses - 1, 0
            self._changed[name] = None

    def forget(self, name: str) -> bool:
        """Forget a client; False if it is not known."""
        if self._members.pop(name, None) is None:
            return False
        self.awaited.discard(name)
        self._changed[name] = None
        self._full_until = {}
        return True

    def changed_state(self) -> Iterable[tuple[str, bytes | None]]:
        """Names and records of the clients that changed since the last call; None: the client was
        forgotten."""
        changed, self._changed = self._changed, {}
        for name in changed:
            member = self._members.get(name)
            yield name, None if member is None else msgspec.msgpack.encode(member)

    def restore(self, encoded: bytes, value: bytes) -> None:
        name = encoded.decode()
        member = self._members[name] = msgspec.msgpack.decode(value, type=MemberState)
        if not member.ranges:
            # The first releases stored no ranges: everything up to the latest number was received.
            member.ranges.append(NumberRange(member.epoch, 0, member.sequence))
        if member.awaited:
            self.awaited.add(name)
