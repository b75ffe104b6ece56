"""Runs a federation on a table until its training is over. Returns the results, and all that is needed to
compute it again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError, DataError
from streamfl.learning.accuracy import area_under_curve, kolmogorov_smirnov, log_loss
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.fixed_point import OutOfBounds, kinds
from streamfl.quasi_newton.learning import taylor
from streamfl.quasi_newton.metrics import MemberCounts
from streamfl.quasi_newton.scoring.scorecard import fit_calibration
from streamfl.quasi_newton.tools.direct import Party, train
from streamfl.quasi_newton.tools.federation import CurvatureFederation
from streamfl.quasi_newton.tools.trace import PreparedRows, Recorder, prepared
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.baseline import mean_loss
from streamfl.simulation.vertical.table import FOR_EVER, VerticalTable

__all__ = ["CurvatureFigures", "CurvatureOutcome", "adapted", "figures_of", "run_curvature"]

Floats = NDArray[np.float64]
# All entities are read at one moment of virtual time. The training begins this many virtual seconds later.
SETTLED = 0.001


@dataclass(frozen=True)
class CurvatureFigures:
    """Measured on rows that were not learnt from; None if one label is missing there.

    taylor_loss: the minimised loss.
    loss: log loss after Platt scaling, in which each half of the rows calibrates the other.
    accuracy: of the sign of u.
    auc, ks: of u.
    """

    taylor_loss: float
    loss: float | None
    accuracy: float
    auc: float | None
    ks: float | None


@dataclass(frozen=True)
class CurvatureOutcome:
    """The result of a training.

    entities: number learnt from.
    held_out: number that the guest never learns from.
    waiting: number that filled no batch.
    final: figures on the test entities.
    alone: the same for a model of the guest's columns alone; None if its arithmetic left the bounds.
    constant_loss: log loss on the test entities of predicting their labels' shares.
    history: by epoch, virtual seconds, training loss and test figures.
    pairs: offered and kept.
    parties: by name, columns learnt from, columns left out, rows muted, ciphertexts, bytes sent.
    traffic: by kind of topic, messages and bytes.
    seconds: on the clock.
    seconds_by_step: of the processor.
    trace: arrays by name.
    """

    settings: QuasiNewtonSettings
    entities: int
    held_out: int
    waiting: int
    test_entities: int
    batches: int
    final: CurvatureFigures
    constant_loss: float
    alone: CurvatureFigures | None
    history: list[dict[str, float | None]]
    iterations: int
    converged: bool
    pairs: tuple[int, int]
    parties: dict[str, dict[str, int]]
    traffic: dict[str, dict[str, int]]
    seconds: float
    seconds_by_step: dict[str, float]
    virtual_seconds: float
    trace: dict[str, NDArray[Any]]

    def summary(self) -> dict[str, Any]:
        """Everything but the arrays, ready for JSON. messages, bytes: between members. ciphertexts: sent by
        parties."""
        encryption = self.settings.encryption
        encrypted = encryption.precision == "paillier"
        return {
            **asdict(self.final),
            "constant_loss": self.constant_loss,
            "epochs": len(self.history),
            "iterations": self.iterations,
            "ciphertexts": sum(own["ciphertexts"] for own in self.parties.values()),
            "bytes": sum(one["bytes"] for one in self.traffic.values()),
            "seconds": self.seconds,
            "seconds_by_step": self.seconds_by_step,
            "virtual_seconds": self.virtual_seconds,
            "converged": self.converged,
            "training_loss": self.history[-1]["training_loss"],
            "guest_alone": None if self.alone is None else asdict(self.alone),
            "precision": encryption.precision,
            "key_bits": encryption.key_bits if encrypted else None,
            "guest": self.settings.federation.guest_party,
            "entities": self.entities,
            "held_out_entities": self.held_out,
            "waiting_entities": self.waiting,
            "test_entities": self.test_entities,
            "batches": self.batches,
            "pairs_offered": self.pairs[0],
            "pairs_kept": self.pairs[1],
            "messages": sum(one["messages"] for one in self.traffic.values()),
            "traffic": self.traffic,
            "parties": self.parties,
            "history": self.history,
        }


def run_curvature(
    settings: QuasiNewtonSettings,
    table: VerticalTable,
    *,
    network_delay: float = 0.0,
    trace: bool = False,
    overheard: Callable[[Outgoing], None] | None = None,
    watch: Callable[[float], bool] = lambda share: False,
) -> CurvatureOutcome:
    """Let the federation learn from the table's first entities, until two epochs' losses agree.

    network_delay: virtual seconds that a message takes.
    overheard: called with each message between members.
    watch: called with the share that is done; if it returns True the run ends with the epoch.
    DataError if the training failed; ConfigurationError if encryption needs the extra.
    """
    begun = time.perf_counter()
    settings = adapted(settings, table.learnt)
    guest, learning = settings.federation.guest_party, settings.learning.descent
    recorder = Recorder(settings)

    def heard(record: Outgoing) -> None:
        recorder.heard(record)
        if overheard is not None:
            overheard(record)

    def look(party: str) -> None:
        recorder.look(party, federation.parties[party], federation.now - federation.begin)

    federation = CurvatureFederation(
        settings, *table.learning, network_delay=network_delay, overheard=heard, look=look
    )
    recorder.loss = lambda: federation.coordinator.run.loss
    with closing(federation):
        while federation.turn():
            batches = federation.parties[guest].progress.batches
            most = max(learning.epochs * batches, learning.iterations)
            interrupted = watch(recorder.iterations / most if batches else 0.0)
            if interrupted and recorder.between_epochs(batches):
                break
        seconds = time.perf_counter() - begun, federation.seconds.by_step()
        if federation.failure is not None:
            raise DataError(federation.failure)
        assert federation.over or recorder.between_epochs(batches), "nothing moves any more"
        return _outcome(federation, recorder, table, seconds, trace)


def _outcome(
    federation: CurvatureFederation,
    recorder: Recorder,
    table: VerticalTable,
    seconds: tuple[float, dict[str, float]],
    trace: bool,
) -> CurvatureOutcome:
    """seconds: on the clock, and of the processor by step."""
    settings, count, guest = federation.settings, table.learnt, federation.settings.federation.guest_party
    order = [int(name) for name in federation.parties[guest].learnt]
    held_out = sum(federation.parties[guest].is_held_out(str(entity)) for entity in range(count))
    parties = zip(federation.parties.items(), table.inputs, strict=True)
    rows = {name: prepared(party, raw) for (name, party), raw in parties}
    signs = 2 * table.labels - 1
    own_inputs = {name: own.inputs for name, own in rows.items()}
    outputs = [_outputs(recorder, own_inputs, guest, epoch) for epoch in range(recorder.epochs)]
    found = [figures_of(one[count:], signs[count:]) for one in outputs]
    batches = np.array(order, dtype=np.intp).reshape(federation.parties[guest].progress.batches, -1)
    arrays = recorder.arrays(rows, signs, count, batches) if trace else {}
    return CurvatureOutcome(
        settings=settings,
        entities=len(order),
        held_out=held_out,
        waiting=count - held_out - len(order),
        test_entities=table.test,
        batches=len(batches),
        final=found[-1],
        constant_loss=mean_loss(table.labels[count:], 2),
        alone=_alone(settings, rows[guest], recorder.weights[guest][0], signs, batches, count),
        history=[
            {"seconds": at, "training_loss": loss, **asdict(one)}
            for at, loss, one in zip(recorder.epoch_ends, recorder.losses, found, strict=True)
        ],
        iterations=recorder.iterations,
        converged=federation.coordinator.descent.converged,
        pairs=(len(recorder.pairs), sum(kept for _, kept in recorder.pairs)),
        parties={
            name: {
                "columns": own.inputs.shape[1],
                "columns_left_out": own.left_out,
                "muted_rows": int(own.muted.sum()),
                "ciphertexts": int(federation.figure(name, MemberCounts.ciphertexts_sent)),
                "bytes": int(federation.figure(name, MemberCounts.bytes_sent)),
            }
            for name, own in rows.items()
        },
        traffic={kind: asdict(one) for kind, one in federation.traffic().items()},
        seconds=seconds[0],
        seconds_by_step=seconds[1],
        virtual_seconds=federation.virtual_seconds,
        trace={**arrays, "predictions": outputs[-1][count:]} if trace else {},
    )


def figures_of(outputs: Floats, signs: Floats) -> CurvatureFigures:
    """The figures of outputs u at rows with these labels, -1 and 1."""
    ones = (signs > 0).astype(np.float64)
    return CurvatureFigures(
        taylor_loss=taylor.loss(outputs, signs),
        loss=_calibrated_loss(outputs, signs),
        accuracy=float(np.mean((outputs >= 0) == (signs > 0))),
        auc=_or_none(area_under_curve(outputs, ones)),
        ks=_or_none(kolmogorov_smirnov(outputs, ones)),
    )


def adapted(settings: QuasiNewtonSettings, entities: int) -> QuasiNewtonSettings:
    """Settings with which no replayed record expires, and all entities come before the training begins.

    ConfigurationError if there are too few entities.
    """
    learning, alignment = settings.learning, settings.alignment
    if entities < learning.batch:
        raise ConfigurationError(
            f"learning.batch = {learning.batch}: the {entities:,} rows to learn from fill no batch. A batch "
            f"has at least learning.min_batch = {learning.min_batch} rows, and 20 for each column of a party"
        )
    kept = {
        "entities": 1,
        "limit": max(alignment.limit, entities),
        "settle_seconds": SETTLED,
        "expiry_seconds": FOR_EVER,
        "patience_seconds": FOR_EVER,
    }
    return settings.model_copy(update={"alignment": alignment.model_copy(update=kept)})


def _outputs(recorder: Recorder, inputs: dict[str, Floats], guest: str, epoch: int) -> Floats:
    """u of all entities with the model of an epoch."""
    total: Floats = np.zeros(len(inputs[guest]))
    for name, own in inputs.items():
        model = recorder.models[name][epoch]
        total = total + (own @ model[:-1] + model[-1] if name == guest else own @ model)
    return total


def _alone(
    settings: QuasiNewtonSettings,
    rows: PreparedRows,
    start: Floats,
    signs: Floats,
    batches: NDArray[np.intp],
    count: int,
) -> CurvatureFigures | None:
    """Figures of a model that the guest learns alone, on the same batches and by the same rules."""
    learning = settings.learning
    size = batches.shape[1]
    numbers = kinds(1, size, size, input_bound=learning.input_bound, inner_bound=learning.output_bound)
    try:
        own = Party(rows.inputs[:count], start, rows.muted[:count])
        found = train([own], signs[:count], replace(learning.descent, batch=size), batches, numbers=numbers)
    except OutOfBounds:
        return None
    return figures_of(found.outputs([rows.inputs[count:]]), signs[count:])


def _calibrated_loss(outputs: Floats, signs: Floats) -> float | None:
    halves = np.arange(len(outputs)) % 2 == 0
    chances = np.empty(len(outputs))
    for half in (halves, ~halves):
        try:
            chances[half] = fit_calibration(outputs[~half], signs[~half]).probabilities(outputs[half])
        except ValueError:
            return None
    return log_loss(chances, (signs > 0).astype(np.float64))


def _or_none(number: float) -> float | None:
    return None if math.isnan(number) else number
