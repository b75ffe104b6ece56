"""Compares every line of a dashboard with its true value.

A line is a panel's query, identified by the panel's title and the line's legend. A truth is a single value,
or one for each series, by the joined values of the legend's labels. A series without a truth has to be 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from prometheus_client.parser import text_string_to_metric_families

from streamfl.monitoring.dashboard import Dashboard, Query

__all__ = ["Asked", "Figures", "Line", "Truth", "quantile", "wrong_lines"]

Line: TypeAlias = tuple[str, str]
Truth: TypeAlias = Any
Asked: TypeAlias = Callable[[str], Sequence[tuple[Mapping[str, str], float]]]

# Prometheus extrapolates to the ends of the time range, by a lot if a busy machine scrapes late.
TOLERANCE = 0.3
PLACE = re.compile(r"\{\{(\w+)\}\}")


def wrong_lines(
    boards: Iterable[Dashboard],
    asked: Asked,
    truths: Mapping[Line, Truth],
    *,
    seen: Iterable[Line] = (),
    empty: Iterable[Line] = (),
    members: Mapping[str, str] | None = None,
) -> list[str]:
    """Errors of the dashboards' lines: a wrong value, a line without a truth, or a truth without a line.

    seen: lines that only have to have numbers.
    empty: lines that have none here.
    members: by instance, its name.
    """
    lines = {
        (panel.title, query.legend): query
        for board in boards
        for panel in board.panels
        for query in panel.queries
    }
    told = [*truths, *seen, *empty]
    wrong = [f"{line}: no line" for line in told if line not in lines]
    wrong += [f"{line}: told of twice" for line in {*told} if told.count(line) > 1]
    for board in boards:
        for panel in board.panels:
            for query in panel.queries:
                line = panel.title, query.legend
                found = _shown(query, asked, members or {})
                if line in truths:
                    wrong += _differences(line, found, truths[line])
                elif line in empty:
                    wrong += [f"{line}: not empty: {found}"] if found else []
                elif line not in seen:
                    wrong.append(f"{line}: no truth, shows {found}")
                elif not found or any(map(math.isnan, found.values())):
                    wrong.append(f"{line}: empty, or no numbers: {found}")
    return wrong


def _shown(query: Query, asked: Asked, members: Mapping[str, str]) -> dict[str, float]:
    """The series of a line, by the joined values of the legend's labels."""
    found: dict[str, float] = {}
    for labels, value in asked(query.expression):
        named = {**labels, "instance": members.get(labels.get("instance", ""), labels.get("instance", ""))}
        name = " ".join(named.get(label, "") for label in PLACE.findall(query.legend))
        assert name not in found, f"{query.legend}: two series have one name: {name!r}"
        found[name] = value
    return found


def _differences(line: Line, found: Mapping[str, float], truth: Truth) -> list[str]:
    own: Mapping[str, Any] = truth if isinstance(truth, Mapping) else {"": truth}
    if not found:
        return [f"{line}: empty, should be {truth}"]
    wrong = [f"{line}: {name!r} is not there: {dict(found)}" for name in own if name not in found]
    for name, value in found.items():
        right = own.get(name, 0.0)
        if isinstance(right, float | int):
            right = pytest.approx(right, rel=TOLERANCE, abs=0)
        wrong += [f"{line}: {name!r} shows {value}, should be {right}"] if value != right else []
    return wrong


@dataclass
class Figures:
    """The workers' /metrics at one time.

    texts: by worker.
    at: the time.
    """

    texts: Mapping[str, str]
    at: float
    _read: dict[str, list[Any]] = field(default_factory=dict)

    def of(self, name: str, *workers: str, **labels: str) -> float:
        """The sum of the series of this name and these labels, over these workers or all."""
        return sum(
            one.value
            for one in self.samples(*workers)
            if one.name == name and labels.items() <= one.labels.items()
        )

    def by(self, label: str, name: str, *workers: str) -> dict[str, float]:
        """The same by a label's values."""
        found: dict[str, float] = {}
        for one in self.samples(*workers):
            if one.name == name:
                found[one.labels[label]] = found.get(one.labels[label], 0.0) + one.value
        return found

    def samples(self, *workers: str) -> Iterable[Any]:
        """All samples of these workers, or of all."""
        for worker in workers or self.texts:
            if worker not in self._read:
                families = text_string_to_metric_families(self.texts[worker])
                self._read[worker] = [sample for family in families for sample in family.samples]
            yield from self._read[worker]


def quantile(share: float, before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """A quantile of the observations between two scrapes, from counts by upper bound, interpolated within a
    bucket."""
    bounds = sorted(after, key=float)
    counts = [after[bound] - before.get(bound, 0.0) for bound in bounds]
    wanted = share * counts[-1]
    place = next(number for number, count in enumerate(counts) if count >= wanted)
    if math.isinf(float(bounds[place])):
        return float(bounds[-2])
    below = float(bounds[place - 1]) if place else 0.0
    fewer = counts[place - 1] if place else 0.0
    return below + (float(bounds[place]) - below) * (wanted - fewer) / (counts[place] - fewer)
