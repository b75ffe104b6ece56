"""Draws a dashboard as a picture: ``python -m benchmarks.board --board dashboards/federation.json --out
docs/dashboard.png``.

A federation runs for some minutes, and a real Prometheus watches it. In the middle of it one of two clients'
workers is killed and started again; at two thirds, what is to be learnt changes. The dashboard's own queries
are drawn by Grafana's own components, which npm has, in Chromium without a window. No Grafana server is
needed. Node, npm and Chromium have to be on the path.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.board.plant import watched
from benchmarks.commands import arguments

HERE = Path(__file__).resolve().parent
# Where this repository keeps what is fetched; npm fills it once.
MODULES = HERE.parents[1] / ".broker" / "board"
BUNDLE = (
    "--bundle",
    "--format=iife",
    "--jsx=automatic",
    "--loader:.svg=text",
    "--loader:.ttf=empty",
    "--loader:.woff2=empty",
)
PAGE = """<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="board.css">
<body style="margin:0"><div id="root"></div>
<script>window.BOARD = {board};</script><script src="board.js"></script>"""
# 24 columns of 66 and the space around them; a row has 30 and 8 between.
WIDTH, ROW, HEAD = 24 * 66 + 8, 38, 64


def main() -> None:
    """Watch, and draw."""
    given = arguments(
        "board",
        "Draw a dashboard as a picture.",
        board=(Path("dashboards/federation.json"), "a dashboard, as Grafana imports it"),
        out=(Path("docs/dashboard.png"), "the picture"),
        seconds=(300.0, "so long the federation runs"),
        rows=(0, "only the panels of the first rows of the grid; 0: all"),
    )
    board = json.loads(given.board.read_text(encoding="utf-8"))
    if given.rows:
        board["panels"] = [
            one for one in board["panels"] if one["gridPos"]["y"] + one["gridPos"]["h"] <= given.rows
        ]
    draw(watched(board, given.seconds), given.out)


def draw(board: Mapping[str, Any], out: Path) -> None:
    """Write the picture of a dashboard whose panels have their series."""
    npm, chromium = _program("npm"), _program("chromium", "chromium-browser", "google-chrome")
    MODULES.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "panels.jsx"):
        shutil.copy(HERE / name, MODULES / name)
    if not (MODULES / "node_modules" / "esbuild").is_dir():
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        subprocess.run([npm, "install", *options], cwd=MODULES, check=True)
    esbuild = MODULES / "node_modules" / ".bin" / "esbuild"
    rows = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in board["panels"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        production = '--define:process.env.NODE_ENV="production"'
        line = [str(esbuild), "panels.jsx", f"--outfile={folder / 'board.js'}", production]
        subprocess.run([*line, "--log-level=error", *BUNDLE], cwd=MODULES, check=True)
        # In a script no text of a label may end the script.
        content = json.dumps(board).replace("</", "<\\/")
        (folder / "board.html").write_text(PAGE.replace("{board}", content), encoding="utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=20000",
        ]
        size = f"--window-size={WIDTH},{rows * ROW + HEAD}"
        shot = [chromium, *options, size, f"--screenshot={out.resolve()}", f"file://{folder / 'board.html'}"]
        subprocess.run(shot, check=True, capture_output=True)
    print(f"picture: {out}", file=sys.stderr)


def _program(*names: str) -> str:
    found = next((place for name in names if (place := shutil.which(name))), None)
    if found is None:
        sys.exit(f"error: {names[0]} is not on the path")
    return found


if __name__ == "__main__":
    main()
