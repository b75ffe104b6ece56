"""Structured logs: readable lines on a console, one JSON object a line elsewhere. Always on stderr: stdout is
for results."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import structlog

from streamfl.terminal.printable import printable, printable_json, printable_lines

__all__ = ["configure", "logger", "only_errors", "write_warnings_as_lines"]

Level = Literal["debug", "info", "warning", "error"]

# Facts that may have several lines.
MANY_LINES = ("exception", "stack")

_FACTS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def configure(level: Level = "info", style: Literal["console", "json"] = "console") -> None:
    """Send streamfl's logs from ``level`` on to stderr, and other libraries' from warning on or higher."""
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(style))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("streamfl").setLevel(number)
    warnings.showwarning = _log_warning


def write_warnings_as_lines() -> None:
    """Without :func:`configure`, as in most commands, write warnings as lines of the log too. Python writes
    the bare text: a client library's would stand among the command's own lines, without time or severity."""
    assert logging.lastResort is not None
    logging.lastResort.setFormatter(_formatter("console"))
    warnings.showwarning = _log_warning


def _log_warning(message: Warning | str, category: type[Warning], *_place: Any, **_more: Any) -> None:
    """Log a warning of Python's own. Python writes it bare, on two lines and with the place in the code."""
    logging.getLogger("py.warnings").warning(f"{category.__name__}: {message}")


def _formatter(style: Literal["console", "json"]) -> logging.Formatter:
    renderers: list[Any] = (
        [structlog.processors.JSONRenderer(), lambda _logger, _method, line: printable_json(line)]
        if style == "json"
        else [
            _made_printable,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback, sort_keys=False
            ),
        ]
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_FACTS,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )


@contextmanager
def only_errors() -> Iterator[None]:
    """Within it streamfl logs errors only: in a simulation nobody needs to know how workers start and
    wait."""
    logs = logging.getLogger("streamfl")
    level = logs.level
    logs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logs.setLevel(level)


def _made_printable(
    _logger: Any, _method: str, facts: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """The facts, made safe for a terminal: each text on one line, except tracebacks."""
    return {
        name: (printable_lines if name in MANY_LINES else printable)(value)
        if isinstance(value, str)
        else value
        for name, value in facts.items()
    }


class _Line(dict[str, Any]):
    """The facts of a line. Its text is readable even without logging set up, as in a notebook or a
    simulation."""

    def __str__(self) -> str:
        shown = _made_printable(None, "", self)
        facts = ", ".join(
            f"{name}={value}" for name, value in shown.items() if name not in ("event", "level", "timestamp")
        )
        return f"{shown['level']}: {shown['event']}" + (f" ({facts})" if facts else "")


def _as_line(_logger: Any, _method: str, facts: structlog.typing.EventDict) -> _Line:
    return _Line(facts)


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of a streamfl module; events are short texts, facts are keywords."""
    # Bound to the standard logger here and not by structlog.configure, because unconfigured structlog prints
    # to stdout.
    wrapped = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            *_FACTS,
            _as_line,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return cast(structlog.stdlib.BoundLogger, wrapped)
