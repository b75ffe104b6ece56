"""``streamfl demo``: runs a federation on data that a package brings, without network or Kafka."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import load, systems_with
from streamfl.simulation.pictures import can_draw, check_picture
from streamfl.terminal.console import FormatOption, OutputFormat, print_json, print_table, say
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress

__all__ = ["demo"]

_SYSTEMS = systems_with("demo")
_System = StrEnum("_System", {name: name for name in _SYSTEMS})  # type: ignore[misc]
_FIRST = next(iter(_System))
_HELP = " ".join(f"{name}: {system.summary}." for name, system in _SYSTEMS.items())


def demo(
    system: Annotated[_System, typer.Argument(help=_HELP)] = _FIRST,
    out: Annotated[Path, typer.Option("--out", help="Where the picture goes; .png or .svg.")] = Path(
        "demo.png"
    ),
    seed: Annotated[
        int, typer.Option(min=-(2**63), max=2**63 - 1, help="Another seed draws other numbers.")
    ] = 7,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Run a federation in this process, on data that a package brings, and print a table of results and draw
    a picture."""
    check_picture(out, "--out")
    try:
        with progress(f"demo {system.value}"):
            report = load(_SYSTEMS[system.value].demo or "")(out, seed)
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    if format is OutputFormat.JSON:
        print_json({**report.as_json(), "picture": str(out) if can_draw() else None})
    else:
        print_table(report.heading(), report.columns, report.rows, report.notes)
    say(
        f"picture: {out}"
        if can_draw()
        else "no picture: matplotlib is not installed; pip install 'streamfl[plots]'"
    )
    if report.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)
