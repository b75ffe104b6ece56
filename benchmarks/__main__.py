"""``python -m benchmarks``: run them all, print a table or JSON, write benchmark.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure streamfl as ratios within one run."
    )
    parser.add_argument("--format", choices=("table", "json"), default="table")
    parser.add_argument(
        "--only", choices=tuple(BENCHMARKS), action="append", help="run this one; may be given several times"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="only show that each works; the figures mean nothing"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmark.json"), help="where the JSON is written")
    arguments = parser.parse_args()
    if arguments.smallest:
        take_smallest()
    figures: list[Figure] = []
    failed: list[str] = []
    for name in arguments.only or BENCHMARKS:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            measure: Callable[[], Iterator[Figure]] = importlib.import_module(BENCHMARKS[name]).measure
            # One by one: what a part measured before it failed is printed, too.
            for figure in measure():
                figures.append(figure)
        except Exception:
            traceback.print_exc()
            failed.append(name)
    content = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processors": os.cpu_count(),
        "figures": [
            {
                "name": f.name,
                "value": f.value,
                "unit": f.unit,
                "goal": f.goal,
                "at_most": f.at_most,
                "met": f.met,
            }
            for f in figures
        ],
    }
    text = json.dumps(content, indent=2)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    if arguments.format == "json":
        print(text)
    else:
        _print(figures)
    if failed:
        sys.exit(f"these parts failed, and the table lacks what they measure: {', '.join(failed)}")


def _print(figures: list[Figure]) -> None:
    table = Table("figure", "value", "unit", "goal", "met")
    for figure in figures:
        goal = "" if figure.goal is None else f"{'at most' if figure.at_most else 'at least'} {figure.goal:g}"
        met = {None: "", True: "yes", False: "NO"}[figure.met]
        value = f"{figure.value:,.0f}" if figure.value >= 1000 else f"{figure.value:.3g}"
        table.add_row(figure.name, value, figure.unit, goal, met)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
