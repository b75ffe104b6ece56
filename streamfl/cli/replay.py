"""``streamfl replay``: the rows of a data set as records in the samples' topic, and in the labels' where that is another."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from streamfl.cli.datasets import DataTable, client_names, input_names, numbers, read_data
from streamfl.cli.output import FormatOption, OutputFormat, print_json, say
from streamfl.cli.preflight import ConfigArgument, read_configuration
from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.runtime.bus import Outgoing
from streamfl.samples import DataError, LabelsSection, SamplesSection, format_named

__all__ = ["replay"]

BATCH_RECORDS = 1000
# With a rate, records go out in steps of this many seconds.
RATE_STEP_SECONDS = 0.1


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
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Write a data set's rows to the samples' topic, as the settings say that samples look, keyed by the client.

    With the section [labels] their labels go to its topic, under the same key.
    """
    if rate is not None and not 0 < rate < float("inf"):
        raise ConfigurationError(f"--rate = {rate}: a positive number is expected")
    configured = read_configuration(config)
    settings = configured.settings
    if not isinstance(settings, PofmklSettings):
        raise ConfigurationError(f"{config}: role.kind = {settings.role.kind!r}: only samples of POF-MKL can be replayed")
    section, labels = settings.samples, settings.labels
    if section is None:
        raise ConfigurationError(f"{config}: the section [samples] is missing: it names the topic and the fields")
    if labels is None and label_delay is not None:
        raise ConfigurationError(f"--label-delay = {label_delay}: without the section [labels] a label comes with its sample")
    table = read_data(data)
    rows = _Rows(section, labels, table, data, settings.federation.clients, label, client_column)
    total = min(len(rows.usable), limit or len(rows.usable))
    if rows.dropped:
        say(f"{rows.dropped} of {table.rows} rows have no number in some column, or no client, and are left out")
    with closing(configured.connect()) as bus:
        topics = [section.topic, *([] if labels is None else [labels.topic])]
        for topic in topics:
            if topic not in bus.describe(topics):
                raise ConfigurationError(f"topic {topic} does not exist: streamfl topics {config} --create")
        began = time.monotonic()
        step = BATCH_RECORDS if rate is None else max(1, min(BATCH_RECORDS, int(rate * RATE_STEP_SECONDS)))
        records = rows.records(total, label_delay or 0)
        for written in track(range(0, total, step), description="replay", console=Console(stderr=True), transient=True):
            batch = list(chain.from_iterable(islice(records, step)))
            if rate is not None:
                time.sleep(max(0.0, began + written / rate - time.monotonic()))
            bus.write(batch)
        seconds = time.monotonic() - began
    if format is OutputFormat.JSON:
        written_labels = 0 if labels is None else total
        print_json(
            {"topic": section.topic, "records": total, "labels": written_labels, "dropped": rows.dropped, "seconds": seconds}
        )
    else:
        beside = "" if labels is None else f", and their labels to {labels.topic},"
        say(f"wrote {total} records to {section.topic}{beside} in {seconds:.1f} s")


class _Rows:
    """The rows of a table as records. ``usable``: the numbers of those that have a number in every column, and a client."""

    def __init__(
        self,
        section: SamplesSection,
        labels: LabelsSection | None,
        table: DataTable,
        location: str,
        clients: int,
        label: str | None,
        client_column: str | None,
    ) -> None:
        self._section = section
        self._labels_section = labels
        self._clients = clients
        columns = table.columns
        field = section.label if labels is None else labels.label
        if label is None and field is not None:
            label = field if field in columns else "y"
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

    def records(self, total: int, label_delay: int) -> Iterator[list[Outgoing]]:
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
                if len(own) > label_delay:
                    records.append(own.popleft())
                if number == total - 1:
                    records += chain.from_iterable(late.values())
            yield records
