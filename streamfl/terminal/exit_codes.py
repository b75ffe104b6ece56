"""The exit codes of every command. docs/dead-letters.md says what each means and what to do."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["ExitCode"]


class ExitCode(IntEnum):
    """How a command ended, if not with 0."""

    CONFIGURATION = 2
    BUS_UNAVAILABLE = 3
    CHECK_FAILED = 4
    DATA = 5
    UNREADABLE = 6
    STALLED = 70
    LACKING_RESOURCES = 71
    INTERRUPTED = 130

    def __repr__(self) -> str:
        """The number, as the log shows it and a supervisor sees it."""
        return str(self.value)
