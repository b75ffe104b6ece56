"""The ledger of each entity's noisy releases, and their cost."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Literal

import msgspec

from streamfl.contract.role import BadRecord, OperatorNotice
from streamfl.encoding.changelog_checks import Amount, check_name
from streamfl.encoding.wire import Count

__all__ = ["KIND", "Ledger", "promise_ended"]

# The keys of its records are KIND/entity.
KIND = b"spent"
# An infinite cost is stored as this number. No sum of finite costs reaches it.
UNBOUNDED = 1e300


class _Entry(msgspec.Struct, array_like=True, gc=False):
    """The releases of one entity.

    spent: the cost of all its releases, each as it cost at its time.
    times: how many releases there were.
    """

    spent: Amount = 0.0
    times: Count = 0


# The entry of an entity without a release. Never changed.
_NOTHING = _Entry()


class Ledger:
    """The ledger of one partition. It never forgets an entity: a forgotten one could be released for its full
    budget again.

    Costs add up. The accountant defines them: mu^2 of Gaussian mechanisms (``accountant``), rho of
    zero-concentrated ones (``zcdp``). A release without noise has an infinite cost: no budget allows anything
    after it.

    limit: most entities in the ledger. Releases of further entities are refused.
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
        """Whether anything changed since the last call of ``changed_state``."""
        return bool(self._changed)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def largest(self) -> float:
        """The highest cost of any entity, infinite if any release was without noise."""
        return self._largest if self._largest < UNBOUNDED else math.inf

    def spent(self, entity: str) -> float:
        """The cost of an entity's releases, infinite if one was without noise."""
        spent = self._entries.get(entity, _NOTHING).spent
        return spent if spent < UNBOUNDED else math.inf

    def times(self, entity: str) -> int:
        """Number of releases of an entity."""
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
        """An entity's entry, encoded; None if nothing was released of the entity."""
        entry = self._entries.get(entity)
        return None if entry is None else msgspec.msgpack.encode(entry)

    def changed_state(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of what changed since the last call."""
        for entity in self._changed:
            yield KIND + b"/" + entity.encode(), msgspec.msgpack.encode(self._entries[entity])
        self._changed = {}

    def restore(self, name: bytes, value: bytes) -> None:
        """Restore the value of the key ``KIND``/``name``. The first versions of streamfl stored the cost
        alone."""
        found = msgspec.msgpack.decode(value, type=Amount | _Entry)
        entry = found if isinstance(found, _Entry) else _Entry(found)
        self._entries[check_name(name)] = entry
        self._largest = max(self._largest, entry.spent)


def promise_ended(who: str, missing: str, without_noise: bool) -> OperatorNotice:
    """The notice for the log that a member with a ledger releases without noise from now on.

    who: the member.
    missing: the settings of the noise.
    without_noise: whether the operator asked for that; BadRecord if not.
    """
    if not without_noise:
        raise BadRecord(
            "configuration",
            f"{who} has a ledger of its releases with noise, but {missing} is missing: restore it, or set "
            "privacy.without_noise = true to send without noise from now on, which ends the guarantee of mu",
        )
    return OperatorNotice(
        "without_noise",
        f"{who} continues without noise, as privacy.without_noise says: its mu does not hold any longer",
    )
