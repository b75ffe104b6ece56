"""The ledger of what was released of each entity, with noise, and what that cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from streamfl.changelog_checks import Amount, check_name
from streamfl.role import OperatorNotice, PeerError
from streamfl.wire import Count

__all__ = ["KIND", "Ledger", "promise_ended"]

# The keys of its records are KIND/entity.
KIND = b"spent"
# What an infinite cost is remembered as: nothing adds up to it.
UNBOUNDED = 1e300


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """Of one entity.

    spent: the cost of all its releases, each at the price of its time.
    times: how many releases there were.
    """

    spent: Amount = 0.0
    times: Count = 0


# Of an entity of which nothing was released. Nobody changes it.
_NOTHING = _Entry()


class Ledger:
    """The ledger of one partition. It never forgets an entity: a forgotten one could be released for its full budget again.

    A cost adds up, and its accountant says what it is: mu^2 of Gaussian mechanisms (``accountant``), rho of zero-concentrated ones
    (``zcdp``). An infinite cost is of a release without noise: no budget allows anything after it.

    limit: entities that it has room for. Nothing may be released of others.
    budget: the cost that no entity may exceed, None for none.
    """

    def __init__(self, limit: int, budget: float | None) -> None:
        self._limit = limit
        # A sum that reaches the budget exactly may be above it by rounding.
        self._most = math.inf if budget is None else budget * (1 + 1e-12) ** 2
        self._entries: dict[str, _Entry] = {}
        self._changed: dict[str, None] = {}
        self._largest = 0.0

    @property
    def has_changed(self) -> bool:
        """Since the last call of ``changed_state``."""
        return bool(self._changed)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def largest(self) -> float:
        """Cost of the entity of which most was released, infinite where something was without noise."""
        return self._largest if self._largest < UNBOUNDED else math.inf

    def spent(self, entity: str) -> float:
        """Cost of what was released of an entity, infinite where something was without noise."""
        spent = self._entries.get(entity, _NOTHING).spent
        return spent if spent < UNBOUNDED else math.inf

    def times(self, entity: str) -> int:
        """How often something was released of an entity."""
        return self._entries.get(entity, _NOTHING).times

    def refusal(self, entity: str, cost: float) -> Literal["budget", "ledger"] | None:
        """Why a release at this cost is not allowed; None if it is."""
        if entity not in self._entries and len(self._entries) >= self._limit:
            return "ledger"
        return "budget" if self.spent(entity) + cost > self._most else None

    def refusal_of_all(self, entities: Collection[str], cost: float) -> Literal["budget", "ledger"] | None:
        """Why releases of all of these together, each for ``cost``, are not allowed; None if they are."""
        if len(self._entries) + sum(entity not in self._entries for entity in entities) > self._limit:
            return "ledger"
        return "budget" if any(self.spent(entity) + cost > self._most for entity in entities) else None

    def spend(self, entity: str, cost: float) -> int:
        """Count a release of an entity at this cost. Returns how many there were, this one included."""
        entry = self._entries.setdefault(entity, _Entry())
        entry.spent = min(entry.spent + cost, UNBOUNDED)
        entry.times += 1
        self._largest = max(self._largest, entry.spent)
        self._changed[entity] = None
        return entry.times

    def value_of(self, entity: str) -> bytes | None:
        """What is remembered of an entity, as it is written; None: nothing was released of it."""
        entry = self._entries.get(entity)
        return None if entry is None else msgspec.msgpack.encode(entry)

    def changed_state(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of what changed since the last call."""
        for entity in self._changed:
            yield KIND + b"/" + entity.encode(), msgspec.msgpack.encode(self._entries[entity])
        self._changed = {}

    def restore(self, name: bytes, value: bytes) -> None:
        """Take back the value of the key ``KIND``/``name``. The first releases wrote the cost alone."""
        found = msgspec.msgpack.decode(value, type=Amount | _Entry)
        entry = found if isinstance(found, _Entry) else _Entry(found)
        self._entries[check_name(name)] = entry
        self._largest = max(self._largest, entry.spent)


def promise_ended(who: str, missing: str, without_noise: bool) -> OperatorNotice:
    """The notice for the log that a member with a ledger releases without noise from now on.

    who: the member.
    missing: the settings of the noise.
    without_noise: whether the operator asked for that; PeerError if not.
    """
    if not without_noise:
        raise PeerError(
            "configuration",
            f"{who} has a ledger of what it told with noise, and {missing} is missing: put it back, or set "
            "privacy.without_noise = true to send without noise from now on, which ends what was claimed of mu",
        )
    return OperatorNotice("without_noise", f"{who} goes on without noise, as privacy.without_noise says: its mu holds no longer")
