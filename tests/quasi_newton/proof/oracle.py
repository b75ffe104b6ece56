"""Computes the expected results of a federation from what its users wrote and from all members' secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray
from quasi_newton.proof import made_up_secrets
from quasi_newton.proof.scenario import NAME, C, G, QuasiNewtonScenario

from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.rows.batches import check_support, far_rows, secret_start
from streamfl.quasi_newton.rows.near_rows import cut_at_near_rows
from streamfl.quasi_newton.rows.preprocessing import Preprocessing, fit_preprocessing
from streamfl.quasi_newton.tools.direct import Party, Trace, train

__all__ = [
    "Batches",
    "Expected",
    "batches_of",
    "common_entities",
    "expected",
    "scored_with",
    "script",
    "size_of",
]

Floats = NDArray[np.float64]
# An expected message: its kind, run and round.
Line = tuple[str, int, int]


@dataclass(frozen=True)
class Batches:
    """Entities that a training learnt from, in the order of its batches.

    raw: by party, their raw columns, (rows, columns).
    signs: -1 and 1, (rows,).
    size: rows of each batch.
    """

    names: Sequence[str]
    raw: Mapping[str, Floats]
    signs: Floats
    size: int

    def first(self, rows: int) -> Batches:
        """The batches of the first ``rows`` entities."""
        return Batches(
            self.names[:rows],
            {party: raw[:rows] for party, raw in self.raw.items()},
            self.signs[:rows],
            self.size,
        )


@dataclass(frozen=True)
class Expected:
    """run: the training's number. trace: of the training. names: of the entities that it learnt from.
    parties: in the order of the trace.

    preparations: by party, the preprocessing fitted to its rows in the first training, and the columns that
    it kept then."""

    run: int
    trace: Trace
    names: Sequence[str]
    parties: Sequence[str]
    preparations: Mapping[str, tuple[Preprocessing, Sequence[int]]]


def common_entities(chosen: QuasiNewtonScenario) -> set[str]:
    """Entities that every party knows."""
    known = [{name for party, name in chosen.known if party == one} for one in chosen.parties]
    return set.intersection(*known)


def batches_of(chosen: QuasiNewtonScenario, names: set[str]) -> list[str]:
    """Entities in the order of the batches that they fill, without those that fill none and those that are
    held out."""
    learnt = [name for name in names if not chosen.is_held_out(name)]
    order = sorted(learnt, key=lambda name: hashlib.sha256(f"{chosen.seed} {name}".encode()).digest())
    size = size_of(chosen, len(order))
    return order[: len(order) // size * size]


def size_of(chosen: QuasiNewtonScenario, entities: int) -> int:
    """Rows of a batch if the first training has this number of entities. If these are too few for
    learning.batch rows, but no party needs more, all of them; else learning.batch.
    """
    batch = chosen.guest.learning.batch
    return entities if chosen.least_batch <= entities < batch else batch


def expected(
    chosen: QuasiNewtonScenario, run: int, batches: Batches, before: Expected | None = None
) -> Expected:
    """The result of a training. run: its number. before: the training before it, whose model it begins
    with."""
    settings = chosen.guest
    size = batches.size
    learning = replace(settings.learning.descent, batch=size)
    kind, rows = settings.kinds.inputs, len(batches.names)
    parties: list[Party] = []
    preparations: dict[str, tuple[Preprocessing, Sequence[int]]] = {}
    for number, party in enumerate(chosen.parties):
        raw, own = batches.raw[party], party == G
        if before is None:
            fitted = fit_preprocessing(chosen.of(party).preprocessing.method, raw)
            inputs, largest = fitted.apply(raw), settings.learning.largest_leverage
            refused = {
                column
                for at in range(0, rows, size)
                for column in _unsupported(chosen, inputs[at : at + size])
            }
            preprocessing = cut_at_near_rows(
                fitted, raw, kind, size, largest, intercept=own, left_out=refused
            )
            inputs = preprocessing.apply(raw)
            refused |= {
                column
                for at in range(0, rows, size)
                for column in _unsupported(chosen, inputs[at : at + size])
            }
            kept: Sequence[int] = [column for column in range(inputs.shape[1]) if column not in refused]
            secret = made_up_secrets.secret(made_up_secrets.path(party))
            start = secret_start(secret, msgspec.msgpack.encode((NAME, run, party)), len(kept) + own)
        else:
            preprocessing, kept = before.preparations[party]
            start = before.trace.model[number]
        preparations[party] = preprocessing, kept
        pieces = np.split(preprocessing.apply(raw)[:, kept], rows // size)
        for piece in pieces:
            for column in _unsupported(chosen, piece):
                values, counts = np.unique(rounded(kind, piece[:, [column]])[1], return_counts=True)
                piece[:, column] = values[np.argmax(counts)]
        numbers = [rounded(kind, piece)[1] for piece in pieces]
        muted = np.concatenate(
            [far_rows(piece, settings.learning.largest_leverage, intercept=own) for piece in numbers]
        )
        parties.append(Party(np.concatenate(pieces), start, muted))
    trace = train(parties, batches.signs, learning, np.arange(rows).reshape(-1, size), numbers=settings.kinds)
    return Expected(run, trace, batches.names, chosen.parties, preparations)


def _unsupported(chosen: QuasiNewtonScenario, batch: Floats) -> list[int]:
    """Columns of a batch with too little support."""
    kind = chosen.guest.kinds.inputs
    return check_support(kind.encode(kind.clip(batch)), chosen.guest.learning.min_support)


def scored_with(chosen: QuasiNewtonScenario, model: Expected, party: str, raw: Floats) -> Floats:
    """A party's part of outputs: the guest's x'w + b, a host's x'w in whole quanta. raw: (rows, columns) as
    they came."""
    preprocessing, kept = model.preparations[party]
    weights = model.trace.model[model.parties.index(party)]
    columns = rounded(chosen.guest.kinds.inputs, preprocessing.apply(raw)[:, kept])[1]
    if party == G:
        return np.asarray(columns @ weights[:-1] + weights[-1])
    quantum = chosen.guest.scoring.quantum
    return np.asarray(quantum * np.rint(columns @ weights / quantum))


def rounds_of(trace: Trace) -> list[int]:
    """The numbers of all rounds: one for each iteration, and one more for each pair that was offered."""
    offered = {iteration for iteration, _ in trace.pairs}
    return [
        number
        for at in range(len(trace.visited))
        for number in (2 * at, 2 * at + 1)[: 1 + (at + 1 in offered)]
    ]


def script(outcomes: Sequence[Expected], topic: str) -> list[Line]:
    """The messages that one of the topics between members must have, in order, each once.

    outcomes: of all trainings that succeeded. In those before them, too few entities were common.
    topic: without the federation's name.
    """
    member, _, kind = topic.partition(".")
    lines: list[Line] = [("ready", 0, 0)] if kind == "uploads" else []
    for run in range(1, outcomes[0].run):
        lines += _of_too_few(run, member, kind)
    for number, outcome in enumerate(outcomes, start=1):
        run, rounds = outcome.run, rounds_of(outcome.trace)
        if kind == "decisions":
            lines += [("begin", run, 0), *((what, run, one) for one in rounds for what in ("opened", "step"))]
        elif kind == "outputs":
            lines += [
                ("answer", run, 0),
                *((what, run, one) for one in rounds for what in ("outputs", "dots")),
            ]
        elif kind == "residuals":
            lines += [("blinded", run, 0), ("aligned", run, 0), *(("residuals", run, one) for one in rounds)]
        else:
            assert kind == "uploads"
            assert member != C
            each = ("gradient", "sums") if member == G else ("gradient",)
            lines += [("joined", run, 0), *((what, run, one) for one in rounds for what in each)]
            # A host is ready for another training at once, because the guest decides when there is one.
            lines += [("ready", run, rounds[-1])] if member != G or number < len(outcomes) else []
    return lines


def _of_too_few(run: int, member: str, kind: str) -> list[Line]:
    """The messages of a training for which the guest found too few common entities."""
    if kind == "decisions":
        return [("begin", run, 0), ("failed", run, 0)]
    if kind == "outputs":
        return [("answer", run, 0)]
    if kind == "residuals":
        return [("blinded", run, 0)]
    return [("failed", run, 0), ("ready", run, 0)]
