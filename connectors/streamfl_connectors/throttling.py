"""Notes when brokers slow a client down because of a quota."""

from __future__ import annotations

import time

__all__ = ["Throttling"]

# Kafka delays a client by up to ten seconds or so for one answer.
LATELY_SECONDS = 60.0


class Throttling:
    """When brokers have delayed a client's requests."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def note(self, _event: object = None) -> None:
        """A broker delays requests now, or did a moment ago. librdkafka calls it with an event."""
        self._last = time.monotonic()

    def lately(self) -> bool:
        """Whether a broker has done so in the last minute."""
        return time.monotonic() - self._last < LATELY_SECONDS
