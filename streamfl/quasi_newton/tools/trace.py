"""Records the course of a training from outside: members' state after each of their steps, and the
coordinator's decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import Record
from streamfl.encoding.wire import decode_array
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.learning.own_columns import rounded
from streamfl.quasi_newton.members.party import PartyTask
from streamfl.quasi_newton.members.training_progress import DECIDING, OUTPUTS, TRAINED
from streamfl.quasi_newton.messages import Message, StepDecision, codec, read_content
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.runtime.bus import Outgoing

__all__ = ["PreparedRows", "Recorder", "prepared"]

Floats = NDArray[np.float64]


class Recorder:
    """Notes a training's course.

    weights: by party, of each iteration, the first ones too.
    steps, curvatures: by party, s and v of each pair that was offered.
    models: by party, of each epoch, the mean of its iterates.
    epoch_ends: virtual seconds.
    coefficients, batch_losses: of each iteration.
    pairs: of each offered pair, its iteration and whether it was kept.
    loss: returns the coordinator's loss of the present batch, which the coordinator does not publish.
    """

    def __init__(self, settings: QuasiNewtonSettings) -> None:
        federation = settings.federation
        self._guest = federation.guest_party
        self._topic = f"{federation.name}.{self._guest}.decisions"
        own = codec(settings.message_bytes)
        self._decode = decoded_in_fragments(own.read)
        self.weights: dict[str, list[Floats]] = {name: [] for name in federation.parties}
        self.steps: dict[str, list[Floats]] = {name: [] for name in federation.parties}
        self.curvatures: dict[str, list[Floats]] = {name: [] for name in federation.parties}
        self.models: dict[str, list[Floats]] = {name: [] for name in federation.parties}
        self._offered: dict[str, int] = dict.fromkeys(federation.parties, -1)
        self.epoch_ends: list[float] = []
        self.coefficients: list[Floats] = []
        self.batch_losses: list[float] = []
        self.pairs: list[tuple[int, bool]] = []
        self.loss: Callable[[], float] = lambda: math.nan

    @property
    def iterations(self) -> int:
        return len(self.batch_losses)

    @property
    def epochs(self) -> int:
        return len(self.epoch_ends)

    def between_epochs(self, batches: int) -> bool:
        """Whether every party has ended an epoch, and the next has not begun. batches: of an epoch."""
        ended = {len(own) for own in self.models.values()}
        return self.epochs > 0 and ended == {self.epochs} and self.iterations == self.epochs * batches

    @property
    def losses(self) -> list[float]:
        """For each epoch, the mean of its batches' losses before their steps."""
        batches = len(self.batch_losses) // max(1, self.epochs)
        return [
            float(np.mean(self.batch_losses[at : at + batches]))
            for at in range(0, self.epochs * batches, max(1, batches))
        ]

    def heard(self, record: Outgoing) -> None:
        """Take a message between members. The coordinator's decisions are the same for all, so the guest's
        topic is enough."""
        if record.topic != self._topic or record.value is None:
            return
        message = self._decode(Record(record.topic, 0, 0, None, record.value))
        if not isinstance(message, Message) or message.kind != "step":
            return
        step: StepDecision = read_content(message.content, StepDecision)
        if message.round % 2:
            self.pairs.append((message.round // 2 + 1, step.kept))
            return
        count = len(step.coefficients) // 8
        self.coefficients.append(decode_array(step.coefficients, np.float64, (count,), "coefficients"))
        self.batch_losses.append(self.loss())

    def look(self, name: str, party: PartyTask, now: float) -> None:
        """Take a party's state after a step of its worker, in which the party receives at most one
        decision."""
        progress = party.progress
        if not OUTPUTS <= progress.phase <= TRAINED:
            return
        over, odd = progress.phase == TRAINED, progress.round % 2 == 1
        taken = progress.round // 2 + (over or odd)
        if taken == len(self.weights[name]):
            self.weights[name].append(party.iterates.own.weights.copy())
        assert taken == len(self.weights[name]) - 1, "an iteration went by unseen"
        if (
            odd
            and progress.curvature
            and progress.phase <= DECIDING
            and self._offered[name] != progress.round
        ):
            self._offered[name] = progress.round
            shape = party.iterates.own.weights.shape
            self.steps[name].append(decode_array(progress.step, np.float64, shape, "step"))
            self.curvatures[name].append(decode_array(progress.curvature, np.float64, shape, "curvature"))
        ended = taken // progress.batches if over or not odd else (taken - 1) // progress.batches
        if ended > len(self.models[name]):
            assert party.iterates.model is not None
            self.models[name].append(party.iterates.model.copy())
            if name == self._guest:
                self.epoch_ends.append(now)

    def arrays(
        self, rows: Mapping[str, PreparedRows], labels: Floats, learnt: int, batches: NDArray[np.intp]
    ) -> dict[str, NDArray[Any]]:
        """All arrays that are needed to compute the training again, by name.

        inputs/PARTY: its columns of all entities as they are learnt from, preprocessed, clipped and rounded,
        (entities, columns). muted/PARTY: entities that are learnt from with zeros in their place, the guest's
        intercept included, (entities,). labels: -1 and 1, (entities,). entities: number of the first test
        row.
        batches: entities of each, (batches, size). visited: number of the batch, by iteration.
        weights/PARTY: before the first iteration and after each, (iterations + 1, columns); the guest's end
        with the intercept. model/PARTY: the mean of the last epoch's iterates. models/PARTY: the mean of each
        epoch's.
        coefficients: of the basis s, v, g, (iterations, most), filled up with NaN.
        pairs: for each offered pair, after how many iterations, and whether it was kept. steps/PARTY,
        curvatures/PARTY: the party's part of their s and v.
        batch_losses: before each step. losses: their means by epoch. predictions: u of the test rows.
        """
        longest = max((len(row) for row in self.coefficients), default=0)
        filled = [np.pad(row, (0, longest - len(row)), constant_values=np.nan) for row in self.coefficients]
        arrays: dict[str, NDArray[Any]] = {
            "labels": labels,
            "entities": np.array(learnt),
            "batches": batches,
            "visited": np.arange(self.iterations) % len(batches),
            "coefficients": np.array(filled).reshape(self.iterations, longest),
            "pairs": np.array(self.pairs, dtype=np.int64).reshape(-1, 2),
            "batch_losses": np.array(self.batch_losses),
            "losses": np.array(self.losses),
        }
        for name, weights in self.weights.items():
            width = len(weights[0])
            arrays[f"inputs/{name}"] = rows[name].inputs
            arrays[f"muted/{name}"] = rows[name].muted
            arrays[f"weights/{name}"] = np.array(weights)
            arrays[f"model/{name}"] = self.models[name][-1]
            arrays[f"models/{name}"] = np.array(self.models[name])
            arrays[f"steps/{name}"] = np.array(self.steps[name]).reshape(-1, width)
            arrays[f"curvatures/{name}"] = np.array(self.curvatures[name]).reshape(-1, width)
        return arrays


@dataclass(frozen=True)
class PreparedRows:
    """inputs: a party's columns of a whole table as it learns from them, (entities, columns). left_out: how
    many are left out.

    muted: entities that it learns from with zeros in their place, (entities,).
    """

    inputs: Floats
    muted: NDArray[np.bool_]
    left_out: int


def prepared(party: PartyTask, raw: Floats) -> PreparedRows:
    """The party's columns of all entities, transformed as it fitted to the rows that it learnt from.

    raw: (entities, columns), in the order of the entities' names, which are numbers.
    """
    preparation, kind = party.rows.preparation, party.settings.kinds.inputs
    assert preparation is not None
    # The public bound and the rounding to it are part of what is learnt from.
    inputs = rounded(kind, preparation.apply(raw))[1]
    learnt, far = party.rows.learnt()
    order = [int(name) for name in party.learnt]
    assert np.array_equal(inputs[order][~far], rounded(kind, learnt)[1][~far]), "the party has other rows"
    muted = np.zeros(len(inputs), np.bool_)
    muted[order] = far
    return PreparedRows(inputs, muted, preparation.results - inputs.shape[1])
