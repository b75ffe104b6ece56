"""Output of commands: results on stdout, as a table, as lines or as one JSON object; all else on stderr.

No other module prints. So no text from a topic can move a terminal's cursor.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from streamfl.terminal.printable import printable, printable_json, printable_lines

__all__ = [
    "ConfigArgument",
    "FormatOption",
    "OutputFormat",
    "as_table",
    "as_text",
    "drawn_anew",
    "json_text",
    "print_json",
    "print_line",
    "print_list",
    "print_table",
    "print_text",
    "say",
    "say_what_python_says",
    "until_nobody_reads",
]

# Levels of lists and objects within one another that are printed. A stranger's record may have as many as
# Python's stack holds.
MOST_LEVELS = 200


class OutputFormat(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The role's settings, a TOML file.")]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="json: one JSON object on stdout, all else on stderr.")
]


def print_json(content: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Print one JSON object on stdout; arguments as for :func:`json_text`."""
    print_text(printable_json(json_text(content, default)))


def json_text(content: Any, default: Callable[[Any], Any] | None = None) -> str:
    """The content as JSON. NaN and infinities become null, keys become text, and beyond ``MOST_LEVELS`` it
    says "...".

    default: encodes values of types that JSON does not have.
    """
    return json.dumps(_finite(content, MOST_LEVELS), ensure_ascii=False, allow_nan=False, default=default)


def print_line(*cells: str) -> None:
    """Print cells as one line on stdout."""
    print_text("  ".join(map(printable, cells)))


def print_text(text: str) -> None:
    """Print lines on stdout."""
    sys.stdout.write(printable_lines(text) + "\n")
    sys.stdout.flush()


def as_text(text: str, style: str = "") -> Text:
    """Text for a terminal, never parsed as markup, because it comes from topics and files."""
    return Text(printable_lines(text), style)


def as_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, box: bool = True
) -> Table:
    """A table for a terminal. box: with lines between its cells."""
    table = Table(title=None if title is None else as_text(title), title_justify="left")
    if not box:
        table.box = None
    for column in columns:
        # Folded and not cut, because a name that is cut is another name.
        table.add_column(as_text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(as_text, row))
    return table


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()
) -> None:
    """Print a table on stdout with notes beneath; without rows, a line that says so."""
    rows = list(rows)
    if not rows:
        _Console(file=sys.stdout).print(as_text(f"{title}: none"))
        return
    console = _console()
    console.print(as_table(columns, rows, title))
    for note in notes:
        console.print(as_text(note))


def print_list(title: str, rows: Iterable[tuple[str, str]], console: Console | None = None) -> None:
    """Print texts on stdout, each with a word before it."""
    rows, console = list(rows), console or _console()
    console.print(as_text(title))
    width = max((len(word) for word, _ in rows), default=0) + 2
    for word, text in rows:
        said = printable_lines(text).splitlines()
        lines = [line for one in said for line in Text(one).wrap(console, max(1, console.width - width))]
        for number, line in enumerate(lines):
            line.rstrip()
            console.print(as_text(" " * width if number else word.ljust(width)) + line, soft_wrap=True)


@contextmanager
def drawn_anew() -> Iterator[Callable[[Sequence[RenderableType]], None]]:
    """Yields a function that draws on stdout, each time in place of the last drawing. In a file or a pipe
    nothing can be drawn over: there each drawing is beneath the last one."""
    console = _console()
    if not console.is_terminal:

        def print_beneath(parts: Sequence[RenderableType]) -> None:
            console.print(Group(*parts))
            sys.stdout.flush()

        yield print_beneath
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        yield lambda parts: live.update(Group(*parts), refresh=True)


class _NobodyReads(SystemExit):
    """The reader of stdout is gone: the command ends without a failure, unless it has more to do than to
    print."""


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich takes that for a failure."""
        _write_nowhere()
        raise _NobodyReads(0)


def _console() -> Console:
    """stdout's console: as wide as the terminal, or as COLUMNS says. Without either it breaks no line, so
    that grep works."""
    console = _Console(file=sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 10_000
    return console


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Ends the block silently when the reader of stdout is gone, as in `… | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _write_nowhere()
    except _NobodyReads:
        pass


def _write_nowhere() -> None:
    """Python flushes stdout once more at exit, which must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable_lines(text), file=sys.stderr, flush=True)


def say_what_python_says() -> None:
    """From now on :func:`say` prints tracebacks, and logs where no logging is set up."""
    sys.excepthook = lambda _kind, error, _trace: _say_traceback(error)
    threading.excepthook = lambda told: _say_traceback(told.exc_value)
    logging.lastResort = _Logged(logging.WARNING)


def _say_traceback(error: BaseException | None) -> None:
    if error is not None:
        say("".join(traceback.format_exception(error)).rstrip("\n"))


class _Logged(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def _finite(content: Any, levels: int) -> Any:
    if isinstance(content, (Mapping, list, tuple)) and not levels:
        return "..."
    if isinstance(content, Mapping):
        return {str(key): _finite(value, levels - 1) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value, levels - 1) for value in content]
    if isinstance(content, float) and (content != content or content in (float("inf"), float("-inf"))):
        return None
    return content
