"""Runs a vertical federation on a table, in epochs or in one pass. Returns its figures, and a trace to
compute them again."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.measurement import Metric
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.encoding.wire import decode_array
from streamfl.simulation.baseline import mean_loss, running_mean_loss
from streamfl.simulation.parties import Delay
from streamfl.simulation.vertical.figures import (
    Course,
    TableOutcome,
    VerticalFigures,
    class_figures,
    number_figures,
)
from streamfl.simulation.vertical.members import HEAD
from streamfl.simulation.vertical.table import FOR_EVER, VerticalTable, epoch_orders
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY
from streamfl.vafl.metrics import CoordinatorMetrics, LabelMetrics, PartyMetrics
from streamfl.vafl.tools.federation import VerticalFederation

__all__ = ["VerticalOutcome", "adapted", "run_vertical"]

# Bound of the entities sent in all passes: the bus keeps each party's messages about them to the end.
MOST_SHOWN = 50_000_000

# Seconds, party, offset, entity, sequence, an upload's version or whether a reply asks, values.
_TracedMessage = tuple[float, int, int, int, int, int, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class VerticalOutcome(TableOutcome):
    """The figures of a federation's run. Final and absent figures are without noise on embeddings.

    noisy: final figures with the noise of [privacy], None without [privacy].
    """

    settings: VaflSettings
    noisy: VerticalFigures | None
    traffic: dict[str, int]
    staleness_mean: float
    staleness_largest: int
    requests: int
    outdated: int
    below_quorum: int
    mu: float | None
    mu_per_release: float | None
    label_mu: float | None

    def summary(self) -> dict[str, Any]:
        """Everything but arrays, ready for JSON. mu: the largest of a party; mu_all_parties: of all parties
        together."""
        totals = [one["mu"] for one in self.parties.values()] if self.mu is not None else []
        return {
            **self.measured,
            "noisy": None if self.noisy is None else self.noisy.measures,
            **self.compared,
            **self.baselines,
            "virtual_seconds": self.seconds,
            "uploads": self.traffic["uploads"],
            "uplink_bytes": self.traffic["upload_bytes"],
            "downlink_bytes": self.traffic["reply_bytes"],
            "requests": self.requests,
            "outdated_embeddings": self.outdated,
            "learnt_below_quorum": self.below_quorum,
            "forgotten_entities": self.forgotten,
            "staleness_mean": self.staleness_mean,
            "staleness_largest": self.staleness_largest,
            "mu": self.mu,
            "mu_all_parties": math.hypot(*totals) if totals else None,
            "mu_per_release": self.mu_per_release,
            "label_mu": self.label_mu,
            "parties": self.parties,
            "history": [asdict(one) for one in self.history],
        }


def run_vertical(
    settings: VaflSettings,
    table: VerticalTable,
    *,
    delays: Sequence[Delay] = (),
    network_delay: float = 0.0,
    coordinator_delay: float = 0.0,
    epochs: int | None = 1,
    label_delay: int = 0,
    arrivals: int | None = None,
    trace: bool = False,
    watch: Callable[[float], bool] = lambda share: False,
) -> VerticalOutcome:
    """Let the federation learn from the table's first entities.

    epochs: number of passes, each in an order of its own that is the same for all parties, with all labels
    there from the start. None: one pass in the table's order; an entity's label comes once the party that is
    farthest has sent ``label_delay`` more. In epochs a party without learning.in_flight sends
    learning.batch_size entities at a time. In one pass ``arrivals`` entities reach a party between two of its
    uploads, after it has taken the gradients of earlier ones; left out: batch_size, together with these
    gradients.
    network_delay, coordinator_delay: see :class:`VerticalFederation`.
    watch: gets the share that is done; if it returns True the run ends early.
    Raises ConfigurationError if memory is too small for the passes, DataError if the federation diverged.
    """
    count = table.learnt
    settings = adapted(settings, count, epochs, label_delay)
    inputs, labels = table.learning
    _check_labels(settings, labels)
    federation = VerticalFederation(
        settings,
        inputs,
        labels,
        delays=delays,
        network_delay=network_delay,
        coordinator_delay=coordinator_delay,
        arrivals=(arrivals or settings.batch_size) if epochs is None else None,
        answers_first=arrivals is not None,
    )
    with closing(federation):
        initial = federation.parameters if trace else {}
        orders = epoch_orders(settings.federation.seed, count, epochs)
        course = Course(lambda: federation.evaluate(*table.testing), watch)
        # The last labels come no faster than earlier ones.
        pace = min((delay.mean for delay in delays), default=1.0)
        _Labels(federation, course, orders, count if epochs is not None else 0, label_delay).run(pace)
        course.end("a smaller learning.learning_rate", federation.virtual_seconds)
        arrays = _trace(federation, table, orders, initial) if trace else {}
        return _outcome(federation, table, course, epochs is None, arrays)


class _Labels:
    """Writes the labels of the entities that parties have shown, as late as they have to come.

    known: how many labels are there from the start.
    """

    def __init__(
        self,
        federation: VerticalFederation,
        course: Course,
        orders: NDArray[np.int64],
        known: int,
        label_delay: int,
    ) -> None:
        self._federation = federation
        self._course = course
        self._orders = orders
        self._known = known
        self._delay = label_delay
        self._count = len(federation.labels)

    def run(self, pace: float) -> None:
        """Let parties show all entities. pace: virtual seconds between labels once all were shown."""
        federation, course = self._federation, self._course
        federation.write_labels(range(self._known))
        federation.replay([self._orders.ravel().tolist()] * len(federation.parties))
        # No entities follow the last ones, so no entities set off their labels: the loop below writes these.
        federation.run(watch=lambda: self._look() or course.interrupted)
        while self._known < self._count and not course.interrupted:
            self._write(min(self._count, self._known + (federation.arrivals or self._count)))
            federation.run(pace, watch=self._is_interrupted)
        if not course.interrupted:
            federation.run(watch=self._is_interrupted)

    def _look(self) -> bool:
        """Write what is due, and evaluate. Whether all entities were shown, and some have no label yet."""
        federation = self._federation
        names = federation.settings.federation.parties
        count = federation.figure
        shown = [count(one, PartyMetrics.samples) - count(one, PartyMetrics.waiting_samples) for one in names]
        self._write(min(self._count, int(max(shown)) - self._delay))
        self._course.passed(sum(shown) / (len(shown) * self._orders.size))
        return self._known < self._count and max(shown) == self._orders.size

    def _is_interrupted(self) -> bool:
        self._look()
        return self._course.interrupted

    def _write(self, due: int) -> None:
        if due > self._known:
            self._federation.write_labels(range(self._known, due))
            self._known = due


def _check_labels(settings: VaflSettings, labels: NDArray[np.float64]) -> None:
    if (
        settings.privacy.reply_noise
        and settings.learning.loss == "square"
        and not ((labels >= 0) & (labels <= 1)).all()
    ):
        raise DataError(
            "a label is outside labels.label_range, which privacy.reply_noise hides labels only within: in "
            f"units of it they are {labels.min():g} to {labels.max():g}, 0 to 1 is expected"
        )


def _outcome(
    federation: VerticalFederation,
    table: VerticalTable,
    course: Course,
    online: bool,
    trace: dict[str, NDArray[Any]],
) -> VerticalOutcome:
    settings, labels = federation.settings, table.learning[1]
    private = settings.privacy.embedding_norm is not None
    parties = {name: _party_figures(federation, name, private) for name in settings.federation.parties}
    mus = [one["mu"] for one in parties.values() if "mu" in one]
    released = [one["mu_per_release"] for one in parties.values() if "mu_per_release" in one]
    classes = 1 if settings.learning.loss == "square" else max(2, settings.outputs)

    def figure(metric: Metric) -> int:
        return int(federation.figure(HEAD, metric))

    return VerticalOutcome(
        settings=settings,
        entities=table.learnt,
        test_entities=table.test,
        seconds=federation.virtual_seconds,
        final=course.history[-1],
        noisy=federation.evaluate(*table.testing, noisy=True) if private else None,
        absent=federation.evaluate_absent(*table.testing),
        progressive=_progressive(federation, labels) if online else None,
        constant_loss=mean_loss(table.testing[1], classes),
        running_mean_loss=running_mean_loss(labels, classes) if online else None,
        history=course.history,
        parties=parties,
        traffic=federation.traffic(),
        staleness_mean=federation.figure(HEAD, CoordinatorMetrics.staleness_steps)
        / max(figure(CoordinatorMetrics.aged_embeddings), 1),
        staleness_largest=figure(CoordinatorMetrics.staleness_largest),
        requests=figure(CoordinatorMetrics.requests),
        outdated=figure(CoordinatorMetrics.outdated_embeddings),
        below_quorum=figure(CoordinatorMetrics.learnt_below_quorum),
        forgotten=federation.by_reason(CoordinatorMetrics.forgotten_entities, [HEAD]),
        mu=max(mus, default=None),
        mu_per_release=max(released, default=None),
        label_mu=federation.figure(HEAD, LabelMetrics.label_mu) if settings.privacy.reply_noise else None,
        trace=trace,
    )


def adapted(settings: VaflSettings, entities: int, epochs: int | None, label_delay: int) -> VaflSettings:
    """Settings for a run. In epochs all entities stay remembered, and a party without learning.in_flight
    sends one mini-batch at a time."""
    if epochs is not None and epochs * entities > MOST_SHOWN:
        most = MOST_SHOWN // entities
        told = f"with {entities:,} entities to learn from at most {most:,} passes can be simulated"
        raise ConfigurationError(f"--epochs {epochs}: {told}")
    learning, alignment = settings.learning, settings.alignment
    if learning.in_flight is not None and learning.in_flight < settings.least_in_flight:
        raise ConfigurationError(
            f"learning.in_flight = {learning.in_flight}: a party steps on learning.batch_size = "
            f"{settings.batch_size} gradients and would wait for ever"
        )
    if epochs is None:
        if learning.in_flight is not None and learning.in_flight <= label_delay:
            raise ConfigurationError(
                f"learning.in_flight = {learning.in_flight}: with labels {label_delay} entities late every "
                "party would wait for labels that come only after it has shown more; leave it out, or choose "
                "one above the delay"
            )
        return settings
    learning = learning.model_copy(update={"in_flight": learning.in_flight or settings.batch_size})
    kept = {"keep": True, "limit": max(alignment.limit, entities), "expiry_seconds": FOR_EVER}
    return settings.model_copy(update={"learning": learning, "alignment": alignment.model_copy(update=kept)})


def _party_figures(federation: VerticalFederation, name: str, private: bool) -> dict[str, float]:
    counted = (
        PartyMetrics.embeddings,
        PartyMetrics.embeddings_again,
        PartyMetrics.gradients,
        PartyMetrics.steps,
    )
    figures = {one.name: int(federation.figure(name, one)) for one in counted}
    if not private:
        return dict(figures)
    measured = {one.name for one in federation.workers[name].measure()}
    mus = (PartyMetrics.privacy_mu, PartyMetrics.privacy_mu_per_release, PartyMetrics.privacy_epsilon)
    private_figures = {
        one.name.removeprefix("privacy_"): federation.figure(name, one) for one in mus if one.name in measured
    }
    return {
        **figures,
        "withheld": int(federation.figure(name, PartyMetrics.withheld_embeddings)),
        **private_figures,
    }


def _progressive(federation: VerticalFederation, labels: NDArray[np.float64]) -> VerticalFigures:
    """Figures of each entity's last prediction; entities without one are left out."""
    entities, predicted = federation.last_predictions(lambda one: one.prediction)
    own, seconds, loss = labels[entities], federation.virtual_seconds, federation.coordinator.given.loss
    if not entities:
        return VerticalFigures(seconds)
    if loss.name == "square":
        return number_figures(seconds, predicted, own)
    by_class = predicted if loss.name == "softmax" else np.column_stack([1 - predicted, predicted])
    chosen = by_class[np.arange(len(own)), own.astype(np.intp)]
    value = float(-np.log(np.maximum(chosen, np.finfo(float).tiny)).mean())
    return class_figures(
        seconds, by_class.argmax(axis=1), own, value, predicted if loss.name == "logistic" else None
    )


def _trace(
    federation: VerticalFederation,
    table: VerticalTable,
    orders: NDArray[np.int64],
    initial: dict[str, NDArray[Any]],
) -> dict[str, NDArray[Any]]:
    """All inputs and all messages of a run, as arrays.

    Uploads are in the order in which the coordinator took them. label_before: uploads that it had taken when
    the label came. Replies are in each party's order. initial/… and final/…: parameters by party, the head's
    under the coordinator's kind."""
    begin, size = federation.begin, federation.settings.federation.embedding_size
    columns: dict[str, NDArray[Any]] = {
        "labels": table.labels,
        "entities": np.array(table.learnt),
        "orders": orders,
        "label_entity": np.array([entity for entity, _ in federation.labels_written], dtype=np.int64),
        "label_before": np.array([before for _, before in federation.labels_written], dtype=np.int64),
    }
    uploads, replies = _messages(federation)
    for kind, said, third in (("upload", uploads, "version"), ("reply", replies, "asks")):
        columns[f"{kind}_seconds"] = np.array([one[0] - begin for one in said])
        columns[f"{kind}_party"] = np.array([one[1] for one in said], dtype=np.int64)
        columns[f"{kind}_entity"] = np.array([one[3] for one in said], dtype=np.int64)
        columns[f"{kind}_sequence"] = np.array([one[4] for one in said], dtype=np.int64)
        columns[f"{kind}_{third}"] = np.array([one[5] for one in said])
        columns[f"{kind}_values"] = np.array([one[6] for one in said]).reshape(len(said), size)
    for party, own in zip(federation.parties, table.inputs, strict=True):
        columns[f"inputs/{party.name}"] = own
    for when, parameters in (("initial", initial), ("final", federation.parameters)):
        columns.update({f"{when}/{member}": values for member, values in parameters.items()})
    return columns


def _messages(federation: VerticalFederation) -> tuple[list[_TracedMessage], list[_TracedMessage]]:
    """All uploads, as the coordinator took them, and all replies, party by party."""
    name, size = federation.settings.federation.name, federation.settings.federation.embedding_size
    dtype = federation.coordinator.settings.dtype
    uploads: list[_TracedMessage] = []
    replies: list[_TracedMessage] = []
    for number, party in enumerate(federation.parties):
        for record in federation.bus.read(f"{name}.{party.name}.embeddings"):
            one = EMBEDDING.read(record)
            values = decode_array(one.values, dtype, (size,), "embedding")
            uploads.append(
                (
                    record.timestamp,
                    number,
                    record.offset,
                    int(one.entity),
                    one.sequence,
                    one.parameters_version,
                    values,
                )
            )
        for record in federation.bus.read(f"{name}.{party.name}.gradients"):
            answer = REPLY.read(record)
            asks = not answer.gradient
            gradient = (
                np.zeros(size, dtype) if asks else decode_array(answer.gradient, dtype, (size,), "gradient")
            )
            replies.append(
                (record.timestamp, number, record.offset, int(answer.entity), answer.sequence, asks, gradient)
            )
    # At the same time the coordinator takes uploads in the parties' order.
    uploads.sort(key=lambda one: one[:3])
    return uploads, replies
