"""``streamfl simulate``: runs a whole federation in this process, on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from streamfl.cli.contributed import own_options, with_options
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import find_system, load, parts_of_systems
from streamfl.simulation.options import DataOption, LabelOption, SeedOption
from streamfl.simulation.system_tools import SYSTEM_ARRAY, SimulationOptions, write_arrays
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    print_json,
    print_table,
    until_nobody_reads,
)
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress

__all__ = ["simulate"]


def _simulate(
    config: ConfigArgument,
    data: DataOption,
    label: LabelOption = None,
    seed: SeedOption = None,
    trace: Annotated[
        Path | None, typer.Option(help="A directory for trace.npz: all of the run, also for streamfl report.")
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    **options: Any,
) -> None:
    """Run a whole federation on the memory bus over a data set, and report how well and at what cost it
    learnt.

    The role that CONFIG describes decides who takes part: clients with rows of their own, for example, or
    parties with columns."""
    # Imported here, so that --help does not wait for it.
    from streamfl.configuration.settings import load_kind
    from streamfl.simulation.tables import label_told

    kind = load_kind(config)
    system = find_system(kind)
    if system.simulate is None:
        raise ConfigurationError(f"{config}: role.kind = {kind!r}: {system.name} cannot be simulated")
    function = load(system.simulate)
    with progress(f"reading {data}"):
        asked = SimulationOptions(config, data, label_told(config, data, label), seed, trace is not None)
        report = function(asked, **own_options(function, options, kind))
    with until_nobody_reads():
        if format is OutputFormat.JSON:
            print_json(report.as_json())
        else:
            print_table(report.heading(), report.columns, report.rows, report.notes)
    if trace is not None and not report.interrupted:
        write_arrays(trace, {SYSTEM_ARRAY: np.array(system.name), **report.arrays})
    if report.interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED)


simulate = with_options(_simulate, parts_of_systems("simulate"))
