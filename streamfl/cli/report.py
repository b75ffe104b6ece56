"""``streamfl report``: writes an HTML page from a simulation's trace or a federation's topics."""

from __future__ import annotations

import os
import time
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from streamfl.cli.inspect import remembered
from streamfl.cli.named_topics import find_topic, records_between
from streamfl.cli.preflight import Configured, read_configuration
from streamfl.cli.unreadable import opened
from streamfl.contract.role import (
    BadRecord,
    ConfigurationError,
    DataError,
    IgnoredRecord,
    NotYetReadable,
    Record,
)
from streamfl.contract.system import find_system, load, systems_with
from streamfl.encoding.wire import record_size
from streamfl.runtime.bus import Bus, BusUnavailable, Unreadable
from streamfl.simulation.html import html
from streamfl.simulation.page import Arrays, Chart, Line, Page, ReadRecord, Reports, Table
from streamfl.simulation.system_tools import SYSTEM_ARRAY, Report
from streamfl.terminal.console import say

__all__ = ["report"]

TRACE = "trace.npz"
# The largest trace, uncompressed: it is held in memory whole, and may be far larger than its file.
MOST_TRACE_BYTES = 4 * 2**30
BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, NotImplementedError)


def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG|TRACE",
            help="The role's settings, a TOML file: what lies in its federation's topics is read. Or what "
            "streamfl simulate --trace wrote, the directory or its trace.npz: no bus is needed.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Where the page goes.")] = Path("report.html"),
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="With CONFIG: the newest N records of each topic.")
    ] = 50_000,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.1, help="With CONFIG: reading topics ends after so many seconds."),
    ] = 60.0,
) -> None:
    """Write one page of HTML: error, regret, kernel weights, bytes and staleness over time, as far as the
    system has them.

    It needs no network and no other file. With CONFIG no offset is committed, and workers may run meanwhile.
    """
    is_folder = os.path.isdir(source)
    if is_folder or source.suffix == ".npz":
        page = _of_trace(source / TRACE if is_folder else source)
    else:
        page = _of_topics(source, limit, seconds)
    try:
        out.write_text(html(page), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None
    say(f"report: {out}")


def _of_trace(path: Path) -> Page:
    arrays = _read_arrays(path)
    name = str(arrays.get(SYSTEM_ARRAY, ""))
    known = systems_with("report")
    if not name:
        raise DataError(
            f"{path}: it does not say which system's run it is: it was written by an earlier release; "
            "simulate again"
        )
    reports = _reports(name)
    if reports.of_trace is None:
        raise DataError(
            f"{path}: there is no report of a trace of {name!r}; there is of {', '.join(sorted(known))}"
        )
    return reports.of_trace(arrays)


def _read_arrays(path: Path) -> Arrays:
    """Every array of the trace; DataError if the file is no trace, or is too large."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())
        if size > MOST_TRACE_BYTES:
            raise DataError(f"{path}: its arrays have {size:,} bytes, at most {MOST_TRACE_BYTES:,} are read")
        # Without pickle, because a trace may come from a stranger.
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (*BROKEN, ValueError, EOFError, KeyError, MemoryError) as error:
        # MemoryError, because a header may name a shape that is too large for memory.
        raise DataError(f"{path}: is no trace of streamfl simulate --trace: {error}") from None


def _reports(system: str) -> Reports:
    found = systems_with("report").get(system)
    reports: Reports = Reports() if found is None or found.report is None else load(found.report)
    return reports


def _of_topics(path: Path, limit: int, seconds: float) -> Page:
    configured = read_configuration(path)
    with opened(configured) as bus:
        own = [spec.name for spec in configured.kind.topics(configured.settings) if not spec.users]
        if own and not bus.describe(own):
            # An empty page would look like a federation that does nothing.
            raise ConfigurationError(
                f"{configured.settings.bus.url}: the federation {configured.settings.federation.name!r} has "
                f"no topics there. See that bus.url and federation.name are right; streamfl check {path} "
                "tells more"
            )
        topics = _Topics(configured, bus, limit, seconds)
        make = _reports(find_system(configured.settings.role.kind).name).of_topics or _plain_page
        page = make(topics)
        told = topics.remembered()
    tables = [*page.tables, *([] if told is None else [Table(told.title, told.columns, told.rows)])]
    return Page(page.title, page.said, page.figures, page.charts, tables, [*page.notes, *topics.notes])


def _plain_page(topics: _Topics) -> Page:
    """The page of a system that has none of its own: the number of predictions over time."""
    times = np.array([one.time for one in topics.said("predictions")])
    charts = []
    if len(times):
        line = Line("predictions", times, np.arange(1, len(times) + 1))
        says = (
            "Number of predictions so far. Where the line is level, none came: look at the lag and the log."
        )
        charts.append(Chart("Predictions so far", says, [line], "time, UTC", "predictions", times=True))
    title = f"{topics.settings.role.kind}: report of {topics.settings.federation.name}"
    figures = [("predictions read", f"{len(times):,}")]
    return Page(title, "From the records in the federation's topics. Nothing was changed.", figures, charts)


class _Topics:
    """The federation's topics, each read once.

    limit: the newest N records of each topic.
    seconds: reading ends after this time.
    notes: what was cut short.
    """

    def __init__(self, configured: Configured, bus: Bus, limit: int, seconds: float) -> None:
        self.settings = configured.settings
        self.notes: list[str] = []
        self._configured = configured
        self._bus = bus
        self._limit = limit
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._said: dict[str, Sequence[ReadRecord]] = {}
        self._remembered: list[Report | None] = []

    def said(self, name: str) -> Sequence[ReadRecord]:
        if name not in self._said:
            try:
                topic = find_topic(self._configured, self._bus, name)
            except ConfigurationError:
                self.notes.append(f"There is no topic of {name}.")
                self._said[name] = []
            else:
                self._said[name] = self._read(topic.topic, topic.says)
        return self._said[name]

    def messages(self, channel: str) -> Sequence[ReadRecord]:
        inputs = self._configured.kind.channels(self.settings).inputs
        if channel not in inputs or not self._bus.describe([inputs[channel].topic]):
            return []
        return self._read(inputs[channel].topic, inputs[channel].decode)

    def remembered(self) -> Report | None:
        if not self._remembered:
            try:
                self._remembered = [remembered(self._configured, self._bus)[0]]
            except (ConfigurationError, Unreadable) as error:
                self.notes.append(f"The role's state cannot be read: {error}")
                self._remembered = [None]
        return self._remembered[0]

    def _read(self, topic: str, says: Callable[[Record], Any]) -> Sequence[ReadRecord]:
        """The newest records of all partitions, by time; keeps only what is shown of each."""
        seen: list[ReadRecord] = []
        ends = self._bus.offsets(topic, float("inf"))
        begins = self._bus.offsets(topic, float("-inf"))
        firsts = {partition: max(begins[partition], end - self._limit) for partition, end in ends.items()}
        for record in records_between(self._bus, topic, firsts, ends):
            if time.monotonic() > self._until:
                self.notes.append(
                    f"Reading ended after {self._seconds:g} seconds, in {topic}; --seconds allows more."
                )
                break
            try:
                seen.append(ReadRecord(record.timestamp, record.partition, record_size(record), says(record)))
            except (BadRecord, IgnoredRecord):
                continue
            except NotYetReadable as error:
                raise BusUnavailable(str(error)) from None
        seen.sort(key=lambda one: one.time)
        if len(seen) > self._limit or any(firsts[partition] > begins[partition] for partition in firsts):
            self.notes.append(
                f"Of {topic} the newest {self._limit:,} records are shown at most; --limit allows more."
            )
        return seen[-self._limit :]
