"""What a client may send: a token bucket on encoded bytes, and the number of kernels that fits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.wire import VERSION, encoded_size

__all__ = ["TokenBucket", "UpdateCost"]

_LARGEST = 2**62


@dataclass(frozen=True)
class UpdateCost:
    """Upper bounds on the encoded bytes of an upload.

    ``client`` is the client's name, ``row_bytes`` the raw bytes of one kernel's step, ``shards`` how many messages an upload may
    be split into; ``notify_all`` if every shard gets one (lockstep); ``seal_bytes`` what a seal adds to a message.
    """

    client: str
    row_bytes: int
    shards: int
    notify_all: bool
    seal_bytes: int = 0

    def bytes_for(self, kernels: int) -> int:
        """An upload of ``kernels`` kernels, framing included, measured by encoding the largest such message."""
        messages = self.shards if self.notify_all else min(kernels, self.shards)
        # A kernel number takes at most 5 bytes.
        return messages * self._empty_bytes + kernels * (self.row_bytes + 5)

    @cached_property
    def _empty_bytes(self) -> int:
        """The largest message without a kernel, measured once a client: the cost is asked for at every upload."""
        largest = Update(VERSION, _LARGEST, _LARGEST, self.client, _LARGEST, _LARGEST, _LARGEST, _LARGEST, (), b"")
        # The length of an array or of bytes takes at most 5 bytes.
        return encoded_size(self.client.encode(), UPDATE.encode(largest)) + 10 + self.seal_bytes

    def kernels_within(self, budget: float, kernels: int) -> int:
        """M: the most kernels, of ``kernels``, whose upload costs no more than ``budget`` bytes."""
        low, high = 0, kernels
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= budget else (low, middle - 1)
        return low


class TokenBucket:
    """Bytes that may be sent: at most ``depth + rate * seconds`` in any span, never overdrawn.

    By a clock that is set. Each time that it jumps ahead, a bucket at most fills up that would not have: one ``depth`` more.
    ``filled_at``: what was noted by a clock that was ahead has to be set back to now, or nothing fills up until that time comes.

    >>> bucket = TokenBucket(rate=100.0, depth=200.0, tokens=200.0, filled_at=0.0)
    >>> bucket.take(150.0, now=0.0), bucket.take(150.0, now=0.5), bucket.take(150.0, now=1.0)
    (True, False, True)
    """

    __slots__ = ("depth", "filled_at", "rate", "tokens")

    def __init__(self, rate: float, depth: float, tokens: float, filled_at: float) -> None:
        self.rate, self.depth, self.tokens, self.filled_at = rate, depth, tokens, filled_at

    def available(self, now: float) -> float:
        """Bytes that may leave at ``now``. To ask changes nothing: what is remembered of a bucket changes only when bytes leave."""
        # A clock that steps back takes nothing away.
        return min(self.depth, self.tokens + self.rate * max(0.0, now - self.filled_at))

    def take(self, amount: float, now: float) -> bool:
        available = self.available(now)
        if available < amount:
            return False
        self._leave(available - amount, now)
        return True

    def sent(self, amount: float, now: float) -> None:
        """What was taken earlier leaves now: the tokens that filled up since must not come on top of a full bucket.

        >>> bucket = TokenBucket(rate=100.0, depth=200.0, tokens=200.0, filled_at=0.0)
        >>> bucket.take(200.0, now=0.0), bucket.sent(200.0, now=2.0), bucket.available(now=2.0)
        (True, None, 0.0)
        """
        self._leave(min(self.available(now), self.depth - amount), now)

    def _leave(self, tokens: float, now: float) -> None:
        # A clock that steps back must not refill the bucket twice for the same second.
        self.tokens, self.filled_at = tokens, max(self.filled_at, now)
