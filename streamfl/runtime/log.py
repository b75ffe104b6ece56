"""Structured logs: readable lines on a console, one JSON object a line elsewhere. Always on stderr: stdout is for results."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import structlog

__all__ = ["configure", "logger", "only_errors"]

Level = Literal["debug", "info", "warning", "error"]

_FACTS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def configure(level: Level = "info", style: Literal["console", "json"] = "console") -> None:
    """Send streamfl's and its libraries' logs to stderr, from ``level`` on."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if style == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
        )
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_FACTS,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("streamfl").setLevel(number)


@contextmanager
def only_errors() -> Iterator[None]:
    """Within it streamfl logs nothing less: what workers of a simulation say of how they start and wait is nobody's trouble."""
    logs = logging.getLogger("streamfl")
    level = logs.level
    logs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logs.setLevel(level)


class _Line(dict[str, Any]):
    """The facts of a line. As text it can be read where nobody has set up logs, as in a notebook or a simulation."""

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.items() if name not in ("event", "level", "timestamp"))
        return f"{self['level']}: {self['event']}" + (f" ({facts})" if facts else "")


def _as_line(_logger: Any, _method: str, facts: structlog.typing.EventDict) -> _Line:
    return _Line(facts)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a streamfl module; events are short texts, facts are keywords."""
    # Bound to the standard logger here, not by structlog.configure: unconfigured structlog prints to stdout.
    wrapped = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, *_FACTS, _as_line, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, wrapped)
