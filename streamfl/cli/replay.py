"""``streamfl replay``: the rows of a data set as records in the topics that a role reads from its users."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import chain, islice
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from streamfl.cli.contributed import own_options, with_options
from streamfl.cli.preflight import read_configuration
from streamfl.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.role import ConfigurationError
from streamfl.simulation.laboratory import Replayed, Rows
from streamfl.simulation.options import DataOption
from streamfl.system import find_system, installed_systems, load, load_parts

__all__ = ["replay"]

BATCH_RECORDS = 1000
# With a rate, records go out in steps of this many seconds.
RATE_STEP_SECONDS = 0.1


def _replay(
    config: ConfigArgument,
    data: DataOption,
    rate: Annotated[float | None, typer.Option(help="Rows a second; left out: as fast as they go.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most rows to write.")] = None,
    format: FormatOption = OutputFormat.TABLE,
    **options: Any,
) -> None:
    """Write a data set's rows to the topics that a role reads from its users, in the form that its settings describe."""
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigurationError(f"--rate = {rate}: a positive number is expected")
    configured = read_configuration(config)
    kind = configured.kind.name
    place = find_system(kind).sources.get(kind)
    if place is None:
        raise ConfigurationError(f"{config}: role.kind = {kind!r}: nothing can be replayed to such a role")
    source = load(place)
    rows: Rows = source(Replayed(config, configured.settings, data), **own_options(source, options, kind))
    total = min(len(rows.usable), limit or len(rows.usable))
    if rows.dropped:
        say(f"{rows.dropped} of {rows.dropped + len(rows.usable)} rows have no number in some column, or no name, and are left out")
    with closing(configured.connect()) as bus:
        for topic in rows.topics:
            if topic not in bus.describe(rows.topics):
                raise ConfigurationError(f"topic {topic} does not exist: streamfl topics {config} --create-inputs")
        began = time.monotonic()
        step = BATCH_RECORDS if rate is None else max(1, min(BATCH_RECORDS, int(rate * RATE_STEP_SECONDS)))
        records = rows.records(total)
        for written in track(range(0, total, step), description="replay", console=Console(stderr=True), transient=True):
            batch = list(chain.from_iterable(islice(records, step)))
            if rate is not None:
                time.sleep(max(0.0, began + written / rate - time.monotonic()))
            bus.write(batch)
        seconds = time.monotonic() - began
    topic, *others = rows.topics
    if format is OutputFormat.JSON:
        print_json(
            {"topic": topic, "records": total, "labels": total if others else 0, "dropped": rows.dropped, "seconds": seconds}
        )
    else:
        beside = f", and their labels to {others[0]}," if others else ""
        say(f"wrote {total} records to {topic}{beside} in {seconds:.1f} s")


replay = with_options(
    _replay,
    load_parts({kind: place for system in installed_systems() for kind, place in system.sources.items()}),
)
