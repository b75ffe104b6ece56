"""``streamfl top``: shows a member at work, from its topics alone, and redraws every few seconds."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import typer

from streamfl.cli.dead_letters.letters import read_letter
from streamfl.cli.inspect import how_it_stands
from streamfl.cli.named_topics import NamedTopic, find_topic
from streamfl.cli.preflight import Configured, read_configuration
from streamfl.cli.record_counts import records_between
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    as_table,
    as_text,
    drawn_anew,
    print_json,
    until_nobody_reads,
)
from streamfl.terminal.printable import printable

__all__ = ["top"]

PREDICTIONS = "predictions"
# The latest labelled predictions that a client's error is computed from; and the most clients that are
# remembered, and shown.
WINDOW, MOST_CLIENTS, SHOWN_CLIENTS = 100, 10_000, 20


@dataclass
class _Client:
    """predictions, latest: the numbers since the start, and since the last look. errors: squared, of the
    latest with a label."""

    predictions: int = 0
    latest: int = 0
    errors: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))


def top(
    config: ConfigArgument,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="End after so many looks; left out: at Ctrl-C.")
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Watch a role work, live: its workers, its unread records, what it writes, and its clients' latest
    errors.

    All figures come from the topics: workers are not asked or disturbed. Beyond some hundred records of a
    partition their number is an estimate. json: an object a look.
    """
    configured = read_configuration(config)
    with until_nobody_reads(), closing(configured.connect()) as bus, suppress(KeyboardInterrupt):
        look = _Look(configured, bus)
        if format is OutputFormat.JSON:
            for number in range(count or sys.maxsize):
                time.sleep(every if number else 0.0)
                print_json(look.figures())
            return
        with drawn_anew() as draw:
            for number in range(count or sys.maxsize):
                time.sleep(every if number else 0.0)
                draw(look.drawn(look.figures()))


class _Look:
    """Looks at the topics of a role repeatedly."""

    def __init__(self, configured: Configured, bus: Bus) -> None:
        self._configured, self._bus = configured, bus
        settings = configured.settings
        channels = configured.kind.channels(settings)
        self._inputs = [source.topic for source in channels.inputs.values()]
        wanted = dict.fromkeys([*self._inputs, *channels.outputs.values(), settings.dead_letters])
        there = bus.describe(wanted)
        if missing := [topic for topic in self._inputs if topic not in there]:
            raise ConfigurationError(f"topic {missing[0]} does not exist: streamfl check {configured.path}")
        self._topics = [topic for topic in wanted if topic in there]
        self._at = time.monotonic()
        self._ends = {topic: bus.offsets(topic, math.inf) for topic in self._topics}
        # If the group has committed no offset in a partition, all its records are unread.
        self._begins = {topic: bus.offsets(topic, -math.inf) for topic in self._topics}
        self._records = {
            topic: self._between(topic, self._begins[topic], ends) for topic, ends in self._ends.items()
        }
        self._clients: dict[str, _Client] = {}
        self._letters: Counter[str] = Counter()
        # Predictions that name a version of the model, and those whose versions are 0 for all shards.
        self._versioned = self._on_version_zero = 0
        self._predictions: NamedTopic | None = None
        with suppress(ConfigurationError):
            self._predictions = find_topic(configured, bus, PREDICTIONS)
            self._from = dict(bus.offsets(self._predictions.topic, math.inf))

    def figures(self) -> dict[str, Any]:
        """The present figures."""
        settings, bus = self._configured.settings, self._bus
        now, before, earlier = time.monotonic(), self._ends, self._at
        self._ends = {topic: bus.offsets(topic, math.inf) for topic in self._topics}
        self._at = now
        committed = bus.committed(settings.group)
        seconds = max(1e-3, now - earlier)
        # A partition that was added since the last look counts from its beginning.
        grown = {topic: self._between(topic, before[topic], ends) for topic, ends in self._ends.items()}
        for topic, count in grown.items():
            self._records[topic] += count
        rates = {topic: count / seconds for topic, count in grown.items()}
        behind = {}
        for topic in self._inputs:
            ends, begins = self._ends[topic], self._begins[topic]
            read = {
                partition: max(committed.get((topic, partition), 0), begins.get(partition, 0))
                for partition in ends
            }
            behind[topic] = self._between(topic, read, ends)
        self._read_predictions()
        self._read_letters(before.get(settings.dead_letters, {}))
        return {
            "role": settings.role.kind,
            "group": settings.group,
            "workers": bus.members(settings.group),
            "topics": [
                {
                    "topic": topic,
                    "records": self._records[topic],
                    "per_second": rates[topic],
                    "behind": behind.get(topic),
                }
                for topic in self._ends
            ],
            "dead_letters": dict(self._letters),
            "versioned_predictions": self._versioned,
            "predictions_on_version_zero": self._on_version_zero,
            "standing": [asdict(one) for one in how_it_stands(self._configured, bus, committed, None)],
            "clients": [self._shown(name, one, seconds) for name, one in self._busiest()],
        }

    def _between(self, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]) -> int:
        """The records of a topic from some offsets up to others, by partition."""
        return sum(
            records_between(self._bus, (topic, partition), begins.get(partition, 0), end)
            for partition, end in ends.items()
        )

    def _busiest(self) -> list[tuple[str, _Client]]:
        return sorted(self._clients.items(), key=lambda one: (-one[1].latest, -one[1].predictions, one[0]))[
            :SHOWN_CLIENTS
        ]

    @staticmethod
    def _shown(name: str, one: _Client, seconds: float) -> dict[str, Any]:
        error = math.sqrt(sum(one.errors) / len(one.errors)) if one.errors else None
        return {
            "client": name,
            "predictions": one.predictions,
            "per_second": one.latest / seconds,
            "rmse": error,
        }

    def _read_predictions(self) -> None:
        for one in self._clients.values():
            one.latest = 0
        topic = self._predictions
        if topic is None:
            return
        # A partition that was added since the last look is read from its beginning.
        for partition in self._bus.offsets(topic.topic, math.inf):
            for record in self._bus.read_from(topic.topic, partition, self._from.get(partition, 0)):
                self._from[partition] = record.offset + 1
                said = topic.says(record)
                if isinstance(said, Mapping):
                    self._count(said)

    def _count(self, said: Mapping[str, Any]) -> None:
        name = next(
            (one for one in (said.get("client"), said.get("entity")) if one and isinstance(one, str)), ""
        )
        if name not in self._clients and len(self._clients) >= MOST_CLIENTS:
            return
        one = self._clients.setdefault(name, _Client())
        one.predictions += 1
        one.latest += 1
        version = said.get("model_version")
        if version is not None:
            self._versioned += 1
            self._on_version_zero += not any(version if isinstance(version, list) else [version])
        prediction, label = _number(said.get("prediction")), _number(said.get("label"))
        if prediction is not None and label is not None:
            # A product and not a power, which may raise OverflowError; the product is infinite then.
            error = prediction - label
            one.errors.append(error * error)

    def _read_letters(self, before: Mapping[int, int]) -> None:
        topic = self._configured.settings.dead_letters
        for partition, end in before.items():
            if self._ends[topic][partition] > end:
                for record in self._bus.read_from(topic, partition, end):
                    if (
                        record.offset < self._ends[topic][partition]
                        and (letter := read_letter(record)) is not None
                    ):
                        self._letters[letter.reason] += 1

    def drawn(self, figures: Mapping[str, Any]) -> list[Any]:
        """The figures for a terminal of 80 columns."""
        workers = figures["workers"]
        head = (
            f"{figures['role']} of {self._configured.settings.federation.name}: {workers or 'no'} "
            f"worker{'s' * (workers != 1)}"
        )
        topics = [
            (
                one["topic"],
                str(one["records"]),
                f"{one['per_second']:.1f}",
                "" if one["behind"] is None else str(one["behind"]),
            )
            for one in figures["topics"]
        ]
        parts: list[Any] = [
            as_text(head, "bold"),
            as_table(("topic", "records", "a second", "behind"), topics, box=False),
        ]
        if figures["dead_letters"]:
            letters = ", ".join(
                f"{count} {printable(reason)}" for reason, count in figures["dead_letters"].items()
            )
            parts.append(as_text(f"dead letters since the start: {letters}"))
        for one in figures["standing"]:
            remedy = f". To do: {one['remedy']}" if one["remedy"] else ""
            parts.append(as_text(f"{one['respect']}: {one['text']}{remedy}"))
        if versioned := figures["versioned_predictions"]:
            share = f"{figures['predictions_on_version_zero'] / versioned:.0%}"
            told = f"{share} of the {versioned} since the start were made before there was a model"
            parts.append(as_text(f"predictions on version 0: {told}"))
        if figures["clients"]:
            heading = f"RMSE of the last {WINDOW}, in the label's unit"
            clients = [
                (
                    printable(one["client"]),
                    str(one["predictions"]),
                    f"{one['per_second']:.1f}",
                    _error(one["rmse"]),
                )
                for one in figures["clients"]
            ]
            parts.append(as_table(("client", "predictions", "a second", heading), clients, box=False))
        return parts


def _number(value: object) -> float | None:
    """The number; None if it is none, or a whole number that no float holds."""
    try:
        return float(value) if isinstance(value, int | float) else None
    except OverflowError:
        return None


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.4g}"
