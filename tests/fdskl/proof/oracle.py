"""Computes, with the secrets of all parties, every party's part of every feature, and the model at each of
its versions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import Any

import msgspec
import numpy as np
from fdskl.proof.scenario import FdsklScenario
from numpy.typing import NDArray

from streamfl.fdskl.sums.frequencies import Frequencies, SpectralDensity
from streamfl.runtime.bus import Bus
from streamfl.testing.faults.observed_messages import latest

__all__ = ["Oracle", "RememberedModel", "models_of"]

# Rounding of a phase, in radians, if sums are made in another order and frequencies are as large as a
# Laplacian kernel's.
ROUNDING = 1e-7

Columns = Sequence[float] | None


@dataclass(frozen=True)
class RememberedModel:
    """The remembered state of a model: version, kept features from ``first`` on, coefficients (kept,)."""

    version: int
    first: int
    cursor: int
    bandwidth: float
    dropped: int
    alphas: NDArray[np.float64]

    @property
    def next(self) -> int:
        return self.first + len(self.alphas)


def models_of(bus: Bus, chosen: FdsklScenario) -> dict[int, dict[int, RememberedModel]]:
    """By partition and version, the models that all active parties remembered, with their coefficients
    together."""
    found = [_models_of(bus, chosen, party) for party in chosen.settings.federation.active_parties]
    return {
        partition: {
            version: replace(model, alphas=np.sum([own[partition][version].alphas for own in found], axis=0))
            for version, model in first.items()
            if all(version in own[partition] for own in found)
        }
        for partition, first in found[0].items()
    }


def _models_of(bus: Bus, chosen: FdsklScenario, party: str) -> dict[int, dict[int, RememberedModel]]:
    """The models that one active party remembered: the last version of each commit."""
    found: dict[int, dict[int, RememberedModel]] = {partition: {} for partition in range(chosen.partitions)}
    size = chosen.settings.learning.block_features
    alphas: dict[int, dict[int, NDArray[np.float64]]] = {
        partition: {} for partition in range(chosen.partitions)
    }
    records = sorted(bus.read(f"{chosen.name}.{party}.state"), key=lambda one: (one.partition, one.offset))
    for (partition, _), group in groupby(records, key=lambda one: (one.partition, one.timestamp)):
        content = None
        for record in group:
            kind, _, name = (record.key or b"").partition(b"/")
            if kind == b"alphas":
                if record.value is None:
                    alphas[partition].pop(int(name), None)
                else:
                    alphas[partition][int(name)] = np.frombuffer(record.value)
            elif record.key == b"model":
                content = record.value
        if content is not None:
            version, first, last, scale, cursor, bandwidth, dropped = msgspec.msgpack.decode(content)
            # 0 where another party has the coefficient.
            together = np.zeros(last - first)
            for number, own in alphas[partition].items():
                together[number * size - first : (number + 1) * size - first] = own * scale
            found[partition][version] = RememberedModel(version, first, cursor, bandwidth, dropped, together)
    return found


class Oracle:
    """Computes features with the secrets and the standardisation of all parties, from their state."""

    def __init__(self, bus: Bus, chosen: FdsklScenario) -> None:
        self._chosen = chosen
        self._remembered = {party: latest(bus, f"{chosen.name}.{party}.state") for party in chosen.parties}
        self._drawn: dict[tuple[int, str, float], Frequencies] = {}

    def features(
        self, partition: int, entity: str, model: RememberedModel, first: int, count: int
    ) -> Iterator[tuple[tuple[bool, ...], bool, NDArray[np.float64]]]:
        """phi_i(x) = sqrt(2) cos(omega_i' x + b_i) for features from ``first`` on, (count,), for all columns
        there may have been.

        Yields before them which parties had columns, and whether these are all the latest.
        """
        parts: list[list[tuple[bool, bool, NDArray[np.float64]]]] = []
        for party in self._chosen.parties:
            given: Sequence[Columns] = [None, *self._chosen.columns.get((party, entity), [])]
            if self._chosen.synchronous:
                given = given[-1:]
            last = len(given) - 1
            parts.append(
                [
                    (
                        columns is not None,
                        number == last,
                        self._phases(partition, party, columns, model.bandwidth, first, count),
                    )
                    for number, columns in enumerate(given)
                ]
            )
        for choice in product(*parts):
            total = np.sum([phases for _, _, phases in choice], axis=0)
            yield (
                tuple(known for known, _, _ in choice),
                all(last for _, last, _ in choice),
                math.sqrt(2) * np.cos(total),
            )

    def tolerance(self, model: RememberedModel) -> float:
        """|df| <= sqrt(2) q pi 2^-32 sum |alpha|, and rounding."""
        bits = min(52, self._chosen.settings.aggregation.circle_bits)
        of_circle = len(self._chosen.parties) * math.pi * 2.0**-bits
        return float(math.sqrt(2) * (of_circle + ROUNDING) * np.abs(model.alphas).sum() + 1e-9)

    def _phases(
        self, partition: int, party: str, columns: Columns, bandwidth: float, first: int, count: int
    ) -> NDArray[np.float64]:
        place = partition, party, bandwidth
        if place not in self._drawn:
            self._drawn[place] = self._frequencies(partition, party, bandwidth)
        rows = (
            np.zeros((1, self._chosen.dimensions[party]))
            if columns is None
            else self._standardised(partition, party, columns)
        )
        return np.asarray(self._drawn[place].partial_phases(rows, [(first, count)])[0])

    def _frequencies(self, partition: int, party: str, bandwidth: float) -> Frequencies:
        settings, parties = self._chosen.settings, list(self._chosen.parties)
        learning = settings.learning
        density = SpectralDensity(learning.kernel, bandwidth, learning.matern_nu, learning.columns_share)
        names = [f"{party}/x/{number}" for number in range(self._chosen.dimensions[party])]
        secret = msgspec.msgpack.decode(self._remembered[party][partition, b"secret"])[0]
        shared = settings.aggregation.frequencies == "shared"
        root = settings.federation.root
        return Frequencies(
            density,
            names,
            settings.federation.seed,
            None if shared else secret,
            len(parties),
            parties.index(party),
            root,
        )

    def _standardised(self, partition: int, party: str, columns: Sequence[float]) -> NDArray[np.float64]:
        wanted = self._chosen.settings.standardisation
        row = np.array([columns], np.float64)
        if not wanted.columns:
            return row
        content: Any = msgspec.msgpack.decode(self._remembered[party][partition, b"columns"])
        moments = np.frombuffer(content[1]).reshape(5, 2, -1)
        own = [
            _scaled(float(number), moments[:, :, place], wanted.transform)
            for place, number in enumerate(row[0])
        ]
        return np.array([own])


def _scaled(number: float, moments: NDArray[np.float64], transform: str) -> float:
    """A number of one column; moments: (5, 2)."""
    shapes: list[tuple[float, float, float, float]] = []
    for count, mean, second, third, fourth in moments.T.tolist():
        variance = second / count if count else 0.0
        usual = variance > 1e-100
        skewness, kurtosis = (
            (third / count / variance**1.5, fourth / count / variance**2) if usual else (0.0, 3.0)
        )
        shapes.append((mean, math.sqrt(variance), skewness, kurtosis))
    heavy = transform != "none" and shapes[0][3] > 6
    mean, deviation, skewness, kurtosis = shapes[heavy]
    if transform != "none" and kurtosis - 1 - skewness**2 < 1e-6 * kurtosis:
        deviation = max(deviation, 0.2 * math.sqrt(4 + skewness**2) * deviation)
    scaled = ((math.asinh(number) if heavy else number) - mean) / (deviation or 1.0)
    limit = 5.0 if deviation else 1.0
    return max(-limit, min(limit, scaled))
