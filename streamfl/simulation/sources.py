"""Turns the rows of a data set into the records that users would write: what ``streamfl replay`` sends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Annotated, Protocol, cast

import numpy as np
import typer
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, VerticalSettings
from streamfl.records.formats import format_of
from streamfl.records.keys import KeySection, key_writer
from streamfl.records.labels import LabelsSection
from streamfl.records.paths import path_of
from streamfl.records.samples import SamplesSection
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.options import ClientColumnOption, LabelOption
from streamfl.simulation.parties import SplitOption, split_columns
from streamfl.simulation.system_tools import Replayed, Rows
from streamfl.simulation.tables import (
    DEFAULT_LABEL,
    DataTable,
    client_names,
    input_fields,
    input_names,
    named_column,
    numbers,
    placed,
    read_data,
)

__all__ = [
    "ClientSettings",
    "EntityColumnOption",
    "EntityRows",
    "LateByOption",
    "SampleRows",
    "client_samples",
    "entity_labels",
    "entity_samples",
    "entity_samples_and_labels",
]

LateByOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="With [labels]: by how many rows of its client a label comes later; left out: 0."
    ),
]
EntityColumnOption = Annotated[
    str | None,
    typer.Option(
        help="The data's column with the entity; left out: the field that names it, else the row's number."
    ),
]


class _ClientsSection(Protocol):
    @property
    def clients(self) -> int: ...


class ClientSettings(Protocol):
    """Settings of a role that reads samples of clients. It may have labels, which come on their own topic."""

    @property
    def federation(self) -> _ClientsSection: ...

    @property
    def samples(self) -> SamplesSection | None: ...


def client_samples(
    asked: Replayed,
    label: LabelOption = None,
    client_column: ClientColumnOption = None,
    label_delay: LateByOption = None,
) -> SampleRows:
    """The rows as samples in the format of the settings, keyed by client; with [labels] their labels under
    the same key."""
    settings = cast(ClientSettings, asked.settings)
    labels: LabelsSection | None = getattr(settings, "labels", None)
    if settings.samples is None:
        raise ConfigurationError(
            f"{asked.config}: the section [samples] is missing: it names the topic and the fields"
        )
    if labels is None and label_delay is not None:
        raise ConfigurationError(
            f"--label-delay = {label_delay}: without the section [labels] a label comes with its sample"
        )
    table = read_data(asked.data)
    return SampleRows(
        settings.samples,
        labels,
        table,
        asked.data,
        settings.federation.clients,
        label,
        client_column,
        label_delay,
    )


def entity_samples(
    asked: Replayed,
    label: LabelOption = None,
    split: SplitOption = None,
    entity_column: EntityColumnOption = None,
) -> EntityRows:
    """A party's own columns, under the names of its fields, keyed by the entity."""
    settings, location = cast(VerticalSettings, asked.settings), asked.data
    section, party = settings.samples, settings.own_party
    assert section is not None
    assert party is not None
    table = read_data(location)
    fields = section.features
    if fields is None:
        raise ConfigurationError(
            "samples.inputs: rows are replayed to a party whose samples.features name its columns"
        )
    if split is not None:
        column, parties = label or DEFAULT_LABEL, settings.federation.parties
        offered = input_names(table, None, (column,), location)
        names = split_columns(split, parties, offered, list(table.columns), column)[parties.index(party)]
    elif isinstance(fields, list):
        if label is not None:
            raise ConfigurationError(
                "--label has no meaning without --split: samples.features says which columns are read"
            )
        names = fields
    else:
        raise ConfigurationError(
            f"--split is missing: say which columns become the list {fields!r}, such as {party}=0:5"
        )
    expected = section.dimension if isinstance(fields, str) else len(fields)
    if len(names) != expected:
        raise ConfigurationError(
            f"{location}: {party} has {len(names)} columns ({', '.join(names)}), samples.features has "
            f"{expected}"
        )
    return EntityRows(section, fields, numbers(table, names, location), table, location, entity_column)


def entity_labels(
    asked: Replayed, label: LabelOption = None, entity_column: EntityColumnOption = None
) -> EntityRows:
    """The entities' labels, keyed by the entity."""
    section, location = cast(VerticalSettings, asked.settings).labels, asked.data
    assert section is not None
    table = read_data(location)
    column = label or named_column(table, section.label) or DEFAULT_LABEL
    return EntityRows(
        section, [section.label], numbers(table, [column], location), table, location, entity_column
    )


def entity_samples_and_labels(
    asked: Replayed,
    label: LabelOption = None,
    split: SplitOption = None,
    entity_column: EntityColumnOption = None,
    label_delay: LateByOption = None,
) -> Rows:
    """A party's own columns, and the labels too if this party knows them."""
    section = cast(VerticalSettings, asked.settings).labels
    if section is None:
        if label_delay is not None:
            raise ConfigurationError("--label-delay has no meaning here: this party has no [labels]")
        return entity_samples(asked, label, split, entity_column)
    labels = entity_labels(asked, label, entity_column)
    # No party may see the label, so column ranges are counted without it.
    column = (
        None
        if split is None
        else label or named_column(read_data(asked.data), section.label) or DEFAULT_LABEL
    )
    samples = entity_samples(asked, column, split, entity_column)
    return EntityRowsWithLabels(samples, labels, label_delay or 0)


def _keys(section: KeySection) -> Callable[[str], bytes]:
    """Returns a function from a name to a record's key. DataError for a name that such keys cannot hold."""
    write = key_writer(section)

    def key(name: str) -> bytes:
        try:
            return write(name)
        except ValueError as error:
            raise DataError(f'the name {name!r} is no key with key = "{section.key}": {error}') from None

    return key


class EntityRows:
    """Rows for one member of a vertical federation: its own values of each entity, keyed by the entity."""

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
        self._encode = format_of(section).encode
        self._key = _keys(section)
        self.topics = [section.topic]
        entity_column = entity_column or named_column(table, section.entity)
        # Replays of other columns of the same rows get the same names.
        rows = [str(row) for row in range(table.rows)]
        self._entities = rows if entity_column is None else client_names(table, entity_column, location)
        present = np.isfinite(values).all(axis=1) & np.array(
            [entity is not None for entity in self._entities]
        )
        self.usable = np.flatnonzero(present)
        self.dropped = table.rows - len(self.usable)
        if not len(self.usable):
            raise DataError(f"{location}: no row has a number in every column and an entity")

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        return ([self.record(row)] for row in self.usable[:total].tolist())

    def record(self, row: int) -> Outgoing:
        """The record of one usable row."""
        section, fields = self._section, self._fields
        values, entity = self._values[row].tolist(), str(self._entities[row])
        content = placed([fields], [values]) if isinstance(fields, str) else placed(fields, values)
        if section.entity is not None:
            path_of(section.entity).put(content, entity)
        return Outgoing(section.topic, self._key(entity), self._encode(content))


class EntityRowsWithLabels:
    """Rows for a party that knows the labels: its columns of each entity, and the label ``label_delay`` rows
    later, or at the end.

    A row without a label is written too.
    """

    def __init__(self, samples: EntityRows, labels: EntityRows, label_delay: int) -> None:
        self._samples, self._labels, self._delay = samples, labels, label_delay
        self.topics = [*samples.topics, *labels.topics]
        self.usable, self.dropped = samples.usable, samples.dropped

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        known = set(self._labels.usable.tolist())
        late: deque[int] = deque()
        for number, row in enumerate(self.usable[:total].tolist()):
            records = [self._samples.record(row)]
            late.append(row)
            while late and (len(late) > self._delay or number == total - 1):
                if (due := late.popleft()) in known:
                    records.append(self._labels.record(due))
            yield records


class SampleRows:
    """The rows of a table as records. ``usable``: the numbers of the rows with a number in every column and a
    client."""

    def __init__(
        self,
        section: SamplesSection,
        labels: LabelsSection | None,
        table: DataTable,
        location: str,
        clients: int,
        label: str | None,
        client_column: str | None,
        label_delay: int | None,
    ) -> None:
        self._label_delay = label_delay or 0
        self.topics = [section.topic, *([] if labels is None else [labels.topic])]
        self._section = section
        self._labels_section = labels
        self._clients = clients
        columns = table.columns
        field = section.label if labels is None else labels.label
        if label is None and field is not None:
            label = named_column(table, field) or DEFAULT_LABEL
        client_column = client_column or named_column(table, section.client)
        self._key = _keys(section)
        self._label_key = self._key if labels is None else _keys(labels)
        if section.inputs is not None:
            # Raw values: the settings say how they are transformed, and what replaces a missing one.
            self._names, self._values = input_fields(section.inputs, table, location)
            self._inputs = np.empty((table.rows, 0))
        else:
            features = section.features if isinstance(section.features, list) else None
            self._names = input_names(table, features, (label, client_column), location)
            self._inputs = numbers(table, self._names, location)
            self._values = self._inputs.tolist()
        self._labels = (
            numbers(table, [label], location)[:, 0] if label is not None and field is not None else None
        )
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
            raise DataError(
                f"{location}: no row has a number in every column" + (" and a client" if self._owners else "")
            )

    def records(self, total: int) -> Iterator[list[Outgoing]]:
        """The records of each of the first ``total`` usable rows. With K clients, row t K + k is sample t of
        client k.

        If labels have a topic of their own, a label comes ``label_delay`` samples of its client later, or at
        the end.
        """
        section, labels = self._section, self._labels_section
        encode = format_of(section).encode
        encode_label = None if labels is None else format_of(labels, "labels").encode
        late: dict[str, deque[Outgoing]] = {}
        for number, row in enumerate(self.usable[:total].tolist()):
            owner = f"client-{number % self._clients}" if self._owners is None else str(self._owners[row])
            values, listed = self._values[row], section.features
            content = placed([listed], [values]) if isinstance(listed, str) else placed(self._names, values)
            if section.client is not None:
                path_of(section.client).put(content, owner)
            identity = str(self._identities[row]) if self._identities else str(row)
            if section.sample_id is not None:
                path_of(section.sample_id).put(content, identity)
            if section.label is not None and self._labels is not None:
                path_of(section.label).put(content, float(self._labels[row]))
            records = [Outgoing(section.topic, self._key(owner), encode(content))]
            if labels is not None and encode_label is not None and self._labels is not None:
                content = placed([labels.sample_id, labels.label], [identity, float(self._labels[row])])
                if labels.client is not None:
                    path_of(labels.client).put(content, owner)
                own = late.setdefault(owner, deque())
                own.append(Outgoing(labels.topic, self._label_key(owner), encode_label(content)))
                if len(own) > self._label_delay:
                    records.append(own.popleft())
                if number == total - 1:
                    records += chain.from_iterable(late.values())
            yield records
