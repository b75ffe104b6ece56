"""A vertical federation on the memory bus: a coordinator and parties whose delays are of a virtual clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.seeding import rng_for
from streamfl.settings import RoleSection
from streamfl.vafl.config import COORDINATOR, PARTY, VaflSettings
from streamfl.vafl.coordinator import VaflCoordinator
from streamfl.vafl.party import VaflParty
from streamfl.vertical import EntityLabelsSection, EntitySamplesSection, PartySection
from streamfl.wire import record_size

__all__ = ["Delay", "VerticalFederation", "VerticalFigures", "auc"]

LABELS = "labels"
# Of a party's samples that lie unread, in multiples of what it takes at once.
AHEAD = 4
_LARGEST_BATCH = 4000
# After so many turns in which nothing came of it, a party is next heard when something can.
IDLE_TURNS = 100


@dataclass(frozen=True)
class Delay:
    """Virtual seconds from one upload of a party to its next. ``distribution``: constant or exponential with this mean."""

    mean: float = 1.0
    distribution: str = "constant"

    def draw(self, generator: np.random.Generator) -> float:
        return self.mean if self.distribution == "constant" else float(generator.exponential(self.mean))


@dataclass(frozen=True)
class VerticalFigures:
    """How a federation stands. ``seconds``: virtual. ``accuracy`` of classes, ``mse`` of numbers, ``auc`` of two classes."""

    seconds: float
    accuracy: float | None
    mse: float | None
    auc: float | None
    loss: float


@dataclass
class _Party:
    name: str
    worker: Worker
    inputs: NDArray[Any]
    delay: Delay
    generator: np.random.Generator
    order: list[int] = field(default_factory=list)
    written: int = 0

    @property
    def role(self) -> VaflParty:
        return cast(VaflParty, self.worker.role)


class VerticalFederation:
    """One partition, every role in its worker.

    settings: of any member; what belongs to a single one is filled in here. inputs: by party, in the order of federation.parties,
    (entities, its features). labels: (entities,). arrivals: so many entities reach a party from one of its uploads to the next;
    None: as many as it takes.
    """

    def __init__(
        self,
        settings: VaflSettings,
        inputs: Sequence[NDArray[Any]],
        labels: NDArray[Any],
        *,
        delays: Sequence[Delay] = (),
        label_range: tuple[float, float] = (0.0, 1.0),
        arrivals: int | None = None,
    ) -> None:
        settings = settings.without_keys()
        self.settings = settings
        self.arrivals = arrivals
        self.labels = labels
        self.now = 1_000.0
        self.begin = self.now
        self._moved = self.now
        self.labels_written: list[tuple[int, int]] = []
        self.bus = MemoryBus(clock=lambda: self.now)
        self._encode = msgspec.msgpack.Encoder().encode
        federation = settings.federation
        section = EntityLabelsSection(topic=LABELS, format="msgpack", label="y", label_range=label_range)
        shared = {"party": None, "samples": None, "labels": None, "metrics": settings.metrics}
        head = settings.model_copy(update={**shared, "role": RoleSection(kind=COORDINATOR), "labels": section})
        self.coordinator_worker = self._start(head)
        delays = delays or [Delay()] * len(federation.parties)
        self.parties = []
        for number, (name, own) in enumerate(zip(federation.parties, inputs, strict=True)):
            samples = EntitySamplesSection(topic=f"samples-{name}", format="msgpack", features="x", dimension=own.shape[1])
            update = {**shared, "role": RoleSection(kind=PARTY), "party": PartySection(name=name), "samples": samples}
            worker = self._start(settings.model_copy(update=update))
            draws = rng_for(federation.seed, "vertical", "delays", name)
            self.parties.append(_Party(name, worker, own, delays[number], draws))
        self._events: list[tuple[float, int]] = [(self.now, number) for number in range(len(self.parties))]
        heapq.heapify(self._events)

    @property
    def coordinator(self) -> VaflCoordinator:
        return cast(VaflCoordinator, self.coordinator_worker.role)

    @property
    def seconds(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now - self.begin

    @property
    def settled(self) -> float:
        """Virtual seconds from the beginning until something was last sent or taken."""
        return self._moved - self.begin

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """theta_m by the party's name, copied; of the head under the coordinator's kind."""
        roles = {party.name: party.role for party in self.parties}
        found = {name: role.parameters(0) for name, role in roles.items()}
        return {**found, COORDINATOR: self.coordinator.parameters(0)}

    def replay(self, orders: Sequence[Sequence[int]]) -> None:
        """Let each party show its entities in this order, after those that were given before."""
        for party, order in zip(self.parties, orders, strict=True):
            party.order += list(order)

    def write_labels(self, entities: Sequence[int]) -> None:
        """Write these entities' labels, and let the coordinator take them."""
        taken = int(self.figure(self.coordinator_worker, "embeddings"))
        self.labels_written += [(one, taken) for one in entities]
        self.bus.write([Outgoing(LABELS, str(one).encode(), self._encode({"y": float(self.labels[one])})) for one in entities])
        self._coordinate()

    def run(self, seconds: float = float("inf"), watch: Callable[[], bool] | None = None) -> None:
        """Go on for so many virtual seconds, until nothing moves any more, or until ``watch`` says True after some upload."""
        until = self.now + seconds
        # A party that had a turn since anything moved was given all that will come, unless somebody is still waited for.
        idle: dict[int, int] = {}
        patience = self.settings.alignment.reply_seconds
        while self._events and self._events[0][0] <= until:
            when, number = heapq.heappop(self._events)
            self.now = max(self.now, when)
            party = self.parties[number]
            self._feed(party)
            if self._turn(party):
                self._moved = self.now
                idle.clear()
            else:
                idle[number] = idle.get(number, 0) + 1
            heapq.heappush(self._events, (self._next_turn(number, idle, until), number))
            if watch is not None and watch():
                return
            if len(idle) == len(self.parties) and min(idle.values()) >= 2 and self.now > self._moved + patience:
                return
        if seconds != float("inf"):
            self.now = until

    def evaluate(self, inputs: Sequence[NDArray[Any]], labels: NDArray[Any], noisy: bool = False) -> VerticalFigures:
        """The present model on other entities; ``noisy``: with the noise that their embeddings would be sent with."""
        return self._figures(self._embeddings(inputs, noisy), labels)

    def evaluate_absent(self, inputs: Sequence[NDArray[Any]], labels: NDArray[Any]) -> dict[str, VerticalFigures]:
        """The same, by its name, when one party does not show them, so that the coordinator takes its running mean."""
        embeddings = self._embeddings(inputs, noisy=False)
        found = {}
        for number, (party, mean) in enumerate(zip(self.parties, self.coordinator.mean_embeddings(0), strict=True)):
            without = embeddings.copy()
            without[:, number] = mean
            found[party.name] = self._figures(without, labels)
        return found

    def _embeddings(self, inputs: Sequence[NDArray[Any]], noisy: bool) -> NDArray[Any]:
        """(entities, M, embedding size)."""
        columns = []
        for party, own in zip(self.parties, inputs, strict=True):
            embeddings = party.role.embed(0, own.astype(party.role.function.dtype))
            if noisy and party.role.mechanism is not None:
                draws = rng_for(self.settings.federation.seed, "vertical", "test noise", party.name)
                noise = draws.normal(0.0, party.role.mechanism.embedding_noise, embeddings.shape)
                embeddings = (embeddings + noise).astype(embeddings.dtype)
            columns.append(embeddings)
        return np.stack(columns, axis=1)

    def _figures(self, embeddings: NDArray[Any], labels: NDArray[Any]) -> VerticalFigures:
        outputs = self.coordinator.evaluate(0, embeddings)
        loss = self.coordinator.loss
        value = float(loss.values(outputs, labels).mean())
        if loss.name == "square":
            return VerticalFigures(self.seconds, None, float(np.square(outputs[:, 0] - labels).mean()), None, value)
        guess = outputs.argmax(axis=1) if loss.name == "softmax" else (outputs[:, 0] > 0)
        area = auc(outputs[:, 0], labels) if loss.name == "logistic" else None
        return VerticalFigures(self.seconds, float((guess == labels).mean()), None, area, value)

    def figure(self, worker: Worker, name: str) -> float:
        """One of the worker's measurements, its labels added up."""
        return sum(one.value for one in worker.measure() if one.name == name)

    def traffic(self) -> dict[str, int]:
        """Records and bytes on the wire, upwards and downwards."""
        figures = {"uploads": 0, "upload_bytes": 0, "replies": 0, "reply_bytes": 0}
        name = self.settings.federation.name
        for party in self.parties:
            for direction, one in (("embeddings", "upload"), ("gradients", "reply")):
                for record in self.bus.read(f"{name}.{party.name}.{direction}"):
                    figures["uploads" if one == "upload" else "replies"] += 1
                    figures[f"{one}_bytes"] += record_size(record)
        return figures

    def close(self) -> None:
        for worker in (self.coordinator_worker, *(party.worker for party in self.parties)):
            worker.close()

    # ---- turns

    def _start(self, settings: VaflSettings) -> Worker:
        topics = find_kind(settings.role.kind).topics(settings)
        known = self.bus.describe([topic.name for topic in topics])
        self.bus.create([replace(topic, partitions=1) for topic in topics if topic.name not in known])
        worker = build_worker(settings, self.bus, lambda: self.now, lambda: self.now, lambda seconds: None)
        # Takes its partition.
        worker.step(0.0)
        worker.step(0.0)
        return worker

    def _next_turn(self, number: int, idle: Mapping[int, int], until: float) -> float:
        """When a party has its next turn: the first one that something can come of, if nothing has for long."""
        party = self.parties[number]
        wait = party.delay.draw(party.generator)
        # Later, however little that is.
        usual = max(self.now + wait, math.nextafter(self.now, math.inf))
        if idle.get(number, 0) < IDLE_TURNS:
            return usual
        moments = [until, self.coordinator.wake_at, party.role.wake_at]
        for when, other in self._events:
            if idle.get(other, 0) < IDLE_TURNS:
                moments.append(when)
            elif (wake := self.parties[other].role.wake_at) is not None:
                moments.append(max(when, wake))
        end = self._moved + self.settings.alignment.reply_seconds
        if end > self.now:
            moments.append(end)
        horizon = min(moment for moment in moments if moment is not None)
        if not usual < horizon < math.inf:
            return usual
        if party.delay.distribution == "constant":
            return self.now + math.ceil((horizon - self.now) / wait) * wait
        # An exponential wait has no memory: from any moment on it is as long.
        return horizon + wait

    def _turn(self, party: _Party) -> bool:
        """What has come for the party, what it sends because of that, and what the coordinator says to it at once."""
        moved = False
        while party.worker.step(0.0):
            moved = True
        return self._coordinate() or moved

    def _coordinate(self) -> bool:
        moved = False
        while self.coordinator_worker.step(0.0):
            moved = True
        return moved

    def _feed(self, party: _Party) -> None:
        room = AHEAD * (party.role.steps.in_flight or _LARGEST_BATCH)
        waiting = int(party.role.steps.in_flight is not None) * int(self.figure(party.worker, "waiting_samples"))
        count = max(0, room - waiting) if self.arrivals is None else self.arrivals
        chosen = party.order[party.written : party.written + count]
        party.written += len(chosen)
        rows = party.inputs[chosen].tolist()
        self.bus.write(
            [
                Outgoing(f"samples-{party.name}", str(one).encode(), self._encode({"x": row}))
                for one, row in zip(chosen, rows, strict=True)
            ]
        )


def auc(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """The share of pairs of a label 1 and a label 0 that the scores put in order, ties counting half.

    >>> auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1]))
    0.75
    """
    order = np.argsort(scores, kind="stable")
    sorted_scores = scores[order]
    starts = np.flatnonzero(np.r_[True, sorted_scores[1:] != sorted_scores[:-1]])
    ends = np.r_[starts[1:], len(scores)]
    ranks = np.empty(len(scores))
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    ones = labels == 1
    positive, negative = int(ones.sum()), int((~ones).sum())
    if not positive or not negative:
        return float("nan")
    return float((ranks[ones].sum() - positive * (positive + 1) / 2) / (positive * negative))

