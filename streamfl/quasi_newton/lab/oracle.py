"""What a federation has to come to, computed from what its users wrote and from everybody's secrets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.quasi_newton.batches import check_support, far_rows, secret_start
from streamfl.quasi_newton.lab import made_up_secrets
from streamfl.quasi_newton.lab.direct import Party, Trace, train
from streamfl.quasi_newton.lab.scenario import NAME, C, G, QuasiNewtonScenario
from streamfl.quasi_newton.own_columns import rounded
from streamfl.quasi_newton.preprocessing import fit_preprocessing

__all__ = ["Expected", "batches_of", "common_entities", "expected", "script"]

Floats = NDArray[np.float64]
# A message that has to come: its kind, run and round.
Line = tuple[str, int, int]


@dataclass(frozen=True)
class Expected:
    """trace: of the training. names: in the order of the batches. parties: in the order of the trace."""

    trace: Trace
    names: Sequence[str]
    parties: Sequence[str]


def common_entities(chosen: QuasiNewtonScenario) -> set[str]:
    """Those that every party knows."""
    known = [{name for party, name in chosen.known if party == one} for one in chosen.parties]
    return set.intersection(*known)


def batches_of(chosen: QuasiNewtonScenario, names: set[str]) -> list[str]:
    """Entities in the order of the batches; those that fill none are left out."""
    size = int(chosen.sections["learning"]["batch"])
    order = sorted(names, key=lambda name: hashlib.sha256(f"{chosen.seed} {name}".encode()).digest())
    return order[: len(order) // size * size]


def expected(chosen: QuasiNewtonScenario, names: Sequence[str]) -> Expected:
    """What a training of these entities comes to. names: in the order of the batches."""
    settings = chosen.guest
    learning, size = settings.learning.learning, settings.learning.batch
    parties = []
    for party in chosen.parties:
        raw = np.array([chosen.known[party, name] for name in names])
        inputs = fit_preprocessing(chosen.of(party).preprocessing.method, raw).apply(raw)
        least, kind = settings.learning.min_support, settings.kinds.inputs
        numbers = kind.encode(kind.clip(inputs))
        refused = {column for at in range(0, len(names), size) for column in check_support(numbers[at : at + size], least)}
        inputs = inputs[:, [column for column in range(inputs.shape[1]) if column not in refused]]
        pieces, own = np.split(rounded(kind, inputs)[1], len(names) // size), party == G
        muted = np.concatenate([far_rows(piece, settings.learning.largest_leverage, intercept=own) for piece in pieces])
        secret = made_up_secrets.secret(made_up_secrets.path(party))
        start = secret_start(secret, msgspec.msgpack.encode((NAME, 1, party)), inputs.shape[1] + (party == G))
        parties.append(Party(inputs, start, muted))
    signs = np.array([2.0 * chosen.labels[name] - 1.0 for name in names])
    batches = np.arange(len(names)).reshape(-1, size)
    return Expected(train(parties, signs, learning, batches, numbers=settings.kinds), names, chosen.parties)


def rounds_of(trace: Trace) -> list[int]:
    """The numbers of all rounds: one of each iteration, and one more where curvature was looked for."""
    offered = {iteration for iteration, _ in trace.pairs}
    return [number for at in range(len(trace.visited)) for number in (2 * at, 2 * at + 1)[: 1 + (at + 1 in offered)]]


def script(chosen: QuasiNewtonScenario, trace: Trace, topic: str) -> list[Line]:
    """All that has to stand in one of the topics between members, in order, each once. topic: without the federation's name."""
    member, _, kind = topic.partition(".")
    rounds = rounds_of(trace)
    if kind == "decisions":
        return [("begin", 1, 0), *(line for one in rounds for line in (("opened", 1, one), ("step", 1, one)))]
    if kind == "outputs":
        return [("answer", 1, 0), *(line for one in rounds for line in (("outputs", 1, one), ("dots", 1, one)))]
    if kind == "residuals":
        return [("blinded", 1, 0), ("aligned", 1, 0), *(("residuals", 1, one) for one in rounds)]
    assert kind == "uploads"
    assert member != C
    each = ("gradient", "sums") if member == G else ("gradient",)
    # A host is ready for another training at once; when there is one the guest decides.
    again = [] if member == G else [("ready", 1, rounds[-1])]
    return [("ready", 0, 0), ("joined", 1, 0), *((what, 1, one) for one in rounds for what in each), *again]
