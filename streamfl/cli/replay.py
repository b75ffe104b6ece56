"""``streamfl replay``: the rows of a data set as records in the topics that a role reads from its users."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Protocol

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from streamfl.cli.datasets import DataTable, client_names, input_names, numbers, read_data
from streamfl.cli.output import FormatOption, OutputFormat, print_json, say
from streamfl.cli.preflight import ConfigArgument, read_configuration
from streamfl.cli.simulate_vertical import SplitOption, split_columns
from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import find_kind
from streamfl.samples import DataError, LabelsSection, SamplesSection, format_named
from streamfl.settings import RoleSettings
from streamfl.vertical import EntityLabelsSection, EntitySamplesSection, VerticalSettings

__all__ = ["replay"]

BATCH_RECORDS = 1000
# With a rate, records go out in steps of this many seconds.
RATE_STEP_SECONDS = 0.1
DEFAULT_LABEL = "y"


@dataclass(frozen=True)
class _Options:
    """What only some roles have a use for, by the option's name."""

    label: str | None = None
    client_column: str | None = None
    label_delay: int | None = None
    split: str | None = None
    entity_column: str | None = None

    def refuse(self, names: Sequence[str], kind: str) -> None:
        """ConfigurationError if one of ``names`` was given."""
        for name in names:
            if getattr(self, name) is not None:
                raise ConfigurationError(f"--{name.replace('_', '-')} has no meaning with role.kind = {kind!r}")


class _Source(Protocol):
    """The rows of a table as records of ``topics``. usable: the numbers of those that are complete. dropped: how many are not."""

    topics: list[str]
    usable: NDArray[np.intp]
    dropped: int

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        """The records of each of the first ``total`` usable rows."""


def replay(
    config: ConfigArgument,
    data: Annotated[str, typer.Option("--data", help="A .csv, .parquet or .npz file, or river:NAME.")],
    rate: Annotated[float | None, typer.Option(help="Rows a second; left out: as fast as they go.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most rows to write.")] = None,
    label: Annotated[
        str | None, typer.Option(help="The data's label column; left out: samples.label, or that of [labels], else y.")
    ] = None,
    client_column: Annotated[
        str | None,
        typer.Option(help="The data's client column; left out: samples.client, else rows are dealt to the clients in turn."),
    ] = None,
    label_delay: Annotated[
        int | None, typer.Option(min=0, help="With [labels]: by how many rows of its client a label comes later; left out: 0.")
    ] = None,
    split: SplitOption = None,
    entity_column: Annotated[
        str | None,
        typer.Option(help="VAFL: the data's column with the entity; left out: the field that names it, else the row's number."),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write a data set's rows to the samples' topic, as the settings say that samples look, keyed by the client.

    With the section [labels] their labels go to its topic, under the same key. For a vafl-party: its own columns, keyed by the
    entity. For a vafl-coordinator: the labels, under the same keys.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigurationError(f"--rate = {rate}: a positive number is expected")
    configured = read_configuration(config)
    options = _Options(label, client_column, label_delay, split, entity_column)
    rows = _source(configured.settings, config, data, options)
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


def _source(settings: RoleSettings, config: Path, data: str, options: _Options) -> _Source:
    if isinstance(settings, VerticalSettings):
        options.refuse(("client_column", "label_delay"), settings.role.kind)
        table = read_data(data)
        heard = find_kind(settings.role.kind).channels(settings).inputs
        return _columns(settings, table, data, options) if "samples" in heard else _labels(settings, table, data, options)
    if not isinstance(settings, PofmklSettings):
        raise ConfigurationError(f"{config}: role.kind = {settings.role.kind!r}: nothing can be replayed to such a role")
    options.refuse(("split", "entity_column"), settings.role.kind)
    if settings.samples is None:
        raise ConfigurationError(f"{config}: the section [samples] is missing: it names the topic and the fields")
    if settings.labels is None and options.label_delay is not None:
        raise ConfigurationError(
            f"--label-delay = {options.label_delay}: without the section [labels] a label comes with its sample"
        )
    return _Rows(settings.samples, settings.labels, read_data(data), data, settings.federation.clients, options)


def _columns(settings: VerticalSettings, table: DataTable, location: str, options: _Options) -> _Entities:
    """A party's own columns, under the names of its fields."""
    section, party = settings.samples, settings.own_party
    assert section is not None
    assert party is not None
    fields = section.features
    if options.split is not None:
        label, parties = options.label or DEFAULT_LABEL, settings.federation.parties
        offered = input_names(table, None, (label,), location)
        names = split_columns(options.split, parties, offered, list(table.columns), label)[parties.index(party)]
    elif isinstance(fields, list):
        if options.label is not None:
            raise ConfigurationError("--label has no meaning without --split: samples.features says which columns are read")
        names = fields
    else:
        raise ConfigurationError(f"--split is missing: say which columns become the list {fields!r}, such as {party}=0:5")
    expected = section.dimension if isinstance(fields, str) else len(fields)
    if len(names) != expected:
        raise ConfigurationError(
            f"{location}: {party} has {len(names)} columns ({', '.join(names)}), samples.features has {expected}"
        )
    return _Entities(section, fields, numbers(table, names, location), table, location, options.entity_column)


def _labels(settings: VerticalSettings, table: DataTable, location: str, options: _Options) -> _Entities:
    """The coordinator's labels."""
    section = settings.labels
    assert section is not None
    options.refuse(("split",), settings.role.kind)
    label = options.label or (section.label if section.label in table.columns else DEFAULT_LABEL)
    return _Entities(section, [section.label], numbers(table, [label], location), table, location, options.entity_column)


class _Entities:
    """Of a vertical federation: what one of its members knows of each row's entity, keyed by it."""

    def __init__(
        self,
        section: EntitySamplesSection | EntityLabelsSection,
        fields: list[str] | str,
        values: NDArray[np.float64],
        table: DataTable,
        location: str,
        entity_column: str | None,
    ) -> None:
        self._section = section
        self._fields = fields
        self._values = values
        self.topics = [section.topic]
        if entity_column is None and section.entity in table.columns:
            entity_column = section.entity
        # Whoever replays another part of the same rows comes to the same names.
        rows = [str(row) for row in range(table.rows)]
        self._entities = rows if entity_column is None else client_names(table, entity_column, location)
        present = np.isfinite(values).all(axis=1) & np.array([entity is not None for entity in self._entities])
        self.usable = np.flatnonzero(present)
        self.dropped = table.rows - len(self.usable)
        if not len(self.usable):
            raise DataError(f"{location}: no row has a number in every column and an entity")

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        section, fields = self._section, self._fields
        encode = format_named(section.format).encode
        for row in self.usable[:total].tolist():
            values, entity = self._values[row].tolist(), str(self._entities[row])
            content: dict[str, Any] = {fields: values} if isinstance(fields, str) else dict(zip(fields, values, strict=True))
            if section.entity is not None:
                content[section.entity] = entity
            yield [Outgoing(section.topic, entity.encode(), encode(content))]


class _Rows:
    """The rows of a table as records. ``usable``: the numbers of those that have a number in every column, and a client."""

    def __init__(
        self,
        section: SamplesSection,
        labels: LabelsSection | None,
        table: DataTable,
        location: str,
        clients: int,
        options: _Options,
    ) -> None:
        label, client_column = options.label, options.client_column
        self._label_delay = options.label_delay or 0
        self.topics = [section.topic, *([] if labels is None else [labels.topic])]
        self._section = section
        self._labels_section = labels
        self._clients = clients
        columns = table.columns
        field = section.label if labels is None else labels.label
        if label is None and field is not None:
            label = field if field in columns else DEFAULT_LABEL
        if client_column is None and section.client in columns:
            client_column = section.client
        features = section.features if isinstance(section.features, list) else None
        self._names = input_names(table, features, (label, client_column), location)
        self._inputs = numbers(table, self._names, location)
        self._labels = numbers(table, [label], location)[:, 0] if label is not None and field is not None else None
        self._owners = None if client_column is None else client_names(table, client_column, location)
        self._identities = columns[section.sample_id].tolist() if section.sample_id in columns else None
        present = np.isfinite(self._inputs).all(axis=1)
        if self._labels is not None:
            present &= np.isfinite(self._labels)
        if self._owners is not None:
            present &= np.array([owner is not None for owner in self._owners])
        self.usable = np.flatnonzero(present)
        self.dropped = table.rows - len(self.usable)
        if not len(self.usable):
            raise DataError(f"{location}: no row has a number in every column" + (" and a client" if self._owners else ""))

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        """The records of each of the first ``total`` usable rows; of K clients, row t K + k is sample t of client k.

        Where labels have a topic of their own, a label comes after the client's sample ``label_delay`` later, or at the end.
        """
        section, labels = self._section, self._labels_section
        encode = format_named(section.format).encode
        encode_label = None if labels is None else format_named(labels.format, "labels.format").encode
        late: dict[str, deque[Outgoing]] = {}
        for number, row in enumerate(self.usable[:total].tolist()):
            owner = f"client-{number % self._clients}" if self._owners is None else str(self._owners[row])
            values = self._inputs[row].tolist()
            content: dict[str, Any] = (
                {section.features: values} if isinstance(section.features, str) else dict(zip(self._names, values, strict=True))
            )
            if section.client is not None:
                content[section.client] = owner
            identity = str(self._identities[row]) if self._identities else str(row)
            if section.sample_id is not None:
                content[section.sample_id] = identity
            if section.label is not None and self._labels is not None:
                content[section.label] = float(self._labels[row])
            records = [Outgoing(section.topic, owner.encode(), encode(content))]
            if labels is not None and encode_label is not None and self._labels is not None:
                content = {labels.sample_id: identity, labels.label: float(self._labels[row])}
                if labels.client is not None:
                    content[labels.client] = owner
                own = late.setdefault(owner, deque())
                own.append(Outgoing(labels.topic, owner.encode(), encode_label(content)))
                if len(own) > self._label_delay:
                    records.append(own.popleft())
                if number == total - 1:
                    records += chain.from_iterable(late.values())
            yield records
