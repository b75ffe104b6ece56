"""``python -m benchmarks.counts``: bytecodes, Python calls and C calls of a worker's steps, a sample, on a
bus in memory.

They follow from the code and the workload, so a busy machine does not change them. Each system that has a
file ``benchmarks/<system>/counts.py`` is counted. ``counts.csv`` has the figures of each version of Python.
The command fails if one grew by more than 5%; ``--write`` replaces them.
"""

from __future__ import annotations

import csv
import gc
import importlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

from rich.console import Console
from rich.table import Table

from benchmarks.commands import arguments
from streamfl.runtime.worker import Worker

FOLDER = Path(__file__).parent
FILE = FOLDER / "counts.csv"
VERSION = ".".join(map(str, sys.version_info[:2]))
COUNTED = ("bytecodes", "Python calls", "C calls")
# A number that tools for profiling take.
TOOL = 2
# Of what the file has.
MOST = 1.05
# A version of Python, a system and a role.
PLACE = ("Python", "system", "role")
Place = tuple[str, str, str]
# What is counted of a sample.
Figures = Mapping[Place, Mapping[str, float]]


class Meter:
    """Counts what the watched workers do in their steps, once ``begin`` was called."""

    def __init__(self) -> None:
        self.counts: dict[str, list[int]] = {}
        self._samples: dict[str, int] = {}
        self._counting = False

    def watch(self, role: str, worker: Worker, samples: int) -> None:
        """samples: the number that the role takes after ``begin``."""
        self.counts[role] = [0, 0, 0]
        self._samples[role] = samples
        step = worker.step
        worker.step = lambda timeout: self._step(step, timeout, self.counts[role])  # type: ignore[method-assign]

    def begin(self) -> None:
        self._counting = True

    def figures(self) -> dict[str, dict[str, float]]:
        """Of a sample, by role."""
        return {
            role: {
                what: round(count / self._samples[role], 2)
                for what, count in zip(COUNTED, counts, strict=True)
            }
            for role, counts in self.counts.items()
        }

    def _step(self, step: Callable[[float], bool], timeout: float, counts: list[int]) -> bool:
        if not self._counting:
            return step(timeout)
        python_calls = c_calls = 0

        def called(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal python_calls, c_calls
            if event == "call":
                python_calls += 1
            elif event == "c_call":
                c_calls += 1

        # A collection may come at any time, and runs finalizers.
        gc.disable()
        with _Bytecodes() as bytecodes:
            sys.setprofile(called)
            try:
                return step(timeout)
            finally:
                sys.setprofile(None)
                gc.enable()
                for index, count in enumerate((next(bytecodes.executed), python_calls, c_calls)):
                    counts[index] += count


class _Bytecodes:
    """Counts them while it is entered, in functions that begin meanwhile."""

    def __init__(self) -> None:
        # Nothing counts faster, and it is asked to for every bytecode.
        self.executed = itertools.count()

    # Tracing misses bytecodes from Python 3.12 on, and 3.11 has no monitoring.
    if sys.version_info >= (3, 12):

        def __enter__(self) -> _Bytecodes:
            event = sys.monitoring.events.INSTRUCTION
            sys.monitoring.use_tool_id(TOOL, "benchmarks.counts")
            sys.monitoring.register_callback(TOOL, event, self._executed)
            sys.monitoring.set_events(TOOL, event)
            return self

        def __exit__(self, *raised: object) -> None:
            sys.monitoring.set_events(TOOL, 0)
            sys.monitoring.free_tool_id(TOOL)

        def _executed(self, code: CodeType, offset: int) -> None:
            next(self.executed)

    else:

        def __enter__(self) -> _Bytecodes:
            count_one = self.executed.__next__

            def within(frame: FrameType, event: str, argument: Any) -> Any:
                if event == "opcode":
                    count_one()
                return within

            def called(frame: FrameType, event: str, argument: Any) -> Any:
                frame.f_trace_lines, frame.f_trace_opcodes = False, True
                return within

            sys.settrace(called)
            return self

        def __exit__(self, *raised: object) -> None:
            sys.settrace(None)


# Has the meter watch the workers of a federation, and runs it: the same on each run.
Workload = Callable[[Meter], None]


@dataclass(frozen=True)
class Comparison:
    """before: as the file has it. now: as counted. None: it is not there."""

    role: str
    what: str
    before: float | None
    now: float | None

    @property
    def change(self) -> str:
        if self.before is None:
            return "not in the file"
        if self.now is None:
            return "only in the file"
        return f"{self.now / self.before - 1:+.2%}{' TOO MUCH' if self.failed else ''}"

    @property
    def failed(self) -> bool:
        return self.before is None or self.now is None or self.now > MOST * self.before


def compared(before: Figures, now: Figures) -> Iterator[Comparison]:
    """Each figure of either."""
    for _, system, role in sorted({**before, **now}):
        for what in COUNTED:
            old, new = (figures.get((VERSION, system, role), {}).get(what) for figures in (before, now))
            yield Comparison(f"{system} {role}", what, old, new)


def counted_systems() -> list[str]:
    return [
        name.replace("_", "-") for name in sorted(path.parent.name for path in FOLDER.glob("*/counts.py"))
    ]


def counted(system: str) -> Figures:
    """Of its roles."""
    figures: dict[Place, dict[str, float]] = {}
    workloads: tuple[Workload, ...] = importlib.import_module(
        f"benchmarks.{system.replace('-', '_')}.counts"
    ).WORKLOADS
    # A histogram looks for the bucket of the seconds that passed, so it takes more bytecodes on a busy
    # machine.
    with patch("prometheus_client.context_managers.default_timer", lambda: 0.0):
        for workload in workloads:
            meter = Meter()
            workload(meter)
            figures |= {(VERSION, system, role): found for role, found in meter.figures().items()}
    return figures


def kept(file: Path = FILE) -> Figures:
    """What the file has, of all versions of Python."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    return {
        (row[PLACE[0]], row[PLACE[1]], row[PLACE[2]]): {what: float(row[what]) for what in COUNTED}
        for row in rows
    }


def keep(figures: Figures, file: Path = FILE) -> None:
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow([*PLACE, *COUNTED])
        writer.writerows([*place, *found.values()] for place, found in sorted(figures.items()))


def main() -> None:
    systems = counted_systems()
    given = arguments(
        "counts",
        "Count what a worker does for a sample.",
        system={"choices": systems, "help": "of this system only; left out: of each"},
        write=(False, f"write what is counted to {FILE.name}"),
    )
    # What members say of their few rows.
    logging.getLogger("streamfl").setLevel(logging.ERROR)
    chosen = [given.system] if given.system else systems
    everything = kept()
    before = {
        place: found for place, found in everything.items() if place[0] == VERSION and place[1] in chosen
    }
    now = {place: found for system in chosen for place, found in counted(system).items()}
    comparisons = list(compared(before, now))
    table = Table("role", f"a sample, Python {VERSION}", "before", "now", "change")
    for one in comparisons:
        numbers = ["" if value is None else f"{value:,.2f}" for value in (one.before, one.now)]
        table.add_row(one.role, one.what, *numbers, one.change)
    Console(width=110).print(table)
    if given.write:
        keep({place: found for place, found in everything.items() if place not in before} | now)
    elif any(one.failed for one in comparisons):
        sys.exit(
            f"figures are more than {MOST - 1:.0%} above those of {FILE.name}, or only in one of both; "
            "if that is meant, python -m benchmarks.counts --write replaces them"
        )


if __name__ == "__main__":
    main()
