"""``streamfl dashboard``: a system's Grafana dashboard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streamfl.console import say
from streamfl.dashboard import Dashboard
from streamfl.role import ConfigurationError
from streamfl.system import load, systems_with

__all__ = ["dashboard"]


def dashboard(
    system: Annotated[str, typer.Argument(help="An installed system that has a dashboard; any other name lists them.")],
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; left out: print it.")] = None,
) -> None:
    """Print a system's Grafana dashboard as JSON, to be imported or provisioned."""
    known = systems_with("dashboard")
    if system not in known:
        raise ConfigurationError(f"{system}: no system of this name has a dashboard; known are {', '.join(known)}")
    described: Dashboard = load(known[system].dashboard or "")
    text = described.to_json()
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    say(f"wrote {out}: {described.title}")
