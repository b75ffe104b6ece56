"""A ledger with a checksum of its entries, which shows whether all of them were restored."""

from __future__ import annotations

import hashlib

from streamfl.privacy.ledger import Ledger

__all__ = ["SummedLedger"]

SUM_BYTES = 32


class SummedLedger(Ledger):
    """The sum of the SHA-256 of each entry, modulo 2^256. It does not depend on the order in which entries
    are restored."""

    def __init__(self, limit: int, budget: float | None) -> None:
        super().__init__(limit, budget)
        self._sum = 0

    @property
    def sum(self) -> bytes:
        """32 bytes; zeros for an empty ledger."""
        return self._sum.to_bytes(SUM_BYTES, "big")

    def spend(self, entity: str, cost: float) -> int:
        self._add(entity, -1)
        times = super().spend(entity, cost)
        self._add(entity, 1)
        return times

    def restore(self, name: bytes, value: bytes) -> None:
        entity = name.decode()
        self._add(entity, -1)
        super().restore(name, value)
        self._add(entity, 1)

    def _add(self, entity: str, sign: int) -> None:
        if (value := self.value_of(entity)) is not None:
            found = hashlib.sha256(len(value).to_bytes(8, "big") + value + entity.encode()).digest()
            self._sum = (self._sum + sign * int.from_bytes(found, "big")) % 2 ** (8 * SUM_BYTES)
