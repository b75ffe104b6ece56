"""``make reference``: write the pages and dashboards of the systems of this repository."""

from __future__ import annotations

import argparse
from pathlib import Path

from streamfl.contract.system import installed_systems
from streamfl.reference import pages
from streamfl.terminal.console import print_text

if __name__ == "__main__":
    names = [system.name for system in installed_systems()]
    parser = argparse.ArgumentParser(prog="python -m streamfl.reference", description=__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"any of {', '.join(names)}; none: all")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository's folder")
    chosen = parser.parse_args()
    if unknown := set(chosen.systems) - set(names):
        parser.error(f"no such system: {', '.join(sorted(unknown))}")
    systems = [
        system for system in installed_systems() if not chosen.systems or system.name in chosen.systems
    ]
    for path, text in pages(systems).items():
        (chosen.root / path).parent.mkdir(parents=True, exist_ok=True)
        (chosen.root / path).write_text(text, encoding="utf-8")
        print_text(f"wrote {chosen.root / path}")
