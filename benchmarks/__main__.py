"""``python -m benchmarks``: run them all, print a table or JSON, write benchmark.json."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.commands import arguments, several
from benchmarks.figures import Figure, take_smallest

FOLDER = Path(__file__).parent


def found() -> dict[str, str]:
    """By name, the modules that measure speed or memory: those here with a function ``measure``, and
    ``speed`` of each system."""
    measures = "\ndef measure() -> Iterator[Figure]:"
    modules = {
        path.stem: f"benchmarks.{path.stem}" for path in FOLDER.glob("*.py") if measures in path.read_text()
    }
    systems = {path.parent.name: f"benchmarks.{path.parent.name}.speed" for path in FOLDER.glob("*/speed.py")}
    return {name.replace("_", "-"): module for name, module in sorted((modules | systems).items())}


BENCHMARKS = found()


def main() -> None:
    given = arguments(
        "",
        "Measure streamfl as ratios within one run.",
        format={"choices": ("table", "json"), "default": "table"},
        only=several("run this one", BENCHMARKS),
        smallest=(False, "only show that each works; the figures mean nothing"),
        out=(Path("benchmark.json"), "where the JSON is written"),
    )
    if given.smallest:
        take_smallest()
    figures: list[Figure] = []
    failed: list[str] = []
    text = ""
    for name in given.only or BENCHMARKS:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            measure: Callable[[], Iterator[Figure]] = importlib.import_module(BENCHMARKS[name]).measure
            # One by one: what a part measured before it failed is printed, too.
            for figure in measure():
                figures.append(figure)
                print(f"  {figure.name}: {_value(figure)} {figure.unit}", file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        # After each part: all together take most of an hour, and somebody may stop them before the end.
        text = json.dumps(_content(figures), indent=2)
        given.out.write_text(text + "\n", encoding="utf-8")
    if given.format == "json":
        print(text)
    else:
        _print(figures)
    if failed:
        sys.exit(f"these parts failed, and the table lacks what they measure: {', '.join(failed)}")


def _content(figures: list[Figure]) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }


def _value(figure: Figure) -> str:
    return f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"


def _print(figures: list[Figure]) -> None:
    table = Table("figure", "value", "unit", "goal", "met")
    for figure in figures:
        goal = "" if figure.goal is None else f"{'at most' if figure.at_most else 'at least'} {figure.goal:g}"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        table.add_row(figure.name, _value(figure), figure.unit, goal, met)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
