"""What happened, one line for each event. The same seed gives the same lines, so the same hash."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable

from streamfl.runtime.bus import Outgoing

__all__ = ["History", "content"]


class History:
    """The lines in order, and a count of each kind of fault."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.faults: Counter[str] = Counter()

    def note(self, now: float, who: str, text: str) -> None:
        self.lines.append(f"{now:12.6f}  {who:<10}  {text}")

    def fault(self, now: float, who: str, kind: str, text: str = "") -> None:
        self.faults[kind] += 1
        self.note(now, who, f"FAULT {kind}{': ' if text else ''}{text}")

    @property
    def hash(self) -> str:
        """Hash of all lines, 32 hexadecimal digits."""
        return hashlib.blake2b("\n".join(self.lines).encode(), digest_size=16).hexdigest()


def content(records: Iterable[Outgoing]) -> str:
    """A short digest of some records' topics, keys and values."""
    digest = hashlib.blake2b(digest_size=6)
    for record in records:
        for part in (record.topic.encode(), record.key, record.value):
            digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return digest.hexdigest()
