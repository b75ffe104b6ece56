"""Streams through the federated forest, test then learn, with late labels, lags, and a second forest after an
alarm."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.forest.cells import Stream
from benchmarks.forest.liars import Forger, LateForger
from benchmarks.forest.reference import Forest
from benchmarks.forest.rules import Rules

__all__ = ["Alarm", "Grown", "grow", "losses"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
QUANTILE = 0.9


@dataclass
class Alarm:
    """Page and Hinkley's test on the clients' mean loss. One client counts once, and no more than the client
    at nine tenths.

    The loss is compared with its mean so far: the alarm is raised when the sum of what exceeds mean + delta
    deviations has risen by ``height`` deviations above its lowest value. A deviation is at least a quarter of
    the mean, and the
    first 30 rounds only teach it: where errors hardly vary, a few larger ones are no drift.
    """

    delta: float = 0.25
    height: float = 20.0
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    total: float = 0.0
    least: float = 0.0

    def rises(self, losses: Floats) -> bool:
        """Take one round's losses, one number a client; True if they have risen for good."""
        value = _fair_mean(losses)
        self.count += 1
        step = value - self.mean
        self.mean += step / self.count
        self.squares += step * (value - self.mean)
        if self.count < 30:
            return False
        deviation = max((self.squares / self.count) ** 0.5, self.mean / 4)
        self.total += value - self.mean - self.delta * deviation
        self.least = min(self.least, self.total)
        return bool(self.total - self.least > self.height * deviation)


def _fair_mean(losses: Floats) -> float:
    """Of the clients' losses, none above that of the client at nine tenths of all: what one says, or a few,
    does not decide."""
    return float(np.minimum(losses, np.quantile(losses, QUANTILE, method="lower")).mean())


@dataclass
class Grown:
    """predictions (2, K, T): of two forests, NaN where there is none. forests: all that were begun. alarms:
    their rounds."""

    predictions: Floats
    forests: list[Forest]
    alarms: list[int]


def losses(predictions: Floats, labels: Floats, loss: str) -> Floats:
    """Squared errors, or with "logistic" log losses of probabilities kept within [.001, .999]."""
    if loss == "square":
        return np.asarray(np.square(predictions - labels))
    kept = np.clip(predictions, 1e-3, 1 - 1e-3)
    return np.asarray(-np.log(np.where(labels > 0.5, kept, 1 - kept)))


def grow(
    stream: Stream,
    rules: Rules,
    seed: int,
    default: Floats | None = None,
    late: Ints | None = None,
    up: Ints | int = 0,
    down: Ints | int = 0,
    alarm: bool = True,
    kept_codes: bool = False,
) -> Grown:
    """Grow a forest over a stream.

    default (T, K): what the default learner says without a forest, one more input; left out: no such input.
    late, up, down: (K, T) rounds; late left out: the stream's. A label that is 0 late is known after its
    round. kept_codes: clients keep samples as 8-bit codes over each feature's range.
    """
    if stream.loss == "logistic":
        rules = replace(rules, prior=1.0)
    clients, rounds = stream.labels.shape
    present = np.isfinite(stream.labels)
    delays = np.full(present.shape, stream.late) if late is None else late
    up, down = np.broadcast_to(up, present.shape), np.broadcast_to(down, present.shape)
    columns = stream.inputs.shape[2]
    inputs = np.zeros((clients, rounds, columns + 3 + (default is not None)), np.float32)
    inputs[:, :, :columns] = stream.inputs
    if default is not None:
        inputs[:, :, -1] = np.nan_to_num(default.T)
    kept = _coded(inputs, columns) if kept_codes else None
    make = {"": Forest, "items": Forger, "late items": LateForger}[stream.forger]
    came: list[list[tuple[int, int]]] = [[] for _ in range(rounds)]
    for client, number in np.argwhere(present).tolist():
        if (when := number + int(delays[client, number])) < rounds:
            came[when].append((client, number))
    forests: list[Forest] = [make(inputs, stream.told, rules, seed, up, down, kept)]
    living: dict[int, Forest] = {0: forests[0]}  # by column of the predictions
    found, alarms, watch, better = np.full((2, clients, rounds), np.nan), [], Alarm(), 0
    recent, last, begun = np.zeros(2), np.zeros((clients, 2)), 0
    sums, counts = np.zeros(clients), np.zeros(clients)
    labels_seen = last_alarm = 0
    for t in range(rounds):
        here = np.flatnonzero(present[:, t])
        mean = sums / np.maximum(counts, 1)
        lags = np.where(counts[:, None] > np.arange(2), last, mean[:, None])
        inputs[here, t, columns : columns + 3] = np.column_stack([lags, mean])[here]
        if kept is not None:
            kept[here, t, columns : columns + 3] = inputs[here, t, columns : columns + 3]
        for column, forest in living.items():
            found[column, here, t] = forest.predict(t, here)
        speaking = np.array(came[t], np.int64).reshape(-1, 2)
        who, which = speaking[:, 0], speaking[:, 1]
        told = stream.told[who, which]
        # A label that is known enters the client's lags; two in one round enter in order.
        for client, value in zip(who.tolist(), told.tolist(), strict=True):
            last[client] = value, last[client, 0]
            sums[client] += value
            counts[client] += 1
        labels_seen += len(who)
        for place, (column, forest) in enumerate(
            sorted(living.items(), key=lambda one: forests.index(one[1]))
        ):
            share = 1.0 if len(living) == 1 else (0.75 if place else 0.25)
            new = which >= (begun if place else 0)
            spare = np.full(clients, int(share * rules.item_bytes))
            forest.learn(t, who[new], which[new], spare)
            said = found[column, who, which]
            if np.isfinite(said).any():
                lost = losses(said, told, stream.loss)
                recent[column] = 0.97 * recent[column] + _fair_mean(lost[np.isfinite(lost)])
                if place == 0:
                    lost_first = lost
        if not alarm or not len(who) or not np.isfinite(found[next(iter(living)), who, which]).any():
            continue
        if len(living) == 1:
            risen = watch.rises(lost_first[np.isfinite(lost_first)])
            if risen and labels_seen - last_alarm >= 20 * clients:
                alarms.append(t)
                column = 1 - next(iter(living))
                forests.append(make(inputs, stream.told, rules, seed + 1000 * len(forests), up, down, kept))
                living[column], begun, last_alarm, better = forests[-1], t + 1, labels_seen, 0
                recent[:] = 0
            continue
        young = next(column for column, forest in living.items() if forest is forests[-1])
        better = better + len(who) if recent[young] < recent[1 - young] else 0
        if better >= 10 * clients or labels_seen - last_alarm >= 60 * clients:
            del living[1 - young if better >= 10 * clients else young]
            watch = Alarm()
    return Grown(found, forests, alarms)


def _coded(inputs: NDArray[np.float32], columns: int) -> NDArray[np.float32]:
    """Inputs in 8 bits over each column's range; the last columns, which the client knows of itself, stay as
    they are."""
    coded = inputs.copy()
    low, high = inputs[:, :, :columns].min((0, 1)), inputs[:, :, :columns].max((0, 1))
    width = np.maximum(high - low, 1e-12)
    coded[:, :, :columns] = np.round((inputs[:, :, :columns] - low) / width * 255) / 255 * width + low
    return coded
