"""The role: a state machine without clock, socket or thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from running_mean.messages import Mean, Prediction, decode_mean, encode_mean, encode_prediction
from running_mean.metrics import MeanMetrics
from streamfl.contract.role import (
    Measurement,
    OperatorNotice,
    PeerError,
    Received,
    Rejection,
    Send,
    StateChange,
)
from streamfl.records.samples import Sample

__all__ = ["RunningMean"]


class RunningMean:
    """Predicts each sample as the mean of its client's labels so far, then takes its label.

    clients: the most clients of one partition.
    original: a prediction in the label's own unit.
    """

    wake_at: float | None = None
    full: Collection[int] = ()
    waiting: Mapping[str, int] = {}
    prompt = False
    trouble: str | None = None

    def __init__(self, clients: int, original: Callable[[float], float]) -> None:
        self._most = clients
        self._original = original
        self._means: dict[int, dict[str, Mean]] = {}
        self._changes: dict[tuple[int, str], Mean | None] = {}
        self._metrics = MeanMetrics()
        self._squared_errors = 0.0

    def open(self, partition: int) -> None:
        self._means[partition] = {}

    def restore(self, change: StateChange) -> None:
        means = self._means[change.partition]
        try:
            client = change.key.decode()
        except UnicodeDecodeError:
            raise PeerError("malformed", f"a client's name that is no text: {change.key!r}") from None
        if change.value is None:
            means.pop(client, None)
        else:
            means[client] = decode_mean(change.value)

    def close(self, partition: int) -> None:
        del self._means[partition]
        self._changes = {place: mean for place, mean in self._changes.items() if place[0] != partition}

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        replies: list[Send | Rejection] = []
        for received in batch:
            try:
                replies.append(self._predict(received.partition, received.message))
            except PeerError as error:
                replies.append(Rejection(received, error))
        return replies

    def changed_state(self) -> Iterable[StateChange]:
        changes, self._changes = self._changes, {}
        for (partition, client), mean in changes.items():
            yield StateChange(
                "state", partition, client.encode(), None if mean is None else encode_mean(mean)
            )

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        known = [partition for partition, means in self._means.items() if means.pop(name, None) is not None]
        self._changes.update({(partition, name): None for partition in known})
        return bool(known)

    def measure(self) -> Iterable[Measurement]:
        yield from self._metrics.measure_counts()
        yield MeanMetrics.clients(sum(map(len, self._means.values())))
        scaled = math.sqrt(self._squared_errors / self._metrics.labels) if self._metrics.labels else 0.0
        yield MeanMetrics.rmse((self._original(1.0) - self._original(0.0)) * scaled)

    def _predict(self, partition: int, sample: Sample) -> Send:
        means = self._means[partition]
        mean = means.get(sample.client)
        if mean is None and len(means) >= self._most:
            raise PeerError(
                "unknown_client", f"{len(means)} clients are known already: raise federation.clients"
            )
        guess = 0.5 if mean is None else mean.mean
        self._metrics.predictions += 1
        if sample.label is not None:
            self._metrics.labels += 1
            self._squared_errors += (guess - sample.label) ** 2
            means[sample.client] = self._changes[partition, sample.client] = (mean or Mean()).after(
                sample.label
            )
        prediction = Prediction(sample.client, sample.id, self._original(guess))
        return Send("predictions", sample.client.encode(), encode_prediction(prediction))
