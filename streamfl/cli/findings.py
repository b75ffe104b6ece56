"""The findings of ``streamfl check``."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """check: what was examined. detail: what was found. remedy: what to do.

    warns: it passed, but is probably a mistake.
    """

    check: str
    passed: bool
    detail: str
    remedy: str = ""
    warns: bool = False

    @property
    def result(self) -> str:
        """One word for a table."""
        return "FAIL" if not self.passed else "warn" if self.warns else "pass"
