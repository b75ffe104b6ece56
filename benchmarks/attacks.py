"""``python -m benchmarks.attacks``, or ``make attack``: attack every system that has a file
``benchmarks/<system>/attacks.py``."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.commands import arguments, several

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Attack:
    """What was found. plain, protected: the figure without and with the protection; None where that was not
    run.

    bound: what the protection promises.
    chance: the figure of a guess.
    """

    name: str
    attacker: str
    figure: str
    plain: float | None
    protection: str
    protected: float | None
    bound: float | None = None
    chance: float | None = None


# By name: a function of a folder for files, such as secrets.
Attacks = Mapping[str, Callable[[Path], Iterator[Attack]]]


def attacked_systems() -> dict[str, Attacks]:
    """By system, its attacks."""
    folders = sorted(path.parent.name for path in FOLDER.glob("*/attacks.py"))
    return {
        name.replace("_", "-"): importlib.import_module(f"benchmarks.{name}.attacks").ATTACKS
        for name in folders
    }


def main() -> None:
    """Run them all, or those that are named; a table, or JSON."""
    systems = attacked_systems()
    names = [name for attacks in systems.values() for name in attacks]
    given = arguments(
        "attacks",
        "Attack a federation of each system.",
        system={"choices": systems, "help": "of this system only; left out: of each that has attacks"},
        format={"choices": ("table", "json"), "default": "table"},
        only=several("run this one", names),
    )
    found: list[Attack] = []
    with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
        for system, attacks in systems.items():
            for name, attack in attacks.items():
                if given.system in (None, system) and (given.only is None or name in given.only):
                    print(f"{system}: {name} …", file=sys.stderr, flush=True)
                    found += attack(Path(folder))
    if given.format == "json":
        print(json.dumps([asdict(one) for one in found], indent=2))
        return
    rows = Table("attack", "by", "figure", "without", "protection", "with it", "at most", "a guess")
    for one in found:
        numbers = [one.plain, one.protected, one.bound, one.chance]
        texts = ["" if number is None else f"{number:.3f}" for number in numbers]
        rows.add_row(one.name, one.attacker, one.figure, texts[0], escape(one.protection), *texts[1:])
    Console(width=170).print(rows)


if __name__ == "__main__":
    main()
