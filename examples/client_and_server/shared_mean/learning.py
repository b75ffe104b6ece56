"""The client predicts each sample and tells the server what its labels are like. The server publishes the
mean of the clients' means."""

import math
from collections.abc import Collection, Iterable, Sequence

from shared_mean.config import SharedMeanSettings
from shared_mean.messages import MODEL, UPDATE, Mean, Model, Prediction, Update, encode_prediction
from streamfl.contract.measurement import counter, gauge
from streamfl.contract.role import Measurement, Send
from streamfl.encoding.wire import VERSION
from streamfl.records.samples import Sample, SampleReader
from streamfl.roles.client_role import ClientCounts, ClientRole


class ClientMetrics(ClientCounts):
    """Metrics of a client."""

    predictions = counter("Samples predicted.", headline=True)
    squared_errors = counter("Squared errors, of labels on the scale from 0 to 1.")


class Client(ClientRole[Sample, Mean]):
    """Predicts (n m + k s) / (n + k): the client's own mean m of n labels, and the shared mean s, which
    counts as k labels."""

    def __init__(self, settings: SharedMeanSettings) -> None:
        self._metrics = ClientMetrics()
        super().__init__(Mean, settings.federation.clients, self._metrics, {"model": self._take_model})
        self._original = SampleReader(settings.samples).original
        self._weight = settings.shrinkage.labels
        self._model = Model(VERSION, 0, 0.5)

    def _take_model(self, model: Model) -> None:
        self._model = model

    def take(self, sample: Sample, value: Mean | None) -> tuple[Sequence[Send], Mean | None]:
        own = value or Mean(0, 0.0)
        guess = (own.count * own.mean + self._weight * self._model.mean) / (own.count + self._weight)
        self._metrics.predictions += 1
        prediction = Prediction(sample.client, sample.id, self._original(guess), self._model.labels)
        answer = Send("predictions", sample.client.encode(), encode_prediction(prediction))
        if sample.label is None:
            return [answer], None
        self._metrics.squared_errors += (guess - sample.label) ** 2
        own = Mean(own.count + 1, own.mean + (sample.label - own.mean) / (own.count + 1))
        update = Update(VERSION, sample.client, own.count, own.mean)
        return [answer, Send("updates", answer.key, UPDATE.encode(update), partition=0)], own


class ServerMetrics(ClientCounts):
    """Metrics of the server."""

    updates = counter("Updates taken.", headline=True)
    mean = gauge("The shared mean, on the scale from 0 to 1.")


class Server(ClientRole[Update, Mean]):
    """Remembers what each client told last."""

    def __init__(self, settings: SharedMeanSettings) -> None:
        self._metrics = ServerMetrics()
        super().__init__(Mean, settings.federation.clients, self._metrics)

    def take(self, update: Update, value: Mean | None) -> tuple[Sequence[Send], Mean | None]:
        if value is not None and update.count <= value.count:
            # It came before, or one after it did.
            return [], None
        self._metrics.updates += 1
        told = Mean(update.count, update.mean)
        means = (self.values | {update.client: told}).values()
        model = Model(VERSION, sum(one.count for one in means), mean_of(means))
        return [Send("model", b"mean", MODEL.encode(model))], told

    def measure(self) -> Iterable[Measurement]:
        yield from super().measure()
        yield ServerMetrics.mean(mean_of(self.values.values()))


def mean_of(means: Collection[Mean]) -> float:
    """The mean of the clients' means; that of the scale without any."""
    return math.fsum(one.mean for one in means) / len(means) if means else 0.5
