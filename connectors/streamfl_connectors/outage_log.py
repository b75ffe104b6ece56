"""Limits what client libraries log while brokers are away: one line per broker and minute, with how many were
left out."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import dataclass

__all__ = ["ONE_LINE", "OneLine"]

# host:port, and nothing that only looks like it, such as a time or the name of a thread before an address.
ADDRESS = re.compile(r"(?<![\w.-])((?!\d+:)[\w.-]+|\[[\da-fA-F:]+\]):(\d{2,5})(?![\w.:])")
ANY = ""
MOST_KINDS = 100
MINUTE_SECONDS = 60.0


@dataclass
class _Window:
    """Lines about one broker since one passed. last: the logger, level and text of the last line."""

    left_out: int = 0
    last: tuple[str, int, str] = ("", 0, "")


class OneLine(logging.Filter):
    """Lets one line per broker and minute pass; the next one says how many were left out.

    A line that names no broker counts with a broker that had a line within the last minute: kafka-python logs
    four such lines for each attempt that failed. Without such a broker it passes if no line of its kind has
    passed within that time. The error of a connection stands in its line, without a traceback. With
    ``log.level`` debug everything passes as it is.

    seconds: a minute, except in tests.
    """

    def __init__(self, seconds: float = MINUTE_SECONDS) -> None:
        super().__init__()
        self._seconds = seconds
        self._lock = threading.Lock()
        self._windows: dict[str, _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be logged now."""
        if hasattr(record, "left_out") or logging.getLogger("streamfl").isEnabledFor(logging.DEBUG):
            return True
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, OSError):
            record.msg, record.args = "%s: %s: %s", (record.getMessage(), type(error).__name__, error)
            record.exc_info = record.exc_text = None
        text = record.getMessage()
        found = ADDRESS.search(text)
        with self._lock:
            broker = found[0] if found else next(filter(ADDRESS.fullmatch, self._windows), self._kind(record))
            window = self._windows.get(broker)
            if window is None:
                self._open(broker)
                return True
            window.left_out += 1
            window.last = record.name, record.levelno, text
            return False

    def _kind(self, record: logging.LogRecord) -> str:
        return f"{record.name} {record.msg}" if len(self._windows) < MOST_KINDS else ANY

    def _open(self, broker: str) -> None:
        self._windows[broker] = _Window()
        timer = threading.Timer(self._seconds, self._close, [broker])
        timer.daemon = True
        timer.start()

    def _close(self, broker: str) -> None:
        with self._lock:
            window = self._windows.pop(broker)
            if not window.left_out:
                return
            self._open(broker)
        name, level, text = window.last
        others = window.left_out - 1
        told = f"{text} [{others} more lines were left out in {self._seconds:.0f} s]" if others else text
        logging.getLogger(name).log(level, "%s", told, extra={"left_out": others})


ONE_LINE = OneLine()
