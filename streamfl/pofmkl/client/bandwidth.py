"""Limits on what a client sends: a token bucket of encoded bytes, and the number of kernels that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from streamfl.contract.role import Measurement
from streamfl.encoding.wire import VERSION, encoded_size
from streamfl.pofmkl.client.client_record import ClientRecord
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import AWAITED, UPDATE, Update
from streamfl.pofmkl.metrics import UplinkMetrics

__all__ = ["Budgets", "TokenBucket", "UpdateCost"]

_LARGEST = 2**62


@dataclass(frozen=True)
class UpdateCost:
    """Upper bounds on the encoded bytes of an upload.

    client: the client's name.
    row_bytes: the raw bytes of one kernel's step.
    shards: how many messages an upload may be split into.
    notify_all: every shard gets a message (lockstep).
    seal_bytes: what a seal adds to a message.
    """

    client: str
    row_bytes: int
    shards: int
    notify_all: bool
    seal_bytes: int = 0

    def bytes_for(self, kernels: int) -> int:
        """Upper bound for an upload of ``kernels`` kernels, framing included, measured by encoding the
        largest such message."""
        messages = self.shards if self.notify_all else min(kernels, self.shards)
        # A kernel number takes at most 5 bytes.
        return messages * self._empty_bytes + kernels * (self.row_bytes + 5)

    @cached_property
    def _empty_bytes(self) -> int:
        """Bytes of the largest message without a kernel. Cached for each client, since every upload needs the
        cost."""
        largest = Update(
            VERSION, _LARGEST, _LARGEST, self.client, _LARGEST, _LARGEST, _LARGEST, _LARGEST, (), b""
        )
        # The length of an array or of bytes takes at most 5 bytes.
        return encoded_size(self.client.encode(), UPDATE.encode(largest), AWAITED) + 10 + self.seal_bytes

    def kernels_within(self, budget: float, kernels: int) -> int:
        """M: the most kernels, of ``kernels``, whose upload costs no more than ``budget`` bytes."""
        low, high = 0, kernels
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= budget else (low, middle - 1)
        return low


class TokenBucket:
    """Bytes that may be sent: at most ``depth + rate * seconds`` in any span, never overdrawn.

    When the clock jumps ahead, the bucket fills at once: at most one ``depth`` more each time. When the clock
    was set back, the caller has to set ``filled_at`` to now; otherwise the bucket does not fill until that
    time comes again.

    >>> bucket = TokenBucket(rate=100.0, depth=200.0, tokens=200.0, filled_at=0.0)
    >>> bucket.take(150.0, now=0.0), bucket.take(150.0, now=0.5), bucket.take(150.0, now=1.0)
    (True, False, True)
    """

    __slots__ = ("depth", "filled_at", "rate", "tokens")

    def __init__(self, rate: float, depth: float, tokens: float, filled_at: float) -> None:
        self.rate, self.depth, self.tokens, self.filled_at = rate, depth, tokens, filled_at

    def available(self, now: float) -> float:
        """Bytes that may be sent at ``now``. Does not change the bucket: its state changes only when bytes
        are taken or sent."""
        # A clock that steps back takes nothing away.
        return min(self.depth, self.tokens + self.rate * max(0.0, now - self.filled_at))

    def take(self, amount: float, now: float) -> bool:
        available = self.available(now)
        if available < amount:
            return False
        self._leave(available - amount, now)
        return True

    def sent(self, amount: float, now: float) -> None:
        """Note that bytes taken earlier are sent now. Tokens that came in between must not come on top of a
        full bucket.

        >>> bucket = TokenBucket(rate=100.0, depth=200.0, tokens=200.0, filled_at=0.0)
        >>> bucket.take(200.0, now=0.0), bucket.sent(200.0, now=2.0), bucket.available(now=2.0)
        (True, None, 0.0)
        """
        self._leave(min(self.available(now), self.depth - amount), now)

    def _leave(self, tokens: float, now: float) -> None:
        # A clock that steps back must not refill the bucket twice for the same second.
        self.tokens, self.filled_at = tokens, max(self.filled_at, now)


class Budgets:
    """The byte budgets of a worker's clients: makes their buckets, and counts the bytes that they have
    allowed.

    row_bytes, seal_bytes: as :class:`UpdateCost` has them.
    """

    def __init__(self, settings: PofmklSettings, row_bytes: int, seal_bytes: int) -> None:
        self._rate = settings.uplink.budget_bytes_per_second
        self._row_bytes = row_bytes
        self._shards = settings.federation.shards
        self._notify_all = settings.learning.lockstep
        self._seal_bytes = seal_bytes
        self._allowed = 0.0
        self._last_now: float | None = None

    def give(self, record: ClientRecord) -> tuple[TokenBucket | None, UpdateCost]:
        """The bucket of a client, None without a budget, and the cost of its uploads."""
        cost = UpdateCost(record.name, self._row_bytes, self._shards, self._notify_all, self._seal_bytes)
        if self._rate is None:
            return None, cost
        # A second of budget, or one kernel's update if that is more: a smaller bucket could never send
        # anything.
        depth = max(self._rate, float(cost.bytes_for(1)))
        self._allowed += depth
        return TokenBucket(self._rate, depth, min(record.tokens, depth), record.filled_at), cost

    def pass_to(self, now: float, clients: int) -> None:
        """Count the bytes that ``clients`` clients were allowed since the last call."""
        if self._last_now is not None and self._rate is not None:
            self._allowed += max(0.0, now - self._last_now) * self._rate * clients
        self._last_now = now

    def measure(self) -> Iterable[Measurement]:
        yield UplinkMetrics.update_budget_bytes(self._allowed)
