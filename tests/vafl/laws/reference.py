"""VAFL's coordinator, one message at a time: plain loops over dictionaries, from docs/vertical.md.

It takes heads, losses and optimisers of streamfl, which tests/vafl/papers/test_gradients.py compares with
equations. Its own is who is predicted, waited for, learnt from, asked, answered and forgotten, in which
order, and at which theta_0. It has one partition, and no noise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from vafl.makers import Alignment, Steps

from streamfl.learning.optimisers import optimiser_named
from streamfl.vafl.functions.heads import Head, OutputLoss

COUNTS = (
    "embeddings",
    "predictions",
    "revised_predictions",
    "labels",
    "learnt",
    "learnt_below_quorum",
    "gradients",
    "requests",
    "outdated_embeddings",
    "steps",
    "duplicate_labels",
    "silent_parties",
    "superseded_embeddings",
    "ignored_embeddings/duplicate",
    *(
        f"forgotten_entities/{reason}"
        for reason in ("no_quorum", "no_label", "no_embedding", "displaced", "learnt")
    ),
)


@dataclass(frozen=True)
class Said:
    """What goes out. party: nobody's is a prediction. numbers: epoch and sequence; of a prediction its
    embeddings and revision.

    values: the gradient or the prediction; a request has none.
    """

    party: int | None
    entity: str
    numbers: tuple[int, int]
    values: tuple[float, ...] = ()

    @property
    def is_request(self) -> bool:
        return not self.values


@dataclass(frozen=True)
class Shown:
    """An embedding, as a party sends it."""

    party: int
    entity: str
    epoch: int
    sequence: int
    version: int
    values: NDArray[np.float64]


@dataclass
class Held:
    """The latest embedding of one party and entity. fresh: it waits for a gradient. asked: a newer one was
    asked for.

    requests: how often in a row one came because it was asked for.
    answers: gradients to this party for this entity.
    """

    shown: Shown
    requests: int
    answers: int
    fresh: bool = True
    asked: bool = False


@dataclass
class Entity:
    """rounds: how often ``wait_for`` parties were learnt from together; learnt_at: when they were last."""

    heard_at: float
    label: float | None = None
    held: dict[int, Held] = field(default_factory=dict)
    predicted_of: int = 0
    revision: int = 0
    outputs: NDArray[np.float64] | None = None
    awaited_at: float | None = None
    rounds: int = 0
    learnt_at: float = -np.inf


@dataclass
class Party:
    """count, mean: of what it showed. heard: epochs and sequences. latest: of what came last. version: the
    largest of its epoch.

    behind: it was waited for in vain and does not keep up yet.
    """

    mean: NDArray[np.float64]
    count: int = 0
    latest: tuple[int, int] = (-1, 0)
    version: int = 0
    heard: set[tuple[int, int]] = field(default_factory=set)
    behind: bool = False


class Reference:
    """counts: as the coordinator's metrics. ages: of all embeddings that were learnt from. losses: of
    predictions before labels."""

    def __init__(
        self,
        parties: int,
        size: int,
        loss: OutputLoss,
        head: Head,
        steps: Steps,
        alignment: Alignment,
        dtype: Any,
    ) -> None:
        self.loss, self.head, self.steps, self.alignment, self.dtype = loss, head, steps, alignment, dtype
        self.parties = [Party(np.zeros(size)) for _ in range(parties)]
        # The one that was heard of longest ago is the first.
        self.entities: OrderedDict[str, Entity] = OrderedDict()
        self.parameters = head.initial(0)
        self.optimiser = optimiser_named(steps.optimiser, steps.learning_rate, head.size)
        self.gradient = np.zeros(head.size)
        self.gathered = self.steps_taken = 0
        self.begin_measuring()

    def begin_measuring(self) -> None:
        """As a process does that has just been started."""
        self.counts = dict.fromkeys(COUNTS, 0)
        self.ages: list[int] = []
        self.losses: list[float] = []

    # ---- what comes in

    def label(self, name: str, label: float, now: float) -> list[Said]:
        known = self.entities.get(name)
        if known is not None and known.label is not None:
            self.counts["duplicate_labels"] += 1
            return []
        entity = self._hear_of(name, now)
        entity.label = label
        self.counts["labels"] += 1
        if entity.outputs is not None:
            self.losses.append(float(self.loss.values(entity.outputs[np.newaxis], np.array([label]))[0]))
        return self._work_off(name, entity, now)

    def embedding(self, shown: Shown, now: float) -> list[Said]:
        party, number = self.parties[shown.party], (shown.epoch, shown.sequence)
        if number in party.heard:
            self.counts["ignored_embeddings/duplicate"] += 1
            return []
        self.counts["superseded_embeddings"] += number < party.latest
        self.counts["embeddings"] += 1
        party.heard.add(number)
        party.version = max(party.version, shown.version) if shown.epoch == party.latest[0] else shown.version
        party.latest = number
        party.count = min(party.count + 1, 1000)
        party.mean += (shown.values - party.mean) / party.count
        entity = self._hear_of(shown.entity, now)
        before = entity.held.get(shown.party)
        answers = before.answers if before else 0
        missed = entity.rounds - answers
        if missed == 0 or (missed == 1 and entity.learnt_at + self.alignment.reply_seconds >= now):
            party.behind = False
        requests = before.requests + 1 if before and before.asked else 0
        entity.held[shown.party] = Held(shown, requests, answers)
        return self._predict(shown.entity, entity) + self._work_off(shown.entity, entity, now)

    def tick(self, now: float) -> list[Said]:
        self._set_back(now)
        due = [
            (entity.awaited_at, name)
            for name, entity in self.entities.items()
            if entity.awaited_at is not None and entity.awaited_at + self.alignment.reply_seconds <= now
        ]
        said = []
        for _, name in sorted(due):
            entity = self._hear_of(name, now)
            entity.awaited_at = None
            for held in entity.held.values():
                if held.fresh and held.asked:
                    held.fresh = False
                    self.counts["silent_parties"] += 1
            for number in self._missing(entity):
                self.parties[number].behind = True
            said += self._work_off(name, entity, now, in_vain=True)
        while self.entities:
            name, entity = next(iter(self.entities.items()))
            if entity.heard_at + self.alignment.expiry > now:
                break
            self._forget(name)
        return said

    # ---- time and room

    def _hear_of(self, name: str, now: float) -> Entity:
        if name not in self.entities:
            while len(self.entities) >= self.alignment.limit:
                self._forget(next(iter(self.entities)), displaced=True)
            self.entities[name] = Entity(now)
        self.entities.move_to_end(name)
        entity = self.entities[name]
        self._heard_at(entity, now)
        return entity

    def _set_back(self, now: float) -> None:
        """The clock was ahead: what came after now has come now."""
        for name, entity in list(self.entities.items()):
            if entity.heard_at > now:
                self.entities.move_to_end(name)
                self._heard_at(entity, now)

    def _heard_at(self, entity: Entity, now: float) -> None:
        entity.heard_at = now
        entity.learnt_at = min(entity.learnt_at, now)
        entity.awaited_at = None if entity.awaited_at is None else min(entity.awaited_at, now)

    def _forget(self, name: str, displaced: bool = False) -> None:
        entity = self.entities.pop(name)
        if entity.rounds:
            reason = "learnt"
        elif displaced:
            reason = "displaced"
        elif entity.label is None:
            reason = "no_label" if len(entity.held) >= self.alignment.quorum else "no_quorum"
        else:
            reason = "no_quorum" if entity.held else "no_embedding"
        self.counts[f"forgotten_entities/{reason}"] += 1

    # ---- how old an embedding is

    def _age(self, shown: Shown) -> int:
        party = self.parties[shown.party]
        return max(0, party.version - (shown.version if shown.epoch == party.latest[0] else 0))

    def _outdated(self, shown: Shown) -> bool:
        bound = self.alignment.max_staleness
        return bound is not None and (
            shown.epoch != self.parties[shown.party].latest[0] or self._age(shown) > bound
        )

    def _missing(self, entity: Entity) -> list[int]:
        """Who has shown nothing, or only what is too old and was answered, given up, or asked for in vain."""
        held = entity.held
        return [
            number
            for number in range(len(self.parties))
            if number not in held or (self._outdated(held[number].shown) and not held[number].fresh)
        ]

    # ---- predicting and learning

    def _inputs(self, entity: Entity, used: Iterable[int]) -> NDArray[Any]:
        rows = [
            entity.held[number].shown.values if number in used else party.mean
            for number, party in enumerate(self.parties)
        ]
        return np.array([rows], self.dtype)

    def _predict(self, name: str, entity: Entity) -> list[Said]:
        present, rules = len(entity.held), self.alignment
        anew = not entity.rounds and rules.revise and present > entity.predicted_of
        if present < rules.quorum or (entity.predicted_of and not anew):
            return []
        outputs = self.head.forward(self.parameters, self._inputs(entity, entity.held))[0]
        entity.outputs, entity.predicted_of = outputs[0].astype(float), present
        self.counts["revised_predictions" if entity.revision else "predictions"] += 1
        values = np.ravel(self.loss.prediction(outputs)).tolist()
        said = Said(None, name, (present, entity.revision), tuple(values))
        entity.revision += 1
        return [said]

    def _is_stale(self, one: Held, in_vain: bool) -> bool:
        """Whether an embedding is too old for its gradient. Without a bound, that of an entity that waited in
        vain is after two steps, once."""
        if self.alignment.max_staleness is not None or not in_vain:
            return self._outdated(one.shown)
        asked = one.requests or not self.alignment.requests
        another = one.shown.epoch != self.parties[one.shown.party].latest[0]
        return not asked and (another or self._age(one.shown) > 2)

    def _work_off(self, name: str, entity: Entity, now: float, in_vain: bool = False) -> list[Said]:
        """Learn from an entity, or find who has to be asked or waited for."""
        held, rules = entity.held, self.alignment
        if entity.label is None or any(one.fresh and one.asked for one in held.values()):
            return []
        said = []
        for number, one in held.items():
            if one.fresh and self._outdated(one.shown) and one.requests >= rules.requests:
                one.fresh = False
                said.append(self._request(number, name, one))
        fresh = {number for number, one in held.items() if one.fresh}
        late = {number for number in fresh if held[number].answers < entity.rounds}
        missing = self._missing(entity)
        enough = len(fresh - late) >= rules.wait_for
        below_quorum = len(self.parties) - len(missing) < (rules.learning_quorum or len(self.parties))
        waits = enough and below_quorum and not all(self.parties[number].behind for number in missing)
        together = enough and not waits
        answered = fresh if together else late
        stale = [number for number in sorted(fresh) if self._is_stale(held[number], in_vain)]
        if answered and stale:
            # Whoever waits for a gradient is asked at the same time, though it be answered later.
            entity.awaited_at = now
            for number in stale:
                held[number].asked = True
                said.append(self._request(number, name, held[number]))
            return said
        if not waits:
            entity.awaited_at = None
        elif entity.awaited_at is None:
            entity.awaited_at = now
        if answered:
            self.counts["learnt_below_quorum"] += together and below_quorum
            said += self._learn(name, entity, sorted(answered))
            if together:
                entity.rounds += 1
                entity.learnt_at = now
        done = len(held) == len(self.parties) and not any(one.fresh or one.asked for one in held.values())
        if done and not rules.keep:
            del self.entities[name]
        return said

    def _request(self, number: int, name: str, held: Held) -> Said:
        self.counts["requests"] += 1
        return Said(number, name, (held.shown.epoch, held.shown.sequence))

    def _learn(self, name: str, entity: Entity, answered: Sequence[int]) -> list[Said]:
        held = entity.held
        used = [number for number in held if not self._outdated(held[number].shown)]
        self.ages += [self._age(held[number].shown) for number in used]
        self.counts["learnt"] += 1
        self.counts["outdated_embeddings"] += len(held) - len(used)
        outputs, done = self.head.forward(self.parameters, self._inputs(entity, used))
        cotangents = self.loss.gradient(outputs, np.array([entity.label])).astype(outputs.dtype)
        gradient, down = self.head.backward(self.parameters, done, cotangents)
        if self.head.size:
            self.gradient += gradient
            self.gathered += 1
            if self.gathered == self.steps.batch_size:
                self._step()
        said = []
        for number in answered:
            one = held[number]
            one.fresh = False
            one.answers += 1
            self.counts["gradients"] += 1
            said.append(
                Said(number, name, (one.shown.epoch, one.shown.sequence), tuple(down[0, number].tolist()))
            )
        return said

    def _step(self) -> None:
        self.steps_taken += 1
        self.counts["steps"] += 1
        gradient = self.gradient / self.gathered + self.steps.regularisation * self.parameters
        self.optimiser.step(self.parameters, gradient, self.steps_taken)
        self.gradient[:] = 0.0
        self.gathered = 0
