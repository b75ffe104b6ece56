"""Deals a data set's rows to clients."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import GivenSettings, load_kind, load_settings, text_of
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.pofmkl import SYSTEM
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.encoded import encoded_inputs
from streamfl.pofmkl.tools.federation import Outcome
from streamfl.pofmkl.tools.federation import simulate as run_federation
from streamfl.pofmkl.tools.record_size import record_bytes
from streamfl.pofmkl.tools.sites import InputArray, Sites
from streamfl.records.fields import LARGEST_FLOAT
from streamfl.records.samples import SamplesSection
from streamfl.simulation.tables import (
    DataSource,
    DataTable,
    client_names,
    input_names,
    label_told,
    named_column,
    numbers,
    read_data,
    unread_columns,
)
from streamfl.terminal.console import say
from streamfl.terminal.progress import progress

__all__ = ["Streams", "deal", "read_streams", "run_with_progress", "scaled"]

NORMS_AT_ONCE = 65_536


@dataclass(frozen=True)
class Streams:
    """A data set dealt to K clients, in its own units: inputs (T, K, d), labels (T, K), names: the data's
    own, if it has any.

    A client with fewer than T samples has them in the first rounds. After these its labels are NaN, and there
    are no inputs. largest_norm, label_range: over all usable rows, dealt or not, so that the scale depends on
    neither K nor T.
    dropped: rows with something missing.
    rows: (T, K), each sample's row in the data; -1 where there is none.
    unused_rows, unused_clients: usable, and not dealt.
    unread: columns that are no inputs because they hold no numbers.
    refused: dropped rows that a worker would make dead letters, by reason.
    unit: the label's own, in words.
    record_bytes: the mean size of the rows as JSON records.
    """

    inputs: InputArray
    labels: NDArray[np.float64]
    largest_norm: float
    label_range: tuple[float, float]
    dropped: int
    rows: NDArray[np.intp]
    names: list[str] | None = None
    unused_rows: int = 0
    unused_clients: int = 0
    unread: tuple[str, ...] = ()
    refused: Counter[str] = field(default_factory=Counter)
    unit: str = "units of the label"
    record_bytes: int = 0

    def first(self, rounds: int) -> Streams:
        """The streams of the first ``rounds`` rounds."""
        return replace(self, labels=self.labels[:rounds], rows=self.rows[:rounds])

    def by_row(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of each sample, (T, K), in the order of the data's rows."""
        there = self.rows >= 0
        return np.asarray(values[there][np.argsort(self.rows[there])])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Row, client and label of each sample, in the order of the data's rows."""
        names = np.array(
            self.names or [f"client-{number}" for number in range(self.rows.shape[1])], dtype=object
        )
        each = np.broadcast_to(names, self.rows.shape)
        return {"row": self.by_row(self.rows), "client": self.by_row(each), "label": self.by_row(self.labels)}

    @property
    def left_out(self) -> dict[str, Any]:
        """The data that the run has not used, as commands print it."""
        return {
            "dropped_rows": self.dropped,
            "unused_rows": self.unused_rows,
            "unused_clients": self.unused_clients,
            "unread_columns": list(self.unread),
        }


def read_streams(
    config: Path | GivenSettings,
    data: DataSource,
    label: str | None,
    clients: int | None,
    rounds: int | None,
    seed: int | None,
    client_column: str | None,
) -> tuple[PofmklSettings, Streams]:
    """The settings of ``config`` with the scales of the data, and the data dealt to its clients.

    label, client_column: None: the columns that ``config`` names, if the data has them.
    """
    label = label_told(config, data, label)
    if client_column is None and (owner := text_of(config, "samples", "client")) is not None:
        client_column = named_column(read_data(data), owner)
    if clients is None and client_column is not None:
        clients = _all_clients(config, data, client_column)
    federation = {name: value for name, value in (("clients", clients), ("seed", seed)) if value is not None}
    kind = load_kind(config)
    if kind not in SYSTEM.kinds:
        raise ConfigurationError(f"{config}: role.kind = {kind!r} has no clients with rows of their own")
    settings = load_settings(config, PofmklSettings, {"federation": federation})
    features = settings.samples.features if settings.samples is not None else settings.federation.features
    named = features if isinstance(features, list) else None
    if settings.samples is not None and settings.samples.inputs is not None:
        relative = settings.learning.preset == "default"
        streams = deal_encoded(
            settings.samples, relative, data, label, settings.federation.clients, rounds, client_column
        )
    else:
        streams = deal(data, label, settings.federation.clients, rounds, named, client_column)
    if streams.refused:
        reasons = ", ".join(f"{reason}: {count}" for reason, count in sorted(streams.refused.items()))
        say(f"samples.inputs would turn some rows into dead letters ({reasons}); they are left out")
    if streams.dropped > streams.refused.total():
        say(
            f"{streams.dropped - streams.refused.total()} rows have no number in some column, or no client, "
            "and are left out"
        )
    return scaled(settings, streams), streams


def _all_clients(config: Path | GivenSettings, data: DataSource, column: str) -> int:
    """How many clients the data names, unless settings in a notebook give the number.

    The number in a file is not used: its author may have seen only the first records.
    """
    if isinstance(config, GivenSettings) and (given := config.get("federation", {}).get("clients")):
        return int(given)
    named = len({name for name in client_names(read_data(data), column, data) if name is not None})
    if isinstance(config, Path) and named > (
        written := load_settings(config, PofmklSettings).federation.clients
    ):
        say(
            f"{named} clients take part, as {column} names them; raise federation.clients = {written} of "
            f"{config} before you run"
        )
    return named


def deal(
    location: DataSource,
    label: str,
    clients: int,
    rounds: int | None,
    features: list[str] | None = None,
    client_column: str | None = None,
) -> Streams:
    """Deal the rows of a data set in which every number is finite; DataError if there are too few.

    With ``client_column`` the clients are the ``clients`` of its values that have the most rows, in the order
    of the file, each with its rows in order; rows without one are left out. Without it row t K + k is sample
    t of client k. A client whose rows are used up takes part in no further round.
    """
    table = read_data(location)
    names = input_names(table, features, (label, client_column), location)
    if label in names:
        raise ConfigurationError(
            f"--label {label}: samples.features names it too: what is to be predicted cannot be an input"
        )
    inputs = numbers(table, names, location)
    present = np.asarray(np.isfinite(inputs).all(axis=1))
    dealt = _deal(table, location, label, clients, rounds, client_column, present)
    with np.errstate(over="ignore"):
        parts = np.array_split(dealt.usable, 1 + len(dealt.usable) // NORMS_AT_ONCE)
        largest = max(float(np.linalg.norm(inputs[part], axis=1).max()) for part in parts) or 1.0
    if not math.isfinite(largest):
        raise DataError(
            f"{location}: inputs as large as {np.abs(inputs[dealt.usable]).max():g}: the norm of a row is no "
            "finite number. Name other columns in samples.features, or change their unit"
        )
    unread = () if features else tuple(unread_columns(table, names, (label, client_column)))
    size = _record_bytes(table, names, label, client_column, dealt)
    return dealt.streams(Sites(inputs, dealt.rows), largest, size, unread=unread)


def deal_encoded(
    section: SamplesSection,
    relative: bool,
    location: DataSource,
    label: str,
    clients: int,
    rounds: int | None,
    client_column: str | None,
) -> Streams:
    """Deal the rows of a data set as :func:`deal`, with inputs encoded and gaps filled as a worker does it.

    The inputs are on the learning scale: samples.input_norm has been applied. relative: as for the role's
    means.
    """
    table = read_data(location)
    if any(label in (one.field, one.since_field) for one in section.inputs or ()):
        raise ConfigurationError(
            f"--label {label}: samples.inputs names it too: what is to be predicted cannot be an input"
        )
    encoded = encoded_inputs(section, table, location)
    names = [name for one in section.inputs or () for name in (one.field, one.since_field) if name]
    dealt = _deal(table, location, label, clients, rounds, client_column, encoded.accepted)
    size = _record_bytes(table, names, label, client_column, dealt)
    return dealt.streams(encoded.filled(dealt.rows, relative), 1.0, size, refused=encoded.refused)


def _record_bytes(
    table: DataTable, inputs: list[str], label: str, client_column: str | None, dealt: _Dealt
) -> int:
    """Mean bytes of a record with the fields that the run reads."""
    return record_bytes(
        table, [*dict.fromkeys([*inputs, label, *([client_column] if client_column else [])])], dealt.rows
    )


@dataclass(frozen=True)
class _Dealt:
    """Which rows each client gets. usable: the numbers of all rows that can be dealt. The rest is as in
    :class:`Streams`."""

    usable: NDArray[np.intp]
    label: str
    labels: NDArray[np.float64]
    label_range: tuple[float, float]
    dropped: int
    rows: NDArray[np.intp]
    names: list[str] | None
    unused_clients: int

    def streams(
        self,
        inputs: InputArray,
        largest_norm: float,
        record_bytes: int,
        unread: tuple[str, ...] = (),
        refused: Counter[str] | None = None,
    ) -> Streams:
        return Streams(
            inputs,
            np.where(self.rows < 0, np.nan, self.labels[self.rows]),
            largest_norm,
            self.label_range,
            dropped=self.dropped,
            rows=self.rows,
            names=self.names,
            unused_rows=len(self.usable) - int((self.rows >= 0).sum()),
            unused_clients=self.unused_clients,
            unread=unread,
            refused=refused or Counter(),
            unit=f"units of {self.label}",
            record_bytes=record_bytes,
        )


def _deal(
    table: DataTable,
    location: DataSource,
    label: str,
    clients: int,
    rounds: int | None,
    client_column: str | None,
    present: NDArray[np.bool_],
) -> _Dealt:
    """present: (rows,), the rows that have their inputs."""
    labels = numbers(table, [label], location)[:, 0]
    present = present & np.isfinite(labels)
    own: dict[str, NDArray[np.intp]] = {}
    if client_column is not None:
        owners = client_names(table, client_column, location)
        present &= np.array([owner is not None for owner in owners])
        own = _rows_by_owner(owners, np.flatnonzero(present))
        if len(own) < clients:
            raise DataError(f"{location}: {client_column} names {len(own)} clients, {clients} are asked for")
    usable = np.flatnonzero(present)
    if len(usable) < clients:
        raise DataError(f"{location}: {len(usable)} usable rows are too few for {clients} clients")
    # Among clients with equally many rows, the first are taken.
    most_rows = set(sorted(own, key=lambda name: -len(own[name]))[:clients])
    chosen = [name for name in own if name in most_rows] if own else None
    of_each = (
        [usable[number::clients] for number in range(clients)]
        if chosen is None
        else [own[name] for name in chosen]
    )
    most = max(map(len, of_each))
    if most < (rounds or 1):
        raise DataError(
            f"{location}: no client has more than {most} usable rows, {rounds} samples of each are asked for"
        )
    dealt = np.full((rounds or most, clients), -1)
    for number, rows in enumerate(of_each):
        dealt[: len(rows), number] = rows[:rounds]
    low, high = float(labels[usable].min()), float(labels[usable].max())
    if low == high:
        raise DataError(f"{location}: the label {label} is {low:g} in every row: there is nothing to learn")
    if max(-low, high) > LARGEST_FLOAT:
        raise DataError(
            f"{location}: the label {label} reaches from {low:g} to {high:g}, and at most {LARGEST_FLOAT:g} "
            "is read: change its unit"
        )
    return _Dealt(
        usable,
        label,
        labels,
        (low, high),
        dropped=table.rows - len(usable),
        rows=dealt,
        names=chosen,
        unused_clients=len(own) - clients if own else 0,
    )


def _rows_by_owner(owners: Sequence[str | None], rows: NDArray[np.intp]) -> dict[str, NDArray[np.intp]]:
    """Each owner's rows among these, in order; owners in the order of their first row."""
    numbers: dict[str, int] = {}
    owned = np.array([numbers.setdefault(str(owners[row]), len(numbers)) for row in rows.tolist()], np.intp)
    ends = np.cumsum(np.bincount(owned, minlength=len(numbers)))[:-1]
    return dict(zip(numbers, np.split(rows[np.argsort(owned, kind="stable")], ends), strict=True))


def scaled(settings: PofmklSettings, streams: Streams) -> PofmklSettings:
    """The settings as workers would have them. Scales that are not given come from the data, a horizon from
    the run's length."""
    samples = settings.samples or SamplesSection(topic="samples")
    scales = {"input_norm": streams.largest_norm, "label_range": streams.label_range}
    scales = {name: scale for name, scale in scales.items() if name not in samples.model_fields_set}
    # [[samples.inputs]] has been applied already: the streams are numbers.
    samples = samples.model_copy(update={**scales, "inputs": None})
    learning = settings.learning
    if "horizon" not in learning.model_fields_set:
        learning = learning.model_copy(update={"horizon": len(streams.labels)})
    return settings.model_copy(update={"samples": samples, "learning": learning})


def run_with_progress(settings: PofmklSettings, streams: Streams, trace: bool) -> Outcome:
    """Run the federation. Ctrl-C ends it with the rounds so far."""
    total = int((streams.rows >= 0).sum())
    with progress("federation", stops=True) as work:

        def watch(of: str, samples: int) -> bool:
            if of != work.of and not work.interrupted:
                work.begin(of)
            return work(samples, total)

        return run_federation(
            settings, streams.inputs, streams.labels, names=streams.names, trace=trace, watch=watch
        )
