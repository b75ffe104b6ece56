"""A lockstep round of one shard: its updates, the clients that it waits for, and when it is over."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.state import PENDING, ROUND

__all__ = ["OpenRound", "RoundRecord"]


class RoundRecord(msgspec.Struct, array_like=True):
    """The stored state of the open round, without its updates.

    opened_at: when its first update was written to its topic, or the server saw that updates were lost; None:
        no round is open.
    ever_timed_out: a round was closed without all clients of the federation.
    dimension: of the clients' inputs.
    misled: a client already has the next version, which another writer published.
    """

    opened_at: Time | None
    ever_timed_out: bool
    dimension: Count
    misled: bool = False


class OpenRound:
    """The open round, and its updates.

    timeout: seconds after the first update in which the round is closed without the clients that are missing.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.record = RoundRecord(None, False, 0)
        self.pending: dict[str, Update] = {}
        # The clients that it waits for.
        self.missing: set[str] = set()
        self._pending_changed: dict[str, None] = {}
        self._changed = False

    @property
    def dimension(self) -> int:
        return self.record.dimension

    @dimension.setter
    def dimension(self, dimension: int) -> None:
        self.record.dimension, self._changed = dimension, True

    @property
    def over_at(self) -> float | None:
        """When the round times out; None: no round is open."""
        return None if self.record.opened_at is None else self.record.opened_at + self.timeout

    def add(self, update: Update, at: float) -> None:
        """Add an update to the round. at: when it was written to its topic."""
        self.pending[update.client] = update
        self._pending_changed[update.client] = None
        self.missing.discard(update.client)
        self.open(at)

    def open(self, at: float) -> None:
        """Let the round begin, unless it has."""
        if self.record.opened_at is None:
            self.record.opened_at, self._changed = at, True

    def mislead(self) -> None:
        """Note that a client already has the next version, which this server never published."""
        self.record.misled, self._changed = True, True

    def forget(self, name: str) -> None:
        """Stop waiting for a client, and drop its update."""
        self.missing.discard(name)
        if self.pending.pop(name, None) is not None:
            self._pending_changed[name] = None

    def is_complete(self, clients: int) -> bool:
        """Whether all awaited clients are there. Until a round has timed out these are all ``clients`` of the
        federation."""
        complete = not self.missing if self.record.ever_timed_out else len(self.pending) >= clients
        return bool(self.pending) and complete

    def let_time_out(self) -> None:
        """Note that a round closes without its missing clients."""
        self.record.ever_timed_out = True

    def in_order(self) -> list[Update]:
        """The updates in order of the clients' names, so that their sum does not depend on the order of
        arrival."""
        return [self.pending[name] for name in sorted(self.pending)]

    def begin_anew(self, awaited: Collection[str]) -> None:
        """Begin the next round, which waits for the clients ``awaited``."""
        self._pending_changed.update(dict.fromkeys(self.pending))
        self.record.misled = False
        self.pending = {}
        self.missing = set(awaited)
        self.leave()

    def leave(self) -> None:
        """No round is open."""
        self.record.opened_at, self._changed = None, True

    def set_back(self, now: float) -> None:
        """Let a round that began after ``now`` have begun now: the clock was ahead."""
        if self.record.opened_at is not None and self.record.opened_at > now:
            self.record.opened_at, self._changed = now, True

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Keys and values that changed since the last call; None deletes the key."""
        for name in self._pending_changed:
            update = self.pending.get(name)
            yield PENDING.prefix + name.encode(), None if update is None else UPDATE.encode(update)
        if self._changed:
            yield ROUND.prefix, msgspec.msgpack.encode(self.record)
        self._pending_changed, self._changed = {}, False

    def restore(self, _: bytes, value: bytes) -> None:
        self.record = msgspec.msgpack.decode(value, type=RoundRecord)
