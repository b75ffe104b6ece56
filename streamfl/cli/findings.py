"""What ``streamfl check`` found out, a row of its table each."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """check: what was looked at. detail: what was found. remedy: what to do, where it did not pass."""

    check: str
    passed: bool
    detail: str
    remedy: str = ""
