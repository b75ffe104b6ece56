"""What the commands share: their options, the data sets that they read, and tables as they become known."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

DOCS = Path(__file__).parents[1] / "docs"
Floats = NDArray[np.float64]


def arguments(program: str, says: str | None, **options: Any) -> argparse.Namespace:
    """What ``python -m benchmarks.<program>`` is given.

    options: each by its default and what it is; False is a flag. Or all that argparse is to know of it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}".rstrip("."), description=says)
    for name, option in options.items():
        if not isinstance(option, dict):
            default, text = option
            kind = {"action": "store_true"} if default is False else {"type": type(default)}
            option = {"default": default, "help": text, **kind}
        parser.add_argument(f"--{name.replace('_', '-')}", **option)
    return parser.parse_args()


def several(says: str, choices: Iterable[str] | None = None, kind: type = str) -> dict[str, Any]:
    """An option that may be given several times."""
    text = f"{says}; may be given several times"
    return {
        "action": "append",
        "help": text,
        "type": kind,
        "choices": None if choices is None else tuple(choices),
    }


def is_wanted(name: str, patterns: Sequence[str] | None) -> bool:
    """Whether one of the patterns is of this name. None: all are wanted."""
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


def refuse(text: str) -> NoReturn:
    """End as argparse does where an option is wrong."""
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def data_folder() -> Path:
    """Of the data sets, which ``STREAMFL_DATA`` names."""
    if "STREAMFL_DATA" not in os.environ:
        refuse("STREAMFL_DATA is not set: the folder with the data sets")
    return Path(os.environ["STREAMFL_DATA"])


def data_set(folder: Path, name: str, *parts: str) -> list[Floats]:
    """Inputs and labels of a set, or other parts, those that it has."""
    with np.load(folder / f"{name}.npz") as kept:
        return [kept[part].astype(np.float64) for part in parts or ("X", "y") if part in kept]


def row(*cells: object) -> str:
    """A line of a table in Markdown."""
    return f"| {' | '.join(map(str, cells))} |"


class Markdown:
    """A table whose lines are printed as they are known."""

    def __init__(self, *heads: str) -> None:
        self.lines: list[str] = []
        self.add(*heads)
        self.add(*["---"] * len(heads))

    def add(self, *cells: object) -> None:
        self.lines.append(row(*cells))
        print(self.lines[-1], flush=True)

    def __str__(self) -> str:
        return "\n".join(self.lines)
