"""What commands print: results on stdout, as a table or as one JSON object; all else on stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "BUS_UNAVAILABLE",
    "CHECK_FAILED",
    "CONFIGURATION",
    "DATA",
    "INTERRUPTED",
    "STALLED",
    "UNREADABLE",
    "ConfigArgument",
    "FormatOption",
    "OutputFormat",
    "print_json",
    "print_list",
    "print_table",
    "say",
    "until_nobody_reads",
]

CONFIGURATION = 2
BUS_UNAVAILABLE = 3
CHECK_FAILED = 4
DATA = 5
UNREADABLE = 6
STALLED = 70
INTERRUPTED = 130


class OutputFormat(StrEnum):
    """How a command prints its result."""

    TABLE = "table"
    JSON = "json"


ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The role's settings, a TOML file.")]
FormatOption = Annotated[
    OutputFormat, typer.Option("--format", help="json: one JSON object on stdout, all else on stderr.")
]


def print_json(content: Mapping[str, Any]) -> None:
    """One object on stdout; numbers that JSON does not have are null."""
    sys.stdout.write(json.dumps(_finite(content), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Iterable[str] = ()) -> None:
    """A table on stdout, and notes beneath; of no rows, a line that says so."""
    rows = list(rows)
    if not rows:
        Console(file=sys.stdout).print(Text(f"{title}: none"))
        return
    # Text, not markup: what is shown comes from topics and files.
    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        # A name that is cut is another name.
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = _console()
    console.print(table)
    for note in notes:
        console.print(Text(note))


def print_list(title: str, rows: Iterable[tuple[str, str]], console: Console | None = None) -> None:
    """Texts with a word before each on stdout."""
    rows, console = list(rows), console or _console()
    console.print(Text(title))
    width = max((len(word) for word, _ in rows), default=0) + 2
    for word, text in rows:
        lines = [line for one in text.splitlines() for line in Text(one).wrap(console, max(1, console.width - width))]
        for number, line in enumerate(lines):
            line.rstrip()
            console.print(Text(" " * width if number else word.ljust(width)) + line, soft_wrap=True)


def _console() -> Console:
    """Of stdout: as wide as the terminal, or as COLUMNS says; where neither is there, no line is broken, for grep's sake."""
    console = Console(file=sys.stdout)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 10_000
    return console


@contextmanager
def until_nobody_reads() -> Iterator[None]:
    """Ends what is printed within it, in silence, when the reader of stdout is gone: `… | head` has seen enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {str(key): _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and (content != content or content in (float("inf"), float("-inf"))):
        return None
    return content
