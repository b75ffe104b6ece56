"""Makes code a distribution, as an installation does."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

__all__ = ["distribution"]


def distribution(code: Path, folder: Path) -> None:
    """Writes, into ``folder``, what an installation of ``code`` records: its version and its entry points.

    code: a folder with a pyproject.toml.
    folder: on the path of whoever is to find it.
    """
    project: dict[str, Any] = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    made = folder / f"{project['name'].replace('-', '_')}-here.dist-info"
    made.mkdir()
    (made / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project.get('version', '0')}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in places.items())
        for group, places in project["entry-points"].items()
    ]
    (made / "entry_points.txt").write_text("\n".join(groups))
