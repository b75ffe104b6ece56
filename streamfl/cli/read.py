"""``streamfl read``: prints the records of a federation's topics."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Annotated, Any

import typer

from streamfl.cli.dead_letters.show import SHOWN, show
from streamfl.cli.named_topics import NamedTopic, find_topic, records_between
from streamfl.cli.preflight import read_configuration
from streamfl.connection import Connection, DecodedRecord
from streamfl.contract.role import Record
from streamfl.runtime.bus import Bus
from streamfl.terminal.console import (
    ConfigArgument,
    OutputFormat,
    json_text,
    print_json,
    print_line,
    print_table,
    until_nobody_reads,
)
from streamfl.terminal.printable import printable, valid_date

__all__ = ["as_cells", "read", "records_of", "time_of", "updates"]

DEAD_LETTERS = "dead-letters"
LONGEST_CELL = 60
# Fields that mostly have the same value as the record's key.
NAMES = {"client", "entity"}

FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on with what comes from now on, until Ctrl-C.")
]
ClientOption = Annotated[
    str | None, typer.Option(help="Only what names this client or entity, or has it as the key.")
]
LinesOption = Annotated[OutputFormat, typer.Option("--format", help="json: an object a line on stdout.")]
LimitOption = Annotated[
    int | None,
    typer.Option("--limit", "-n", min=0, help=f"The newest N; left out: {SHOWN} in a table, all as JSON."),
]


def read(
    config: ConfigArgument,
    what: Annotated[
        str,
        typer.Argument(
            help="predictions, updates, model, dead-letters, samples, …, or the name of a topic of yours."
        ),
    ] = "predictions",
    follow: FollowOption = False,
    client: ClientOption = None,
    limit: LimitOption = None,
    envelope: Annotated[
        bool,
        typer.Option(
            "--envelope", help="With json: each value within topic, partition, offset, time, key and headers."
        ),
    ] = False,
    format: LinesOption = OutputFormat.TABLE,
) -> None:
    """Print a federation's predictions, or the records of another topic; json: an object a line, as it was
    written.

    Reading commits no offset, so that it does not affect workers.
    """
    configured = read_configuration(config)
    with until_nobody_reads(), closing(configured.connect()) as bus:
        if what == DEAD_LETTERS and client is None and not envelope:
            show(configured, bus, frozenset(), SHOWN if limit is None else limit, follow, format)
            return
        topic = find_topic(configured, bus, what)
        if format is OutputFormat.JSON:
            for record in records_of(bus, topic, client, limit, follow):
                print_object(topic.says(record), record if envelope else None)
        else:
            print_records(topic, bus, client, SHOWN if limit is None else limit, follow)


def updates(
    config: ConfigArgument,
    follow: FollowOption = False,
    client: ClientOption = None,
    limit: LimitOption = None,
    format: LinesOption = OutputFormat.TABLE,
) -> None:
    """Print the clients' updates to the server in readable form: a line an update, with its content and
    size."""
    read(config, "updates", follow, client, limit, envelope=False, format=format)


def print_records(topic: NamedTopic, bus: Bus, client: str | None, limit: int, follow: bool) -> None:
    """Print the newest records as a table; with ``follow`` as lines, and then each new record as a line."""
    if follow:
        with suppress(KeyboardInterrupt):
            for record in records_of(bus, topic, client, limit, follow=True):
                said = topic.says(record)
                time_, key, *cells = as_cells(record, said, ())
                if not isinstance(said, Mapping) or not said.keys() & NAMES:
                    cells.insert(0, key)
                print_line(*(cell for cell in (time_, *cells) if cell))
        return
    rows = [(record, topic.says(record)) for record in records_of(bus, topic, client, limit, follow=False)]
    columns = list(dict.fromkeys(name for _, said in rows if isinstance(said, Mapping) for name in said))
    # Values without fields get a column of their own; a key that the value has too is shown once.
    names = [*columns, *([] if all(isinstance(said, Mapping) for _, said in rows) else ["value"])]
    keyed = not NAMES & set(names)
    table = [as_cells(record, said, names) for record, said in rows]
    print_table(
        topic.topic,
        ("time", *["key"] * keyed, *names),
        (row if keyed else (row[0], *row[2:]) for row in table),
    )


def records_of(
    bus: Bus, topic: NamedTopic, client: str | None, limit: int | None, follow: bool
) -> Iterator[Record]:
    """The newest ``limit`` records, oldest first, or all, one partition after the other; with ``follow``,
    then each new record.

    client: only records that have it as their key or name it.
    """
    # Records after these ends are returned by following.
    ends = bus.offsets(topic.topic, float("inf"))

    def wanted(record: Record) -> bool:
        if client is None or record.key == client.encode():
            return True
        said = topic.says(record)
        return isinstance(said, Mapping) and client in (said.get("client"), said.get("entity"))

    there = filter(wanted, records_between(bus, topic.topic, dict.fromkeys(ends, 0), ends))
    if limit is None:
        yield from there
    else:
        newest = heapq.nlargest(
            limit, there, key=lambda record: (record.timestamp, record.partition, record.offset)
        )
        yield from reversed(newest)
    if follow:
        with suppress(KeyboardInterrupt):
            for record in Connection(bus).records(topic.topic, ends):
                if wanted(record):
                    yield record


def print_object(said: Any, record: Record | None) -> None:
    """Print an object on a line of stdout. record: printed with all its fields besides the value."""
    content = said
    if record is not None:
        content = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "time": record.timestamp,
            "key": None if record.key is None else _as_text(record.key),
            "headers": {name: _as_text(value) for name, value in record.headers},
            "value": said,
        }
    print_json(content, _as_json)


def as_cells(record: Record, said: Any, columns: Sequence[str]) -> tuple[str, ...]:
    """Time, key and each of these fields of a record, as text that is safe for a terminal."""
    fields = said if isinstance(said, Mapping) else {"value": said}
    key = "" if record.key is None else _as_text(record.key)
    rest = columns or list(fields)
    return (time_of(record), _cell(key), *(_cell(fields.get(name, "")) for name in rest))


def time_of(record: Record | DecodedRecord) -> str:
    """When the record was written."""
    seconds = record.timestamp if isinstance(record, Record) else record.time
    return valid_date(seconds).isoformat(sep=" ", timespec="seconds")[:-6]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.6g}"
    elif isinstance(value, str):
        text = value
    else:
        text = "" if value is None else json_text(value, _as_json)
    text = printable(text)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."


def _as_text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return base64.b64encode(content).decode()


def _as_json(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
