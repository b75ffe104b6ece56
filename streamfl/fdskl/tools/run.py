"""Runs a federation on a table, in epochs or in one pass. Returns the results, and the arrays to compute them
again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.measurement import Metric
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.losses import loss_named
from streamfl.fdskl.learning.schedule import ends_of_iterations
from streamfl.fdskl.metrics import ActiveMetrics, PartyMetrics
from streamfl.fdskl.sums.topology import hops
from streamfl.fdskl.tools.federation import KernelFederation
from streamfl.fdskl.tools.trace import trace_of
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.baseline import running_mean_loss, running_means
from streamfl.simulation.vertical.figures import (
    Course,
    TableOutcome,
    VerticalFigures,
    class_figures,
    number_figures,
)
from streamfl.simulation.vertical.table import FOR_EVER, VerticalTable, epoch_orders

__all__ = ["KernelOutcome", "figures_of", "run_kernel", "shown_order"]

PARTY_FIGURES = (
    PartyMetrics.samples,
    PartyMetrics.rounds,
    PartyMetrics.sums_sent,
    PartyMetrics.sums_sent_bytes,
    PartyMetrics.revisions_sent,
    PartyMetrics.imputed,
)
DIVERGED = "a smaller learning.step or a larger learning.regularisation"


@dataclass(frozen=True, kw_only=True)
class KernelOutcome(TableOutcome):
    """The results of a run.

    iterations: of learning.
    features, features_dropped: how many are kept, and were dropped.
    traffic: by kind, messages between parties and their bytes.
    abandoned: rounds given up, by reason.
    bandwidth: of the kernel, None before it is known.
    regret: summed loss of the progressive predictions, minus the smaller loss of the final model and the best
    constant; None in epochs, or if the run was interrupted.
    """

    settings: FdsklSettings
    regret: float | None
    iterations: int
    features: int
    features_dropped: int
    rounds: int
    traffic: dict[str, dict[str, int]]
    abandoned: dict[str, int]
    rows_dropped: int
    bandwidth: float | None

    def summary(self) -> dict[str, Any]:
        """Everything but arrays, ready for JSON. messages, bytes: between parties. hops: of one sum."""
        federation, aggregation = self.settings.federation, self.settings.aggregation
        return {
            **self.measured,
            **self.baselines,
            **self.compared,
            "regret": self.regret,
            "virtual_seconds": self.seconds,
            "active": federation.active_party if len(federation.actives) == 1 else federation.active_parties,
            "iterations": self.iterations,
            "features": self.features,
            "features_dropped": self.features_dropped,
            "bandwidth": self.bandwidth,
            "rounds": self.rounds,
            "messages": sum(one["messages"] for one in self.traffic.values()),
            "bytes": sum(one["bytes"] for one in self.traffic.values()),
            "traffic": self.traffic,
            "hops": hops(aggregation.topology, len(federation.parties)),
            "abandoned": sum(self.abandoned.values()),
            "abandoned_rounds": self.abandoned,
            "forgotten_entities": self.forgotten,
            "rows_dropped": self.rows_dropped,
            "parties": self.parties,
            "history": [asdict(one) for one in self.history],
        }


def run_kernel(
    settings: FdsklSettings,
    table: VerticalTable,
    columns: Sequence[Sequence[str]],
    *,
    epochs: int | None = 1,
    label_delay: int = 0,
    network_delay: float = 0.0,
    trace: bool = False,
    overheard: Callable[[Outgoing], None] | None = None,
    watch: Callable[[float], bool] = lambda share: False,
) -> KernelOutcome:
    """Let the federation learn from the table's first entities.

    columns: by party, the names of its columns.
    epochs: number of passes, each in an order of its own. All columns are there from the beginning, and
    labels come for one iteration after the other. In a later pass an entity that has left the window is shown
    again. None: one pass in the table's order; an entity's label comes after ``label_delay`` more entities.
    network_delay: virtual seconds of a message.
    overheard: called with each message between parties.
    watch: called with the share that is done. If it returns True the run ends with what is there.
    DataError if the federation diverged.
    """
    settings = _adapted(settings, table.learnt, epochs)
    inputs, labels = table.learning
    federation = KernelFederation(
        settings, inputs, columns, labels, network_delay=network_delay, overheard=overheard
    )
    with closing(federation):
        federation.run()
        course = Course(lambda: _look(federation, table), watch)
        orders = epoch_orders(settings.federation.seed, table.learnt, epochs)
        shown = by_learner(federation, orders, settings.learning.block_instances)
        steps = _one_pass(federation, label_delay) if epochs is None else _in_epochs(federation, shown)
        any(course.passed(share) for share in steps)
        course.end(DIVERGED, federation.virtual_seconds)
        return _outcome(
            federation, table, course, epochs is None, trace_of(federation, table, shown) if trace else {}
        )


def _look(federation: KernelFederation, table: VerticalTable, absent: str | None = None) -> VerticalFigures:
    """Figures on the test entities. absent: a party that knows none of them."""
    inputs, labels = table.testing
    outputs = federation.evaluate(inputs, absent)
    return figures_of(outputs, labels, federation.settings.learning.loss, federation.virtual_seconds)


def _outcome(
    federation: KernelFederation,
    table: VerticalTable,
    course: Course,
    online: bool,
    trace: dict[str, NDArray[Any]],
) -> KernelOutcome:
    settings, model = federation.settings, federation.held.model
    names = settings.federation.parties
    actives = settings.federation.active_parties
    loss = settings.learning.loss
    inputs, labels = table.learning

    def figure(metric: Metric) -> int:
        return sum(int(federation.figure(active, metric)) for active in actives)

    return KernelOutcome(
        settings=settings,
        entities=table.learnt,
        test_entities=table.test,
        seconds=federation.virtual_seconds,
        final=course.history[-1],
        constant_loss=_of_constant(table.testing[1], loss) / max(1, table.test),
        running_mean_loss=_of_running_mean(labels, loss) if online else None,
        absent={name: _look(federation, table, name) for name in names} if len(names) > 1 else {},
        progressive=_progressive(federation, labels, loss) if online else None,
        regret=_regret(federation, inputs, labels, loss) if online and not course.interrupted else None,
        history=course.history,
        iterations=figure(ActiveMetrics.iterations),
        features=model.kept,
        features_dropped=model.dropped,
        rounds=figure(ActiveMetrics.rounds_announced),
        traffic={kind: asdict(count) for kind, count in federation.traffic().items()},
        abandoned=federation.by_reason(PartyMetrics.abandoned_rounds, actives),
        forgotten=federation.by_reason(ActiveMetrics.forgotten_forecasts, actives),
        rows_dropped=figure(ActiveMetrics.rows_dropped),
        parties={
            name: {one.name: int(federation.figure(name, one)) for one in PARTY_FIGURES} for name in names
        },
        bandwidth=model.bandwidth,
        trace=trace,
    )


def figures_of(
    outputs: NDArray[np.float64], labels: NDArray[np.float64], loss: str, seconds: float = 0.0
) -> VerticalFigures:
    """Figures of f at entities with these labels: 0 and 1 for classes, or numbers."""
    if not len(outputs):
        return VerticalFigures(seconds)
    if loss == "square":
        return number_figures(seconds, outputs, labels)
    value = float(np.mean(loss_named(loss).value(outputs, 2 * labels - 1)))
    return class_figures(seconds, outputs >= 0, labels, value, outputs)


def shown_order(orders: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """All passes one after the other, so that the ``size`` labels of an iteration are of different entities.

    orders: (passes, entities). If a pass ends within an iteration, entities of it that the next pass would
    bring into the same iteration come later in the next pass.
    """
    count = orders.shape[1]
    shown = orders[:1].ravel()
    for order in orders[1:]:
        left = len(shown) % size
        rest = shown[len(shown) - left :]
        again = np.isin(order, rest)
        first = order[~again][: min(size - left, count) if left else 0]
        shown = np.concatenate([shown, first, order[~np.isin(order, first)]])
    return shown


def by_learner(
    federation: KernelFederation, orders: NDArray[np.int64], size: int
) -> dict[str, NDArray[np.int64]]:
    """By active party, the entities whose labels it gets, in order. orders: (passes, entities) of all
    together."""
    found = {}
    for place, name in enumerate(names := federation.settings.federation.active_parties):
        own = [order[order % len(names) == place] for order in orders]
        found[name] = shown_order(np.array(own), size)
    return found


def _ends(settings: FdsklSettings) -> Iterator[int]:
    """The number of labels at which each iteration is made, at each active party."""
    return ends_of_iterations(settings.learning.first_block, settings.learning.block_instances)


def _in_epochs(federation: KernelFederation, shown: dict[str, NDArray[np.int64]]) -> Iterator[float]:
    federation.write_samples(range(len(federation.labels)))
    federation.run()
    most = max(len(own) for own in shown.values())
    begin, ends = 0, _ends(federation.settings)
    while begin < most:
        end = next(ends)
        entities = np.concatenate([own[begin:end] for own in shown.values()]).tolist()
        federation.write_labels(entities)
        federation.run()
        # Entities that had left the window when their label came: their columns are waited for.
        forecasts = federation.held.forecasts
        gone = [
            one
            for one in entities
            if (found := forecasts.get(str(one))) is not None and found.label is not None
        ]
        if gone:
            federation.write_samples(gone)
            federation.run()
        begin = end
        yield min(1.0, end / most)


def _one_pass(federation: KernelFederation, label_delay: int) -> Iterator[float]:
    """Writes entities until the last label of an iteration is due, so that each is predicted as if all came
    one by one."""
    shown, known, count = 0, 0, len(federation.labels)
    ends, learners = _ends(federation.settings), len(federation.settings.federation.active_parties)
    while known < count:
        due = min(count, next(ends) * learners)
        if (coming := min(count, due + label_delay)) > shown:
            federation.write_samples(range(shown, coming))
            federation.run()
            shown = coming
        federation.write_labels(range(known, due))
        federation.run()
        known = due
        yield known / count


def _adapted(settings: FdsklSettings, entities: int, epochs: int | None) -> FdsklSettings:
    """In epochs nothing that is replayed expires, and an iteration has no more labels than there are."""
    if epochs is None:
        return settings
    learning, alignment = settings.learning, settings.alignment
    size = min(learning.block_instances, max(1, entities // len(settings.federation.actives)))
    # An sgd iteration looks at its own labels only: with a longer window nothing has to be shown twice.
    window = max(learning.window, entities) if learning.solver == "sgd" else learning.window
    kept = {"limit": max(alignment.limit, entities), "expiry_seconds": FOR_EVER}
    return settings.model_copy(
        update={
            "learning": learning.model_copy(update={"block_instances": size, "window": window}),
            "alignment": alignment.model_copy(update=kept),
        }
    )


def _last_predictions(federation: KernelFederation) -> tuple[list[int], NDArray[np.float64]]:
    """Entities that got predictions, and f of the last one of each."""
    return federation.last_predictions(lambda one: one.score)


def _progressive(federation: KernelFederation, labels: NDArray[np.float64], loss: str) -> VerticalFigures:
    """Figures of each entity's last prediction; entities that got none are left out."""
    entities, outputs = _last_predictions(federation)
    return figures_of(outputs, labels[entities], loss, federation.virtual_seconds)


def _regret(
    federation: KernelFederation,
    inputs: Sequence[NDArray[np.float64]],
    labels: NDArray[np.float64],
    loss: str,
) -> float:
    """sum_t L(f_t(x_t), y_t) less the smaller of sum_t L(f_T(x_t), y_t) and min over c of sum_t L(c, y_t)."""
    entities, outputs = _last_predictions(federation)
    chosen = loss_named(loss)
    known = 2 * labels[entities] - 1 if chosen.classifies else labels[entities]
    final = federation.evaluate([own[entities] for own in inputs])
    best = float(chosen.value(final, known).sum())
    return float(chosen.value(outputs, known).sum()) - min(best, _of_constant(labels[entities], loss))


def _of_running_mean(labels: NDArray[np.float64], loss: str) -> float:
    """Mean loss of predicting each label from those before it alone."""
    if loss != "smooth-hinge":
        return running_mean_loss(labels, 1 if loss == "square" else 2)
    outputs = 2 * running_means(labels, 2)[:, 1] - 1
    return float(loss_named(loss).value(outputs, 2 * labels - 1).mean())


def _of_constant(labels: NDArray[np.float64], loss: str) -> float:
    """min over c of sum_n L(c, y_n) of these labels, 0 and 1 of classes, or numbers."""
    chosen = loss_named(loss)
    known = 2 * labels - 1 if chosen.classifies else labels
    return chosen.of_constant(len(known), float(known.sum()), float(np.square(known).sum()))
