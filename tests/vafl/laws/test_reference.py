"""VAFL's coordinator, which takes messages in stretches, against one that takes them one by one, on random
streams.

Not compared: noise on labels, several partitions, single precision, parties that fall silent for good.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import msgspec
import numpy as np
import pytest
from vafl.laws.reference import COUNTS, Reference, Said, Shown
from vafl.makers import Alignment, Steps, make_coordinator
from vafl.unit.test_conversations import figures

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.heads import (
    LOGISTIC,
    SQUARE,
    Head,
    NetworkHead,
    OutputLoss,
    SumHead,
    softmax_loss,
)
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import REPLY, Embedding, Prediction

SEEDS = range(28)
CLASSES = 3
# Loss, and the hidden units of the head; None: the head is the sum.
KINDS: tuple[tuple[OutputLoss, tuple[int, ...] | None], ...] = (
    (SQUARE, None),
    (LOGISTIC, None),
    (softmax_loss(CLASSES), None),
    (LOGISTIC, ()),
    (SQUARE, (4,)),
    (softmax_loss(CLASSES), ()),
)


@dataclass(frozen=True)
class Settings:
    """Of one federation, drawn."""

    parties: int
    size: int
    loss: OutputLoss
    hidden: tuple[int, ...] | None
    steps: Steps
    alignment: Alignment

    def head(self) -> Head:
        if self.hidden is None:
            return SumHead(np.float64)
        sizes = [self.parties * self.size, *self.hidden, self.loss.outputs]
        return NetworkHead(DenseNetwork(sizes, "tanh", dtype=np.float64))

    def coordinator(self) -> VaflCoordinator:
        role = make_coordinator(
            parties=[f"p{number}" for number in range(self.parties)],
            embedding_size=self.size,
            head=self.head(),
            loss=self.loss,
            steps=self.steps,
            alignment=self.alignment,
            seed=0,
            dtype=np.float64,
        )
        role.open(0)
        return role

    def reference(self) -> Reference:
        return Reference(
            self.parties, self.size, self.loss, self.head(), self.steps, self.alignment, np.float64
        )


def drawn_settings(draws: np.random.Generator) -> Settings:
    parties = int(draws.integers(1, 5))
    loss, hidden = KINDS[draws.integers(len(KINDS))]
    steps = Steps(
        optimiser=("sgd", "sgd-decay", "adagrad", "adam")[draws.integers(4)],
        learning_rate=0.1,
        batch_size=int(draws.integers(1, 9)),
        regularisation=float(draws.choice([0.0, 0.1])),
    )
    alignment = Alignment(
        quorum=int(draws.integers(1, parties + 1)),
        learning_quorum=None if draws.random() < 0.4 else int(draws.integers(1, parties + 1)),
        wait_for=int(draws.integers(1, draws.integers(1, parties + 1) + 1)),
        max_staleness=None if draws.random() < 0.2 else int(draws.integers(0, 4)),
        requests=int(draws.integers(0, 4)),
        reply_seconds=float(draws.choice([0.5, 2.0, 5.0, 30.0])),
        revise=bool(draws.random() < 0.6),
        expiry=float(draws.choice([5.0, 50.0, 1000.0])),
        limit=int(draws.choice([1, 3, 5, 10, 20, 1000, 1000, 1000])),
        keep=bool(draws.random() < 0.4),
    )
    size = loss.outputs if hidden is None else int(draws.integers(1, 4))
    return Settings(parties, size, loss, hidden, steps, alignment)


@dataclass
class Life:
    """What a party of the stream numbers its embeddings by. held_back: what comes later than others that were
    made after it."""

    epoch: int = 1
    sequence: int = 0
    version: int = 0
    held_back: list[Shown] = field(default_factory=list)


class Stream:
    """Random batches of embeddings and labels: bursts of one party, answers to requests, and what comes twice
    or late."""

    def __init__(self, draws: np.random.Generator, settings: Settings) -> None:
        self.draws, self.settings = draws, settings
        self.lives = [Life() for _ in range(settings.parties)]
        self.names = int(draws.choice([3, 8, 30, 100]))
        self.longest = int(draws.choice([3, 12, 60]))
        # Some parties show less than others.
        self.weights = draws.dirichlet(np.full(settings.parties, draws.choice([0.7, 10.0])))
        # The shares of labels, and of embeddings that a request is answered with.
        self.labels = float(draws.choice([0.15, 0.25, 0.5]))
        self.answers = float(draws.choice([0.03, 0.2, 0.5]))
        self.sent: list[Shown] = []
        self.asked: list[tuple[int, str]] = []

    def batch(self) -> Iterator[Shown | Label]:
        draws, party, labels = self.draws, 0, False
        bursts = draws.random() < 0.5
        for place in range(int(draws.integers(1, self.longest))):
            if not place or not bursts or draws.random() < 0.2:
                party = int(draws.choice(len(self.lives), p=self.weights))
                labels = bool(draws.random() < self.labels)
            name = f"e{draws.integers(self.names)}"
            if labels:
                classes = CLASSES if self.settings.loss.name == "softmax" else 2
                yield Label(name, name, float(draws.integers(classes)))
            elif self.sent and draws.random() < 0.05:
                yield self.sent[draws.integers(len(self.sent))]
            else:
                yield from self._embedding(party, name)

    def _embedding(self, party: int, name: str) -> Iterator[Shown]:
        draws = self.draws
        if self.asked and draws.random() < self.answers:
            party, name = self.asked.pop(draws.integers(len(self.asked)))
        life = self.lives[party]
        if life.held_back and draws.random() < 0.3:
            shown = life.held_back.pop(0)
        else:
            if draws.random() < 0.15:
                life.version += int(draws.integers(1, 4))
            if draws.random() < 0.004:
                self.lives[party] = life = Life(life.epoch + 1)
            life.sequence += 1
            shown = Shown(
                party, name, life.epoch, life.sequence, life.version, draws.normal(size=self.settings.size)
            )
            if draws.random() < 0.03 and len(life.held_back) < 3:
                life.held_back.append(shown)
                return
        self.sent = [*self.sent[-39:], shown]
        yield shown


def as_received(message: Shown | Label) -> Received:
    if isinstance(message, Label):
        return Received("labels", message, Record("labels", 0, 0, message.client.encode(), b""))
    numbers = message.epoch, message.sequence, message.version
    embedding = Embedding(VERSION, 0, message.entity, *numbers, encode_array(message.values))
    channel = f"embeddings/p{message.party}"
    return Received(channel, embedding, Record(channel, 0, 0, message.entity.encode(), b""))


def as_said(reply: Send | Rejection) -> Said:
    assert isinstance(reply, Send), reply
    if reply.channel == "predictions":
        prediction = msgspec.json.decode(reply.value, type=Prediction)
        values = tuple(np.ravel(prediction.prediction).tolist())
        return Said(None, prediction.entity, (prediction.embeddings, prediction.revision), values)
    answer = REPLY.decode(reply.value)
    party = int(reply.channel.removeprefix("gradients/p"))
    return Said(
        party, answer.entity, (answer.epoch, answer.sequence), tuple(np.frombuffer(answer.gradient).tolist())
    )


def without_values(said: Sequence[Said]) -> list[tuple[int | None, str, tuple[int, int], bool]]:
    return [(one.party, one.entity, one.numbers, one.is_request) for one in said]


def assert_same(got: Sequence[Said], expected: Sequence[Said]) -> None:
    """Every receiver gets the same, in an order that leaves its models the same: predictions, the gradients
    of each party, and all that one party hears of one entity. A request comes after everything else, or
    before an answer to the same.
    """
    choices: list[Callable[[Said], bool]] = [lambda one: one.party is None]
    for number in sorted({one.party for one in (*got, *expected) if one.party is not None}):
        choices.append(lambda one, number=number: one.party == number and not one.is_request)
    for pair in sorted({(one.party, one.entity) for one in (*got, *expected) if one.party is not None}):
        choices.append(lambda one, pair=pair: (one.party, one.entity) == pair)
    for chosen in choices:
        of_got, of_expected = list(filter(chosen, got)), list(filter(chosen, expected))
        assert without_values(of_got) == without_values(of_expected)
        for one, other in zip(of_got, of_expected, strict=True):
            np.testing.assert_allclose(one.values, other.values, rtol=1e-7, atol=1e-9)
    for place, one in enumerate(got):
        later = [other for other in got[place + 1 :] if not other.is_request]
        if one.is_request and later:
            assert (one.party, one.entity) in {(other.party, other.entity) for other in later}, (
                "a request goes out too early"
            )


class Comparison:
    """Both coordinators on one stream. happened: how often what, in all processes of the coordinator."""

    def __init__(self, seed: int) -> None:
        self.draws = np.random.default_rng(seed)
        self.settings = drawn_settings(self.draws)
        self.role, self.reference = self.settings.coordinator(), self.settings.reference()
        self.stream = Stream(self.draws, self.settings)
        self.restarts = self.draws.random() < 0.6
        self.state: OrderedDict[bytes, bytes] = OrderedDict()
        self.now = 100.0
        self.happened: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        draws = self.draws
        for _ in range(int(draws.integers(40, 80))):
            self.now += float(draws.choice([0.0, 0.1, 1.0, 5.0]))
            if draws.random() < 0.02:
                self.now -= 20.0
                self.happened["clock set back"] += 1
                self.tick()
            self.take_batch()
            wake_at = self.role.wake_at
            if draws.random() < 0.3 or (wake_at is not None and wake_at <= self.now):
                self.tick()
            self.assert_same_state()
            if draws.random() < 0.5:
                self.write_state()
                if self.restarts and draws.random() < 0.6:
                    self.restart()
        self.happened.update(self.reference.counts)
        return self.happened

    def take_batch(self) -> None:
        batch, expected = [], []
        for message in self.stream.batch():
            batch.append(as_received(message))
            if isinstance(message, Label):
                expected += self.reference.label(message.client, message.label, self.now)
            else:
                expected += self.reference.embedding(message, self.now)
        if batch:
            self.compare(batch, expected)

    def tick(self) -> None:
        self.compare([], self.reference.tick(self.now))

    def compare(self, batch: list[Received], expected: list[Said]) -> None:
        got = [as_said(reply) for reply in self.role.receive(batch, self.now)]
        assert_same(got, expected)
        self.stream.asked += [
            (one.party, one.entity) for one in got if one.party is not None and one.is_request
        ]
        self.stream.asked = self.stream.asked[-20:]
        places = [place for place, one in enumerate(got) if one.is_request]
        self.happened["answers that follow a request"] += sum(
            not one.is_request for one in got[min(places, default=len(got)) :]
        )

    def assert_same_state(self) -> None:
        reference, found = self.reference, figures(self.role)
        assert {name: found[name] for name in COUNTS} == reference.counts
        assert found["entities"] == len(reference.entities)
        assert found["staleness_largest"] == max(reference.ages, default=0)
        mean = np.mean(reference.ages) if reference.ages else 0.0
        assert found["staleness_steps"] / max(found["aged_embeddings"], 1) == pytest.approx(mean)
        if reference.losses:
            assert found["loss_windowed"] == pytest.approx(np.mean(reference.losses[-1000:]))
            if self.settings.loss.name == "square":
                assert found["rmse_windowed"] == pytest.approx(np.mean(reference.losses[-1000:]) ** 0.5)
        np.testing.assert_allclose(self.role.parameters(0), reference.parameters, rtol=1e-7)
        means = [party.mean for party in reference.parties]
        np.testing.assert_allclose(self.role.mean_embeddings(0), means, rtol=1e-7, atol=1e-12)
        if self.settings.alignment.max_staleness is not None:
            assert found["staleness_largest"] <= self.settings.alignment.max_staleness

    def write_state(self) -> None:
        for change in self.role.changed_state():
            self.state.pop(change.key, None)
            if change.value is not None:
                self.state[change.key] = change.value
        names = [key.removeprefix(b"entity/").decode() for key in self.state if key.startswith(b"entity/")]
        assert names == list(self.reference.entities)

    def restart(self) -> None:
        """As a new process does, at times with a lower limit."""
        self.happened.update(self.reference.counts)
        self.happened["restarts"] += 1
        limit = self.settings.alignment.limit
        if limit > 1 and self.draws.random() < 0.1:
            limit = int(self.draws.integers(1, min(limit, len(self.reference.entities) + 2)))
            self.happened["entities above a lowered limit"] += max(0, len(self.reference.entities) - limit)
            self.settings = replace(self.settings, alignment=replace(self.settings.alignment, limit=limit))
            self.reference.alignment = self.settings.alignment
        self.reference.begin_measuring()
        self.role = self.settings.coordinator()
        for key, value in self.state.items():
            self.role.restore(StateChange("state", 0, key, value))
        if self.draws.random() < 0.5:
            self.tick()


@cache
def happened(seed: int) -> Counter[str]:
    return Comparison(seed).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_stretches_are_worth_messages_one_by_one(seed: int) -> None:
    """Protects everything that the coordinator says: whatever comes together in a batch, and wherever it was
    restarted, it gives the predictions, gradients, requests, counts and models of one that takes a message at
    a time.
    """
    happened(seed)


def test_the_streams_reach_every_rule() -> None:
    """Protects the comparison from having nothing to compare: all that is counted happens, and all that a
    rule is about."""
    total: Counter[str] = sum((happened(seed) for seed in SEEDS), Counter())
    rules = ("restarts", "clock set back", "entities above a lowered limit", "answers that follow a request")
    assert {name: total[name] for name in (*COUNTS, *rules) if total[name] < 10} == {}
