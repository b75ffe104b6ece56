"""``streamfl replay``: writes the rows of a data set to the topics that a role reads from its users."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import chain, islice
from typing import Annotated, Any

import typer

from streamfl.cli.contributed import own_options, with_options
from streamfl.cli.preflight import Configured, read_configuration
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import find_system, installed_systems, load, load_parts
from streamfl.simulation.options import DataOption
from streamfl.simulation.system_tools import Replayed, Rows
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress

__all__ = ["replay"]

BATCH_RECORDS = 1000
# With a rate, records go out in steps of this many seconds.
RATE_STEP_SECONDS = 0.1


def _replay(
    config: ConfigArgument,
    data: DataOption,
    rate: Annotated[float | None, typer.Option(help="Rows a second; left out: as fast as they go.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="The most rows to write.")] = None,
    format: FormatOption = OutputFormat.TABLE,
    **options: Any,
) -> None:
    """Write a data set's rows to the topics that a role reads from its users, in the form that its settings
    describe."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigurationError(f"--rate = {rate}: a positive number is expected")
    configured = read_configuration(config)
    kind = configured.kind.name
    place = find_system(kind).sources.get(kind)
    if place is None:
        raise ConfigurationError(f"{config}: role.kind = {kind!r}: nothing can be replayed to such a role")
    source = load(place)
    with progress(f"reading {data}"):
        rows: Rows = source(Replayed(config, configured.settings, data), **own_options(source, options, kind))
    total = min(len(rows.usable), limit or len(rows.usable))
    if rows.dropped:
        say(
            f"{rows.dropped} of {rows.dropped + len(rows.usable)} rows have no number in some column, or no "
            "name, and are left out"
        )
    began = time.monotonic()
    with progress(f"asking {configured.settings.bus.url}"):
        written = _write(configured, rows, total, rate)
    seconds = time.monotonic() - began
    topic, *others = rows.topics
    if format is OutputFormat.JSON:
        print_json(
            {
                "topic": topic,
                "records": written,
                "labels": written if others else 0,
                "dropped": rows.dropped,
                "seconds": seconds,
                **({"interrupted": f"{written:,} of {total:,} rows"} if written < total else {}),
            }
        )
    else:
        beside = f", and their labels to {others[0]}," if others else ""
        so_far = f"interrupted at {written:,} of {total:,} rows: " if written < total else ""
        say(f"{so_far}wrote {written} records to {topic}{beside} in {seconds:.1f} s")
    if written < total:
        raise typer.Exit(ExitCode.INTERRUPTED)


def _write(configured: Configured, rows: Rows, total: int, rate: float | None) -> int:
    """Write ``total`` rows. Returns how many were written: fewer after Ctrl-C."""
    with closing(configured.connect()) as bus:
        for topic in rows.topics:
            if topic not in bus.describe(rows.topics):
                raise ConfigurationError(
                    f"topic {topic} does not exist: streamfl topics {configured.path} --create-inputs"
                )
        step = BATCH_RECORDS if rate is None else max(1, min(BATCH_RECORDS, int(rate * RATE_STEP_SECONDS)))
        records = rows.records(total)
        written = 0
        with progress("rows written", stops=True) as work:
            began = time.monotonic()
            while written < total:
                batch = list(chain.from_iterable(islice(records, step)))
                if rate is not None:
                    work.pause(began + written / rate - time.monotonic())
                if work(written, total):
                    break
                bus.write(batch)
                written = min(total, written + step)
    return written


replay = with_options(
    _replay,
    load_parts({kind: place for system in installed_systems() for kind, place in system.sources.items()}),
)
