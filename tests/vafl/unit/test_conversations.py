"""VAFL's party and coordinator in conversations: what is predicted, learnt from, asked for, waited for and
forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from vafl.makers import Alignment, Steps, make_coordinator, make_party

from streamfl.contract.role import BadRecord, Received, Record, Rejection, Role, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.learning.optimisers import optimiser_named
from streamfl.privacy.accountant import epsilon_of
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.heads import LOGISTIC, NetworkHead, SumHead, softmax_loss
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Prediction, Reply
from streamfl.vafl.privacy import BoundedOutput, Mechanism

PARTIES = ("bank", "shop", "phone")


def received(channel: str, message: Any, key: str) -> Received:
    return Received(channel, message, Record(channel, 0, 0, key.encode(), b""))


def figures(role: Role) -> dict[str, float]:
    """Every measurement; of one with labels, each under name/label."""
    return {"/".join([one.name, *(value for _, value in one.labels)]): one.value for one in role.measure()}


class Coordinator:
    """A coordinator of one partition, linear outputs that are added up, the square loss, and what it says.

    Where no quorum of learning is given it is that of a prediction.
    """

    def __init__(self, fingerprint: int = 0, **alignment: Any) -> None:
        alignment = {"learning_quorum": alignment.get("quorum", 1), **alignment}
        self.role = make_coordinator(
            parties=PARTIES, alignment=Alignment(**alignment), fingerprint=fingerprint
        )
        self.role.open(0)
        self.sequences = dict.fromkeys(PARTIES, 0)

    def hears(
        self,
        party: str,
        entity: str,
        value: float,
        version: int = 0,
        now: float = 0.0,
        sequence: int | None = None,
    ) -> list[str]:
        self.sequences[party] = self.sequences[party] + 1 if sequence is None else sequence
        content = encode_array(np.array([value]))
        message = Embedding(VERSION, 0, entity, 1, self.sequences[party], version, content)
        return self.said([received(f"embeddings/{party}", message, entity)], now)

    def labelled(self, entity: str, label: float, now: float = 0.0) -> list[str]:
        return self.said([received("labels", Label(entity, entity, label), entity)], now)

    def tick(self, now: float) -> list[str]:
        return self.said([], now)

    def said(self, batch: Sequence[Received], now: float) -> list[str]:
        lines = []
        for reply in self.role.receive(batch, now):
            assert isinstance(reply, Send), reply
            if reply.channel == "predictions":
                one = msgspec.json.decode(reply.value, type=Prediction)
                lines.append(
                    f"{one.entity} is {one.prediction:g}, of {one.embeddings}, revision {one.revision}"
                )
            else:
                answer = REPLY.decode(reply.value)
                said = f"{np.frombuffer(answer.gradient)[0]:g}" if answer.gradient else "again"
                lines.append(
                    f"{reply.channel.removeprefix('gradients/')}: {answer.entity} {answer.sequence} {said}"
                )
        return lines


def test_a_head_learns_from_the_noisy_label_that_parties_are_told_of() -> None:
    """Protects labels from the head's own parameters, which everybody's gradients go through: they move along
    the same noise."""
    head = NetworkHead(DenseNetwork([1, 1], bias=False, dtype=np.float64))
    role = make_coordinator(
        parties=("bank",),
        head=head,
        loss=LOGISTIC,
        steps=Steps("sgd", 0.5, 1),
        gradient_noise=3.0,
        noise_secret="5e" * 32,
    )
    role.open(0)
    (before,) = role.parameters(0)
    role.receive([received("labels", Label("e", "e", 1.0), "e")], 0.0)
    message = Embedding(VERSION, 0, "e", 1, 1, 0, encode_array(np.array([2.0])))
    said = [
        one for one in role.receive([received("embeddings/bank", message, "e")], 0.0) if isinstance(one, Send)
    ]
    told = np.frombuffer(REPLY.decode(said[-1].value).gradient)[0] / before
    assert abs(told - (1 / (1 + np.exp(-2.0 * before)) - 1)) > 1e-3
    assert role.parameters(0)[0] == pytest.approx(before - 0.5 * told * 2.0)


def test_state_of_another_federation_is_refused() -> None:
    """Protects models from being taken for somebody else's: parties in another order have other numbers."""
    coordinator = Coordinator(quorum=1)
    coordinator.hears("bank", "e", 1.0)
    party = Party()
    party.sees("e")
    for role, other in (
        (coordinator.role, Coordinator(fingerprint=1).role),
        (party.role, Party(fingerprint=1).role),
    ):
        (own,) = [change for change in role.changed_state() if change.key == b"task"]
        with pytest.raises(BadRecord, match="list of parties"):
            other.restore(own)


def test_an_entity_expires_by_its_last_message() -> None:
    """Protects entities whose parties and labels come one long after the other: each message begins the time
    anew, and those that nothing came of meanwhile go before.
    """
    coordinator = Coordinator(quorum=3, expiry=100.0, reply_seconds=1000.0)
    coordinator.hears("bank", "e", 1.0, now=0.0)
    coordinator.hears("bank", "alone", 1.0, now=1.0)
    coordinator.hears("shop", "e", 1.0, now=60.0)
    assert coordinator.role.wake_at == 101.0
    coordinator.tick(101.0)
    assert list(coordinator.role._tasks[0].entities.names) == ["e"]
    coordinator.labelled("e", 1.0, now=120.0)
    assert coordinator.role.wake_at == 220.0
    coordinator.tick(219.0)
    _, *answers = coordinator.hears("phone", "e", 1.0, now=219.5)
    assert answers == ["bank: e 1 4", "shop: e 1 4", "phone: e 1 4"]


def test_a_classifier_says_probabilities_and_counts_what_it_got_right() -> None:
    """Protects the figure that users look at: accuracy of predictions made before the label."""
    role = make_coordinator(
        parties=PARTIES, embedding_size=3, loss=softmax_loss(3), alignment=Alignment(quorum=1, keep=True)
    )
    role.open(0)
    for number, (values, label) in enumerate(
        (([0.0, 2.0, 0.0], 1.0), ([5.0, 2.0, 0.0], 2.0), ([5.0, 2.0, 1.0], 0.0))
    ):
        entity = f"e{number}"
        message = Embedding(VERSION, 0, entity, 1, number + 1, 0, encode_array(np.array(values)))
        (sent,) = role.receive([received("embeddings/bank", message, entity)], 0.0)
        assert isinstance(sent, Send)
        prediction = msgspec.json.decode(sent.value, type=Prediction).prediction
        assert np.allclose(prediction, np.exp(values) / np.exp(values).sum())
        role.receive([received("labels", Label(entity, entity, label), entity)], 0.0)
    # The largest output is the guess; the least would be right once.
    assert figures(role)["accuracy"] == pytest.approx(2 / 3)
    assert LOGISTIC.prediction(np.zeros((1, 1))).tolist() == [0.5]


class Party:
    """A party of one partition with one weight, and what it says."""

    def __init__(self, mechanism: Mechanism | None = None, steps: Steps | None = None, **bounds: Any) -> None:
        network: Any = DenseNetwork([1, 1], bias=False, dtype=np.float64)
        self.role = make_party(
            name="bank",
            function=network
            if mechanism is None
            else BoundedOutput(network, mechanism.embedding_norm, normalise=False),
            inputs=1,
            embedding_size=1,
            steps=steps or Steps("sgd", 1.0, 1),
            seed=0,
            mechanism=mechanism,
            **bounds,
        )
        self.role.open(0)

    def sees(self, entity: str, value: float = 1.0, now: float = 0.0) -> list[tuple[str, int, float]]:
        return self.said([received("samples", Sample(entity, "s", (value,), None), entity)], now)

    def answered(
        self, entity: str, sequence: int, gradient: float | None, now: float = 0.0
    ) -> list[tuple[str, int, float]]:
        content = b"" if gradient is None else encode_array(np.array([gradient]))
        return self.said(
            [received("gradients", Reply(VERSION, 0, entity, 0, sequence, content), entity)], now
        )

    def said(self, batch: Sequence[Received], now: float) -> list[tuple[str, int, float]]:
        lines = []
        for reply in self.role.receive(batch, now):
            assert isinstance(reply, Send), reply
            one = EMBEDDING.decode(reply.value)
            lines.append((one.entity, one.sequence, float(np.frombuffer(one.values)[0])))
        return lines

    @property
    def weight(self) -> float:
        return float(self.role.parameters(0)[0])


def test_a_party_learns_from_the_gradient_to_its_newest_embedding() -> None:
    """Protects learning from gradients of embeddings that are no longer there, and from learning one
    twice."""
    party = Party()
    assert party.sees("e", 2.0) == [("e", 1, 0.0)]
    assert party.sees("e", 3.0) == [("e", 2, 0.0)]
    assert party.answered("e", 1, 1.0) == []
    assert party.weight == 0.0
    party.answered("e", 2, 1.0)
    assert party.weight == -3.0
    party.answered("e", 2, 1.0)
    assert party.weight == -3.0
    found = figures(party.role)
    assert (found["ignored_replies/superseded"], found["ignored_replies/unknown"], found["entities"]) == (
        1,
        1,
        0,
    )


def test_a_party_that_is_asked_shows_the_entity_by_its_present_model() -> None:
    """Protects late labels: a new embedding comes from the features as they were and the model as it is."""
    party = Party()
    party.sees("late", 2.0)
    party.sees("e", 1.0)
    party.answered("e", 2, -0.5)
    assert party.answered("late", 1, None) == [("late", 3, 1.0)]
    party.answered("late", 3, 0.25)
    assert party.weight == 0.0


def test_no_more_are_on_their_way_than_may_be() -> None:
    """Protects synchronous learning and the memory: the next sample waits for the step, and the partition is
    read no further."""
    party = Party(steps=Steps("sgd", 1.0, 2, in_flight=2), waiting_limit=2)
    assert [len(party.sees(entity)) for entity in "abc"] == [1, 1, 0]
    assert list(party.role.full) == []
    party.sees("d")
    assert list(party.role.full) == [0]
    assert party.answered("a", 1, 1.0) == []
    assert [one[:2] for one in party.answered("b", 2, 1.0)] == [("c", 3), ("d", 4)]
    assert list(party.role.full) == []
    assert figures(party.role)["steps"] == 1


def test_a_gradient_goes_through_the_noise_that_its_embedding_had() -> None:
    """Protects learning with noise inside hidden layers: other noise would be the gradient of another
    embedding."""
    party = make_party(
        name="bank",
        function=DenseNetwork([1, 1, 1], "tanh", dtype=np.float64, perturbation=0.5),
        inputs=1,
        embedding_size=1,
        steps=Steps("sgd", 1.0, 1),
        seed=0,
        mechanism=Mechanism(1e6, 1e-9, None, None, None, "5e" * 32),
    )
    party.open(0)
    first, _, last, constant = party.parameters(0)
    (shown,) = party.receive([received("samples", Sample("e", "s", (2.0,), None), "e")], 0.0)
    assert isinstance(shown, Send)
    embedding = EMBEDDING.decode(shown.value)
    hidden = (np.frombuffer(embedding.values)[0] - constant) / last
    assert abs(hidden - np.tanh(2.0 * first)) > 1e-3
    reply = Reply(VERSION, 0, "e", embedding.epoch, embedding.sequence, encode_array(np.array([0.25])))
    party.receive([received("gradients", reply, "e")], 0.0)
    assert party.parameters(0)[2] == pytest.approx(last - 0.25 * hidden, abs=1e-6)
    assert party.parameters(0)[0] == pytest.approx(first - 0.25 * last * (1 - hidden**2) * 2.0, abs=1e-6)


@pytest.mark.parametrize(("first", "second"), [(1, 4), (2, 5), (1, 7)])
def test_gradients_that_wait_are_taken_back_whatever_commit_they_fell_into(first: int, second: int) -> None:
    """Protects restarts: a commit that empties the waiting gradients and leaves more than there were writes
    them in their order."""
    party = Party(steps=Steps("sgd", 0.1, 3))
    kept: dict[bytes, StateChange] = {}
    for number in range(first + second):
        party.sees(f"e{number}")
    for count in (first, second):
        for _ in range(count):
            entity, shown = next(iter(party.role._tasks[0].in_flight.items()))
            sequence = shown.sequence
            party.answered(entity, sequence, 1.0)
        for change in party.role.changed_state():
            kept.pop(change.key, None)
            kept[change.key] = change
    again = Party(steps=Steps("sgd", 0.1, 3))
    for change in kept.values():
        again.role.restore(change)
    assert again.role._tasks[0].model.pending == party.role._tasks[0].model.pending
    assert len(again.role._tasks[0].model.pending) == (first + second) % 3 > 0


def test_a_full_party_goes_on_reading_gradients() -> None:
    """Protects a party with a history to learn from: only gradients make room for the samples that wait."""
    settings = VaflSettings.model_validate(
        {
            "federation": {"name": "f", "seed": 1, "parties": ["bank", "shop"], "embedding_size": 1},
            "role": {"kind": "vafl-party"},
            "party": {"name": "bank"},
            "samples": {"topic": "accounts", "features": ["x"]},
        }
    )
    inputs = find_kind("vafl-party").channels(settings).inputs
    assert {channel: source.makes_room for channel, source in inputs.items()} == {
        "samples": False,
        "gradients": True,
    }


def test_a_party_forgets_by_age_and_by_number() -> None:
    """Protects the memory from entities that nobody answers."""
    party = Party(expiry=10.0, limit=2)
    for number, entity in enumerate("abc"):
        party.sees(entity, now=float(number))
    assert party.role.wake_at == 11.0
    party.role.receive([], 11.0)
    found = figures(party.role)
    assert (
        found["entities"],
        found["forgotten_entities/displaced"],
        found["forgotten_entities/expired"],
    ) == (1, 1, 1)


def test_a_step_into_infinity_is_not_taken() -> None:
    """Protects the model from one gradient that is too large for it."""
    party = Party(steps=Steps("sgd", 1e300, 1))
    party.sees("e", 1e9)
    party.answered("e", 1, 1e9)
    assert party.weight == 0.0
    assert figures(party.role)["refused_steps"] == 1


MECHANISM = Mechanism(
    embedding_norm=1.0,
    embedding_noise=4.0,
    gradient_norm=1.0,
    gradient_noise=4.0,
    budget=1.0,
    secret="0" * 64,
)


def test_an_entity_whose_budget_is_spent_is_shown_no_more() -> None:
    """Protects the promise to the people behind the entities: mu = sqrt(k (2C/c)^2 + j (2/sigma)^2) never
    exceeds the budget."""
    party = Party(MECHANISM)
    for sequence in (1, 2):
        assert len(party.sees("e")) == 1
        party.answered("e", sequence, 1.0)
    # Two embeddings and two steps at (1/2)^2 each are the whole of mu = 1.
    assert figures(party.role)["privacy_mu"] == 1.0
    assert party.sees("e") == []
    found = figures(party.role)
    assert (found["withheld_embeddings/budget"], found["privacy_mu"]) == (1, 1.0)
    assert found["privacy_epsilon"] == pytest.approx(epsilon_of(1.0, 1e-5))
    assert len(party.sees("other")) == 1


def test_what_cannot_be_counted_is_not_shown() -> None:
    """Protects the promise where the memory of what was released is full."""
    party = Party(MECHANISM, ledger_limit=1)
    assert len(party.sees("a")) == 1
    assert party.sees("b") == []
    assert figures(party.role)["withheld_embeddings/ledger"] == 1


def test_other_strengths_have_other_noise() -> None:
    """Protects embeddings and steps from who hears them twice, before and after a setting was changed: one
    noise in two strengths is two equations for two unknowns.
    """
    strengths = [(4.0, 1.0, 4.0), (8.0, 1.0, 4.0), (4.0, 2.0, 4.0), (4.0, 1.0, 8.0)]
    shown, stepped = [], []
    for noise, norm, steps in strengths:
        party = Party(Mechanism(1.0, noise, norm, steps, None, "5e" * 32))
        ((_, sequence, value),) = party.sees("e")
        # The model begins at 0: what is shown is noise alone.
        shown.append(value / noise)
        party.answered("e", sequence, 0.0)
        stepped.append(party.weight / (steps * norm))
    for drawn in (shown, stepped):
        assert min(abs(one - other) for place, one in enumerate(drawn) for other in drawn[:place]) > 1e-3


def test_optimisers_are_what_their_papers_say() -> None:
    """Protects every figure: three steps of each, against the equations on plain numbers."""
    gradients = [0.5, -2.0, 1.0]
    expected: dict[str, float] = {"sgd": 0.0, "sgd-decay": 0.0, "adagrad": 0.0, "adam": 0.0}
    squares = mean = square = 0.0
    for number, gradient in enumerate(gradients, 1):
        expected["sgd"] -= 0.1 * gradient
        expected["sgd-decay"] -= 0.1 / number * gradient
        squares += gradient**2
        expected["adagrad"] -= 0.1 * gradient / (1e-8 + squares**0.5)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        expected["adam"] -= 0.1 * (mean / (1 - 0.9**number)) / ((square / (1 - 0.999**number)) ** 0.5 + 1e-8)
    for name, value in expected.items():
        parameters = np.zeros(1)
        optimiser = optimiser_named(name, 0.1, 1)  # type: ignore[arg-type]
        for number, gradient in enumerate(gradients, 1):
            optimiser.step(parameters, np.array([gradient]), number)
        assert parameters[0] == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("name", ["sgd", "sgd-decay", "adagrad", "adam"])
def test_an_optimiser_steps_rows_as_if_each_were_alone(name: Any) -> None:
    """Protects whoever steps some rows of a table: the others, and what is remembered of them, stay as they
    are."""
    generator = np.random.default_rng(2)
    together, alone = optimiser_named(name, 0.1, (3, 4)), [optimiser_named(name, 0.1, 4) for _ in range(3)]
    table, rows = np.zeros((3, 4)), [np.zeros(4) for _ in range(3)]
    for number in range(1, 8):
        chosen = generator.permutation(3)[: 1 + number % 3]
        gradients = generator.normal(size=(len(chosen), 4))
        together.step(table, gradients, number, chosen)
        for row, gradient in zip(chosen.tolist(), gradients, strict=True):
            alone[row].step(rows[row], gradient, number)
        np.testing.assert_array_equal(table, rows)


def test_wrong_numbers_are_refused_and_those_beside_them_taken() -> None:
    """Protects a poll from one malformed message in it: numbers of all are checked together, and each is
    judged by itself."""
    coordinator, party = Coordinator(), Party()
    contents = [encode_array(np.array([value])) for value in (1.0, np.nan, 1e300, -np.inf, 2.0)]
    contents[1:1] = [b"", bytes(4), bytes(16)]
    embeddings, replies = [], []
    for number, content in enumerate(contents, 1):
        name = f"e{number}"
        party.sees(name)
        embeddings.append(
            received("embeddings/bank", Embedding(VERSION, 0, name, 1, number, 0, content), name)
        )
        replies.append(received("gradients", Reply(VERSION, 0, name, 0, number, content or bytes(9)), name))
    for role, batch in ((coordinator.role, embeddings), (party.role, replies)):
        refused = [one for one in role.receive(batch, 0.0) if isinstance(one, Rejection)]
        assert [one.error.reason for one in refused] == ["shape"] * 3 + ["not_finite"] * 3
        assert [one.received for one in refused] == batch[1:7]
    assert figures(coordinator.role)["embeddings"] == figures(party.role)["gradients"] == 2


def test_state_of_a_release_with_one_quorum_is_read() -> None:
    """Protects upgrades: an entity as the releases before remembered it, with an answer that had come, goes
    on."""
    coordinator = Coordinator(quorum=1, learning_quorum=2)
    content = encode_array(np.array([1.5]))
    entity = [0.0, 1.0, {0: [1, 1, 0, content, True, False, True, 0]}, 0, 0, None, None, 0]
    change = StateChange("state", 0, b"entity/e", msgspec.msgpack.encode(entity))
    coordinator.role.restore(change)
    assert coordinator.hears("shop", "e", 2.0) == ["e is 3.5, of 2, revision 0", "bank: e 1 5", "shop: e 1 5"]


def test_the_label_s_part_of_a_gradient_is_the_same_beside_any_output() -> None:
    """Protects what reply_noise hides: rounded beside an output that a party chose for it, a label could tell
    twice as much."""
    coordinator = make_coordinator(
        parties=PARTIES,
        head=SumHead(),
        alignment=Alignment(learning_quorum=1),
        dtype=np.float32,
        gradient_noise=2.0,
        noise_secret="5e" * 32,
    )
    coordinator.open(0)
    answers = {}
    for number in range(80):
        # The noise is the entity's and its label's: of a life of its own each, so that it can be shown again.
        entity, value, label = f"e{number // 4}", (0.0, 2.0**24 + 2)[number % 2], float(number // 2 % 2)
        embedding = Embedding(VERSION, 0, entity, number, 1, 0, encode_array(np.array([value], np.float32)))
        for message, channel in ((embedding, "embeddings/bank"), (Label(entity, entity, label), "labels")):
            for reply in coordinator.receive([received(channel, message, entity)], 0.0):
                assert isinstance(reply, Send)
                if reply.channel == "gradients/bank":
                    answers[entity, value, label] = float(
                        np.frombuffer(REPLY.decode(reply.value).gradient, "<f4")[0]
                    )
        coordinator.close(0)
        coordinator.open(0)
    assert len(answers) == 80
    for (entity, value, label), answer in answers.items():
        assert answer == float(np.float32(2 * value + answers[entity, 0.0, label]))


@pytest.mark.parametrize("restart", [False, True])
def test_a_party_is_heard_again_once_its_clock_was_set_right(restart: bool) -> None:
    """Protects a party whose clock was two days ahead: its embeddings were refused for ever. Nothing is
    counted twice."""
    now, ahead = 1e9, 1e9 + 2 * 86_400.0
    party, coordinator = Party(), Coordinator(quorum=1, wait_for=1)

    def shown(entity: str, at: float) -> Received:
        (sent,) = party.role.receive([received("samples", Sample(entity, "s", (1.0,), None), entity)], at)
        assert isinstance(sent, Send)
        record = Record("embeddings/bank", 0, 0, entity.encode(), sent.value, timestamp=now)
        return Received("embeddings/bank", EMBEDDING.decode(sent.value), record)

    early = [shown("e", ahead), shown("f", ahead)]
    (refused, _) = coordinator.role.receive(early, now)
    assert isinstance(refused, Rejection)
    assert refused.error.reason == "implausible"
    if restart:
        changes = list(party.role.changed_state())
        party = Party()
        for change in changes:
            party.role.restore(change)
    else:
        party.role.receive([], now)
    late = shown("g", now)
    assert (late.message.sequence, late.message.epoch <= now * 1e6) == (3, True)
    replies = [*coordinator.role.receive([late], now), *coordinator.role.receive([late], now)]
    assert not [reply for reply in replies if isinstance(reply, Rejection)]
    assert (
        figures(coordinator.role)["embeddings"],
        figures(coordinator.role)["ignored_embeddings/duplicate"],
    ) == (1, 1)
    # A coordinator whose clock was ahead as well has taken what was shown then.
    for one in (early[0], late, late, early[0]):
        answer = Reply(
            VERSION,
            0,
            one.message.entity,
            one.message.epoch,
            one.message.sequence,
            encode_array(np.array([0.5])),
        )
        party.role.receive([received("gradients", answer, one.message.entity)], now)
    assert figures(party.role)["gradients"] == 2
    changes = list(party.role.changed_state())
    assert {change.key for change in changes if change.value is not None} >= {b"task"}


@pytest.mark.parametrize("requests", [1, 2])
def test_an_answer_grows_old_as_any_embedding_does(requests: int) -> None:
    """Protects the bound D: an answer that waited for a slower party is asked for anew once it is too old,
    and not without end: who was asked ``requests`` times counts as absent, is told so by a last request that
    nobody waits for, and is counted."""
    coordinator = Coordinator(max_staleness=10, quorum=2, requests=requests)
    for entity, version in (("e", 0), ("f", 50)):
        coordinator.hears("bank", entity, 1.0, version)
        coordinator.hears("shop", entity, 2.0, version)
    assert coordinator.labelled("e", 0.0) == ["bank: e 1 again", "shop: e 1 again"]
    assert coordinator.hears("bank", "e", 3.0, version=50) == []
    coordinator.hears("bank", "g", 3.0, version=61)
    said = coordinator.hears("shop", "e", 2.0, version=50)
    if requests == 2:
        assert said == ["bank: e 3 again"]
        assert coordinator.hears("bank", "e", 5.0, version=61) == ["bank: e 5 14", "shop: e 3 14"]
    else:
        # bank is absent now, a quorum of two is waited for. Its mean is (1 + 1 + 3 + 3) / 4.
        assert said == ["bank: e 3 again"]
        assert coordinator.tick(9.9) == []
        assert coordinator.tick(10.0) == ["shop: e 3 8"]
    found = figures(coordinator.role)
    assert found["outdated_embeddings"] == 2 - requests
    assert found["learnt_below_quorum"] == 2 - requests
    assert found["silent_parties"] == 0


@pytest.mark.parametrize("requests", [0, 4])
def test_an_embedding_that_waited_in_vain_while_its_party_learnt_is_asked_for_anew_once(
    requests: int,
) -> None:
    """Protects a model whose history lies in another order at each party: hundreds of entities wait for each
    other's parties, and their gradients, all at the same parameters, threw it so far that every later entity
    was predicted as 0.96. Without requests nobody is asked, since a party that is asked beyond them forgets
    the entity."""
    coordinator = Coordinator(learning_quorum=2, requests=requests)
    coordinator.labelled("old", 0.0)
    coordinator.labelled("new", 0.0)
    coordinator.hears("bank", "old", 1.0, version=0)
    assert coordinator.hears("bank", "new", 1.0, version=3) == ["new is 1, of 1, revision 0"]
    if not requests:
        assert coordinator.tick(10.0) == ["bank: new 2 2", "bank: old 1 2"]
        return
    assert coordinator.tick(10.0) == ["bank: new 2 2", "bank: old 1 again"]
    coordinator.hears("bank", "other", 1.0, version=9, now=11.0)
    assert coordinator.hears("bank", "old", 3.0, version=3, now=11.0) == ["bank: old 4 6"]
