"""A vertical federation on the memory bus: a coordinator and parties with delays by a virtual clock."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.seeding import rng_for
from streamfl.encoding.wire import record_size
from streamfl.runtime.bus import Polled
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.worker import Worker
from streamfl.simulation.parties import Delay
from streamfl.simulation.vertical.federation import VirtualFederation
from streamfl.simulation.vertical.figures import VerticalFigures, class_figures, number_figures
from streamfl.simulation.vertical.members import HEAD
from streamfl.vafl.config import COORDINATOR, VaflSettings
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import Prediction
from streamfl.vafl.metrics import CoordinatorMetrics, PartyMetrics
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.tools.simulated_members import BETWEEN, members

__all__ = ["VerticalFederation"]

# Unread samples kept for a party, in multiples of the number that it takes at once.
AHEAD = 4
_LARGEST_BATCH = 4000


class _Network(MemoryBus):
    """A bus with delays. ``arrived``: by topic, the offset before which records can be read; other topics can
    be read whole."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.arrived: dict[str, int] = {}

    @property
    def session_type(self) -> type[MemorySession]:
        return _NetworkSession

    def end(self, topic: str) -> int:
        """The offset after the last record of a topic with one partition."""
        return self._log(topic, 0).end


class _NetworkSession(MemorySession):
    def _take_records(self, polled: Polled, max_records: int) -> None:
        taken = polled.records
        assert isinstance(self._bus, _Network)
        for place, position in self._positions.items():
            room = min(
                max_records - len(taken),
                self._bus.arrived.get(place[0], self._bus._log(*place).end) - position,
            )
            if place in self._paused or room <= 0:
                continue
            records = self._bus._log(*place).since(position, room)
            self._positions[place] = position + len(records)
            taken += records


@dataclass
class _SimulatedParty:
    """``turn``: when its last turn was. ``next``: when its next turn is; inf: it sleeps until something comes
    for it.

    replies: pairs of a time and an offset: from that time on the party can read its gradients before that
    offset.
    """

    name: str
    worker: Worker
    delay: Delay
    generator: np.random.Generator
    turn: float
    next: float
    embeddings: str
    gradients: str
    order: list[int] = field(default_factory=list)
    written: int = 0
    idle: bool = False
    replies: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def role(self) -> VaflParty:
        return cast(VaflParty, self.worker.role)


class VerticalFederation(VirtualFederation[VaflSettings, _Network]):
    """A federation of one partition, with every role in its own worker.

    settings: of any member; a member's own sections are filled in here.
    inputs: by party, in the order of federation.parties, (entities, its features).
    labels: (entities,).
    arrivals: number of entities that reach a party between two of its uploads; None: as many as it takes.
    network_delay: virtual seconds from a party to the coordinator, and the same back.
    coordinator_delay: virtual seconds that the coordinator takes for one upload; other uploads wait. Labels
    have no delay.
    answers_first: whether a party takes the gradients that have come before its next samples reach it, as
    with slow samples.
    own_start: whether members draw their first parameters from secrets of their own, as in a deployment.
    """

    prediction = Prediction

    def __init__(
        self,
        settings: VaflSettings,
        inputs: Sequence[NDArray[Any]],
        labels: NDArray[Any],
        *,
        delays: Sequence[Delay] = (),
        network_delay: float = 0.0,
        coordinator_delay: float = 0.0,
        arrivals: int | None = None,
        answers_first: bool = False,
        own_start: bool = False,
    ) -> None:
        if not own_start:
            # So that others can compute the same figures.
            settings = settings.model_copy(
                update={"learning": settings.learning.model_copy(update={"seeded_start": True})}
            )
        super().__init__(settings, _Network, inputs, labels)
        self.arrivals = arrivals
        self.answers_first = answers_first
        self.labels_written: list[tuple[int, int]] = []
        self.network_delay = network_delay
        self.coordinator_delay = coordinator_delay
        federation = settings.federation
        for name, own in members(federation, self.columns).items():
            self.workers[name] = self._start(self.settings.model_copy(update=own))
        self.parties = []
        for name, delay in zip(
            federation.parties, delays or [Delay()] * len(federation.parties), strict=True
        ):
            draws = rng_for(federation.seed, "vertical", "delays", name)
            up, down = (f"{federation.name}.{name}.{way}" for way in BETWEEN)
            self.parties.append(
                _SimulatedParty(name, self.workers[name], delay, draws, self.now, self.now, up, down)
            )
        self.bus.arrived = {
            topic: 0 for party in self.parties for topic in (party.embeddings, party.gradients)
        }
        # Turns of parties; a turn is void if its time is not its party's ``next``.
        self._turns = [(self.now, number) for number in range(len(self.parties))]
        # In order of time: when the coordinator has taken an upload, the party's number, and the offset after
        # the upload.
        self._uploads: deque[tuple[float, int, int]] = deque()
        self._free_at = self._heard_at = self.now
        self._last_turn = (-math.inf, 0)

    @property
    def coordinator(self) -> VaflCoordinator:
        return cast(VaflCoordinator, self.workers[HEAD].role)

    @property
    def seconds(self) -> float:
        """Virtual seconds since the start."""
        return self.now - self.begin

    @property
    def parameters(self) -> dict[str, NDArray[Any]]:
        """Copies of theta_m by the party's name, and of theta_0 under the coordinator's kind."""
        roles = {party.name: party.role for party in self.parties}
        found = {name: role.parameters(0) for name, role in roles.items()}
        return {**found, COORDINATOR: self.coordinator.parameters(0)}

    def replay(self, orders: Sequence[Sequence[int]]) -> None:
        """Let each party send its entities in this order, after earlier orders."""
        for number, (party, order) in enumerate(zip(self.parties, orders, strict=True)):
            party.order += list(order)
            self._wake(number, self.now)

    def write_labels(self, entities: Sequence[int]) -> None:
        """Write these entities' labels, and let the coordinator take them."""
        taken = int(self.figure(HEAD, CoordinatorMetrics.embeddings))
        self.labels_written += [(one, taken) for one in entities]
        super().write_labels(entities)
        self._coordinate()

    def run(self, seconds: float = math.inf, watch: Callable[[], bool] | None = None) -> None:
        """Run for this many virtual seconds, until nothing moves any more, or until ``watch`` returns True
        after a turn."""
        until = self.now + seconds
        while True:
            coordinators, turns = self._next_events()
            when = min(coordinators, turns)
            if when > until or when == math.inf or self._has_ended(when):
                break
            self.now = when
            if coordinators <= turns:
                self._coordinate()
                continue
            self._last_turn = heapq.heappop(self._turns)
            self._take_turn(self._last_turn[1])
            self._coordinate()
            if watch is not None and watch():
                return
        if seconds != math.inf:
            self.now = until

    def evaluate(
        self, inputs: Sequence[NDArray[Any]], labels: NDArray[Any], noisy: bool = False
    ) -> VerticalFigures:
        """Figures of the present model on other entities; ``noisy``: with the noise of sent embeddings."""
        return self._figures(self._embeddings(inputs, noisy), labels)

    def evaluate_absent(
        self, inputs: Sequence[NDArray[Any]], labels: NDArray[Any]
    ) -> dict[str, VerticalFigures]:
        """The same without one party, by the party's name: the coordinator takes its running mean instead."""
        embeddings = self._embeddings(inputs, noisy=False)
        found = {}
        for number, (party, mean) in enumerate(
            zip(self.parties, self.coordinator.mean_embeddings(0), strict=True)
        ):
            without = embeddings.copy()
            without[:, number] = mean
            found[party.name] = self._figures(without, labels)
        return found

    def _embeddings(self, inputs: Sequence[NDArray[Any]], noisy: bool) -> NDArray[Any]:
        """The embeddings of all parties, (entities, M, embedding size)."""
        columns = []
        for party, own in zip(self.parties, inputs, strict=True):
            embeddings = party.role.embed(0, own)
            if noisy and party.role.mechanism is not None:
                draws = rng_for(self.settings.federation.seed, "vertical", "test noise", party.name)
                noise = draws.normal(0.0, party.role.mechanism.embedding_noise, embeddings.shape)
                embeddings = (embeddings + noise).astype(embeddings.dtype)
            columns.append(embeddings)
        return np.stack(columns, axis=1)

    def _figures(self, embeddings: NDArray[Any], labels: NDArray[Any]) -> VerticalFigures:
        outputs = self.coordinator.evaluate(0, embeddings)
        loss = self.coordinator.given.loss
        value = float(loss.values(outputs, labels).mean())
        if loss.name == "square":
            return number_figures(self.seconds, outputs[:, 0], labels, value)
        if loss.name == "softmax":
            return class_figures(self.seconds, outputs.argmax(axis=1), labels, value)
        return class_figures(self.seconds, outputs[:, 0] > 0, labels, value, outputs[:, 0])

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

    # ---- turns

    def _next_events(self) -> tuple[float, float]:
        """When the coordinator next takes an upload or stops waiting, and when a party has its next turn;
        inf: never."""
        while self._turns and self._turns[0][0] != self.parties[self._turns[0][1]].next:
            heapq.heappop(self._turns)
        wake_at = self.coordinator.wake_at
        ticks = math.inf if wake_at is None or wake_at <= self._heard_at else wake_at
        uploads = self._uploads[0][0] if self._uploads else math.inf
        return max(self.now, min(uploads, ticks)), self._turns[0][0] if self._turns else math.inf

    def _has_ended(self, when: float) -> bool:
        """Whether nothing is under way, and all waiting of the coordinator ends before ``when``.

        Entities that expire later have no effect.
        """
        if self._uploads or not all(party.idle for party in self.parties):
            return False
        return when > self._moved + self.settings.alignment.reply_seconds

    def _take_turn(self, number: int) -> None:
        """Let a party take what has come for it, and send its answers."""
        party = self.parties[number]
        party.turn = self.now
        came = self.bus.arrived[party.gradients]
        while party.replies and party.replies[0][0] <= self.now:
            self.bus.arrived[party.gradients] = party.replies.popleft()[1]
        while self.answers_first and party.worker.step(0.0):
            pass
        fed = self._feed(party)
        sent = self.bus.end(party.embeddings)
        while party.worker.step(0.0):
            pass
        if (end := self.bus.end(party.embeddings)) > sent:
            self._free_at = max(self._free_at, self.now + self.network_delay) + self.coordinator_delay
            self._uploads.append((self._free_at, number, end))
        party.idle = not (fed or end > sent or self.bus.arrived[party.gradients] > came)
        if party.idle:
            self._sleep(number)
        else:
            self._moved = self.now
            self._schedule(number, self._turn_after(number, self.now))

    def _sleep(self, number: int) -> None:
        """Skip a party's turns until a message comes for it or its own wake_at is due: they would have no
        effect."""
        party = self.parties[number]
        party.next = math.inf
        wake_at = party.role.wake_at
        for when in (wake_at, party.replies[0][0] if party.replies else None):
            if when is not None:
                self._wake(number, when)

    def _wake(self, number: int, when: float) -> None:
        """Schedule the party's first possible turn from ``when`` on, unless it has an earlier one."""
        party = self.parties[number]
        if party.next > when:
            self._schedule(number, min(party.next, self._turn_after(number, when)))

    def _turn_after(self, number: int, when: float) -> float:
        """The time of the party's first turn that is not before ``when`` and not over."""
        party = self.parties[number]
        wait = party.delay.draw(party.generator)
        if party.delay.distribution != "constant":
            # An exponential wait has no memory: it has the same distribution from any moment on.
            return max(when, self.now) + wait
        turns = max(1, math.ceil((when - party.turn) / wait))
        while (turn := party.turn + turns * wait, number) <= max(self._last_turn, (self.now, -1)):
            turns += 1
        return turn

    def _schedule(self, number: int, when: float) -> None:
        # Strictly later than the last turn.
        party = self.parties[number]
        party.next = max(when, math.nextafter(party.turn, math.inf))
        heapq.heappush(self._turns, (party.next, number))

    def _coordinate(self) -> None:
        """Let the coordinator take what has come, upload by upload, and pass its time; send its replies to
        the parties."""
        self._heard_at = self.now
        while True:
            sent = [self.bus.end(party.gradients) for party in self.parties]
            due = bool(self._uploads) and self._uploads[0][0] <= self.now
            if due:
                _, number, end = self._uploads.popleft()
                self.bus.arrived[self.parties[number].embeddings] = end
                self._moved = self.now
            while self.workers[HEAD].step(0.0):
                pass
            for number, (party, before) in enumerate(zip(self.parties, sent, strict=True)):
                if (end := self.bus.end(party.gradients)) > before:
                    self._moved = self.now
                    party.replies.append((self.now + self.network_delay, end))
                    party.idle = False
                    self._wake(number, self.now + self.network_delay)
            if not due:
                return

    def _feed(self, party: _SimulatedParty) -> bool:
        """Write the party's next samples. Returns whether there were any."""
        in_flight = party.role.settings.learning.in_flight
        room = AHEAD * (in_flight or _LARGEST_BATCH)
        waiting = int(in_flight is not None) * int(self.figure(party.name, PartyMetrics.waiting_samples))
        count = max(0, room - waiting) if self.arrivals is None else self.arrivals
        chosen = party.order[party.written : party.written + count]
        party.written += len(chosen)
        self.write_columns(party.name, chosen)
        return bool(chosen)
