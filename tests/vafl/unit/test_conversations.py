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


def test_a_prediction_comes_with_the_quorum_and_again_with_every_further_embedding() -> None:
    """Protects predictions from waiting for late parties, and from staying worse than they could be."""
    coordinator = Coordinator(quorum=2)
    assert coordinator.hears("bank", "e", 1.0) == []
    # shop has shown nothing so far: its mean is 0.
    assert coordinator.hears("phone", "e", 2.0) == ["e is 3, of 2, revision 0"]
    assert coordinator.hears("shop", "e", 4.0) == ["e is 7, of 3, revision 1"]
    assert coordinator.labelled("e", 7.5) == ["bank: e 1 -1", "shop: e 1 -1", "phone: e 1 -1"]
    assert figures(coordinator.role)["loss_windowed"] == 0.25


def test_an_absent_party_is_replaced_by_its_mean() -> None:
    """Protects predictions with parties absent: what a party shows on average stands for what it does not."""
    coordinator = Coordinator(quorum=2, revise=False)
    for number, value in enumerate((3.0, 5.0)):
        coordinator.hears("shop", f"old-{number}", value)
    coordinator.hears("bank", "e", 1.0)
    assert coordinator.hears("phone", "e", 1.0) == ["e is 6, of 2, revision 0"]
    assert coordinator.hears("shop", "e", 9.0) == []


def test_a_mean_follows_a_party_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects predictions without a party from what its model said long ago: of very many embeddings only
    the newest count."""
    monkeypatch.setattr("streamfl.vafl.coordinator.parties.MEAN_OF", 2)
    coordinator = Coordinator(quorum=2, revise=False)
    for number, value in enumerate((0.0, 0.0, 0.0, 8.0, 8.0)):
        coordinator.hears("shop", f"old-{number}", value)
    coordinator.hears("bank", "e", 0.0)
    assert coordinator.hears("phone", "e", 0.0) == ["e is 6, of 2, revision 0"]


def test_an_embedding_of_an_earlier_life_is_asked_for_anew() -> None:
    """Protects learning from a party whose state was lost: its model began anew, whatever the number of its
    steps."""
    coordinator = Coordinator(quorum=1, max_staleness=100)
    coordinator.hears("bank", "e", 1.0)
    message = Embedding(VERSION, 0, "other", 2, 1, 0, encode_array(np.array([1.0])))
    coordinator.role.receive([received("embeddings/bank", message, "other")], 0.0)
    assert coordinator.labelled("e", 0.0) == ["bank: e 1 again"]


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


def test_the_heads_own_parameters_are_kept_small() -> None:
    """Protects learning.regularisation at the coordinator: theta_0 steps along d l / d theta_0 + lambda
    theta_0, by hand."""
    role = make_coordinator(
        parties=("bank",),
        head=NetworkHead(DenseNetwork([1, 1], bias=False, dtype=np.float64)),
        steps=Steps("sgd", 0.5, 1, regularisation=0.25),
    )
    role.open(0)
    (before,) = role.parameters(0)
    assert before != 0.0
    role.receive([received("labels", Label("e", "e", 1.0), "e")], 0.0)
    role.receive(
        [
            received(
                "embeddings/bank", Embedding(VERSION, 0, "e", 1, 1, 0, encode_array(np.array([2.0]))), "e"
            )
        ],
        0.0,
    )
    # (output - label)^2 has the slope 2 (output - label), and the output is 2 theta_0.
    expected = before - 0.5 * (2 * (2.0 * before - 1.0) * 2.0 + 0.25 * before)
    assert role.parameters(0)[0] == pytest.approx(expected, rel=1e-12)


def test_who_comes_after_the_label_gets_its_gradient_alone() -> None:
    """Protects learning from being stalled by a late party, and the late party from being left out."""
    coordinator = Coordinator(quorum=2)
    coordinator.hears("bank", "e", 1.0)
    coordinator.hears("shop", "e", 2.0)
    assert coordinator.labelled("e", 1.0) == ["bank: e 1 4", "shop: e 1 4"]
    assert coordinator.hears("phone", "e", 1.0) == ["phone: e 1 6"]
    # Everybody was answered: nothing of it is remembered.
    assert figures(coordinator.role)["entities"] == 0


def test_it_learns_once_so_many_are_new() -> None:
    """Protects the t-synchronous rule (algorithm 2): nobody is answered before t parties have shown the
    entity anew, and whoever comes after them, or was not there the last times, waits for nobody.
    """
    coordinator = Coordinator(quorum=1, wait_for=2, keep=True, revise=False)
    coordinator.labelled("e", 0.0)
    assert coordinator.hears("bank", "e", 1.0) == ["e is 1, of 1, revision 0"]
    assert coordinator.hears("bank", "e", 2.0) == []
    assert coordinator.hears("shop", "e", 1.0) == ["bank: e 2 6", "shop: e 1 6"]
    assert coordinator.hears("phone", "e", 1.0) == ["phone: e 1 8"]
    assert coordinator.hears("shop", "e", 3.0) == []
    assert coordinator.hears("bank", "e", 5.0) == ["bank: e 3 18", "shop: e 2 18"]
    assert coordinator.hears("phone", "e", 0.0) == ["phone: e 2 16"]
    assert coordinator.hears("phone", "e", 0.0) == []


def test_who_waits_for_others_is_not_forgotten_with_a_gradient_to_a_late_party() -> None:
    """Protects a party that shows an entity a second time: it goes on waiting for others when a late one gets
    its gradient."""
    coordinator = Coordinator(quorum=1, wait_for=2, revise=False)
    coordinator.labelled("e", 0.0)
    coordinator.hears("bank", "e", 1.0)
    assert coordinator.hears("shop", "e", 1.0) == ["bank: e 1 4", "shop: e 1 4"]
    assert coordinator.hears("bank", "e", 2.0) == []
    assert coordinator.hears("phone", "e", 1.0) == ["phone: e 1 8"]
    assert coordinator.hears("shop", "e", 3.0) == ["bank: e 2 12", "shop: e 2 12"]
    assert figures(coordinator.role)["entities"] == 0


def test_an_embedding_that_is_too_old_is_asked_for_anew() -> None:
    """Protects learning from labels that come late: what a model said long ago is no longer what it says."""
    coordinator = Coordinator(quorum=2, max_staleness=3)
    coordinator.hears("bank", "e", 1.0, version=0)
    coordinator.hears("shop", "e", 2.0, version=7)
    coordinator.hears("bank", "other", 0.0, version=4)
    coordinator.hears("shop", "other", 0.0, version=10)
    # Three steps are not too many, four are.
    assert coordinator.labelled("e", 0.0) == ["bank: e 1 again"]
    assert coordinator.hears("bank", "e", 5.0, version=5) == ["bank: e 3 14", "shop: e 1 14"]
    assert figures(coordinator.role)["requests"] == 1
    assert figures(coordinator.role)["staleness_largest"] == 3


def test_who_does_not_answer_counts_as_absent() -> None:
    """Protects the others from a party that died: its embedding is not waited for, and not used."""
    coordinator = Coordinator(quorum=2, max_staleness=0, reply_seconds=5.0)
    coordinator.hears("bank", "e", 1.0, version=0)
    coordinator.hears("shop", "e", 2.0, version=0)
    coordinator.hears("phone", "e", 3.0, version=0)
    coordinator.hears("bank", "other", 7.0, version=1)
    coordinator.hears("shop", "other", 0.0, version=1)
    assert coordinator.labelled("e", 0.0, now=10.0) == ["bank: e 1 again", "shop: e 1 again"]
    assert coordinator.role.wake_at == 15.0
    assert coordinator.hears("shop", "e", 2.5, version=1, now=12.0) == []
    assert coordinator.tick(14.9) == []
    # bank's mean so far is 4.
    assert coordinator.tick(15.0) == ["shop: e 3 19", "phone: e 1 19"]
    assert figures(coordinator.role)["silent_parties"] == 1


def test_one_partys_repeats_do_not_put_off_what_another_owes() -> None:
    """Protects the others from a party that is silent while somebody shows the entity again and again."""
    coordinator = Coordinator(quorum=2, max_staleness=0, reply_seconds=10.0, revise=False)
    coordinator.hears("bank", "e", 1.0, version=0)
    coordinator.hears("shop", "e", 2.0, version=0)
    coordinator.hears("bank", "other", 1.0, version=1)
    assert coordinator.labelled("e", 0.0, now=0.0) == ["bank: e 1 again"]
    assert coordinator.hears("shop", "e", 3.0, now=9.0) == []
    assert coordinator.role.wake_at == 10.0
    assert coordinator.hears("phone", "e", 1.0, now=9.5) == []
    # bank's mean is 1.
    assert coordinator.tick(10.0) == ["shop: e 2 10", "phone: e 1 10"]
    assert figures(coordinator.role)["silent_parties"] == 1


def test_whoever_is_asked_has_the_whole_time_to_answer() -> None:
    """Protects parties from being taken for silent at the moment in which they are asked, and what they
    showed from being lost."""
    coordinator = Coordinator(quorum=2, max_staleness=2, reply_seconds=10.0)
    coordinator.hears("bank", "e", 1.0, version=0)
    coordinator.hears("shop", "e", 2.0, version=0)
    coordinator.hears("phone", "e", 4.0, version=0)
    coordinator.hears("bank", "other", 1.0, version=5)
    assert coordinator.labelled("e", 0.0, now=0.0) == ["bank: e 1 again"]
    coordinator.hears("shop", "other", 2.0, version=5, now=1.0)
    assert coordinator.tick(10.0) == ["shop: e 1 again"]
    assert coordinator.role.wake_at == 20.0
    assert coordinator.hears("shop", "e", 2.0, version=5, now=11.0) == ["shop: e 3 14", "phone: e 1 14"]
    assert figures(coordinator.role)["silent_parties"] == 1


def test_who_has_its_gradient_is_not_asked_again() -> None:
    """Protects late parties from waiting for an answer that cannot come: a party forgets an entity with its
    gradient."""
    coordinator = Coordinator(quorum=1, max_staleness=2)
    coordinator.hears("bank", "e", 1.0, version=0)
    assert coordinator.labelled("e", 0.0) == ["bank: e 1 2"]
    coordinator.hears("bank", "other", 1.0, version=9)
    assert coordinator.hears("shop", "e", 1.0) == ["shop: e 1 4"]


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


def test_what_never_comes_is_forgotten_and_counted() -> None:
    """Protects the memory, and operators from not knowing: each way in which an entity comes to nothing has a
    figure."""
    coordinator = Coordinator(quorum=2, expiry=100.0)
    coordinator.hears("bank", "alone", 1.0, now=0.0)
    coordinator.hears("bank", "unlabelled", 1.0, now=1.0)
    coordinator.hears("shop", "unlabelled", 1.0, now=1.0)
    coordinator.labelled("unseen", 1.0, now=2.0)
    assert coordinator.role.wake_at == 100.0
    coordinator.tick(102.0)
    found = figures(coordinator.role)
    assert found["entities"] == 0
    assert {
        name: found[f"forgotten_entities/{name}"]
        for name in ("no_quorum", "no_label", "no_embedding", "displaced")
    } == {"no_quorum": 1, "no_label": 1, "no_embedding": 1, "displaced": 0}


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
    assert list(coordinator.role.snapshots()[0].entities) == ["e"]
    coordinator.labelled("e", 1.0, now=120.0)
    assert coordinator.role.wake_at == 220.0
    coordinator.tick(219.0)
    _, *answers = coordinator.hears("phone", "e", 1.0, now=219.5)
    assert answers == ["bank: e 1 4", "shop: e 1 4", "phone: e 1 4"]


def test_the_table_is_bounded() -> None:
    """Protects the memory from entities without end: the one heard of longest ago gives way."""
    coordinator = Coordinator(quorum=2, limit=2)
    for entity in ("a", "b", "a", "c"):
        coordinator.hears("bank", entity, 1.0)
    assert list(coordinator.role.snapshots()[0].entities) == ["a", "c"]
    assert figures(coordinator.role)["forgotten_entities/displaced"] == 1


def test_the_first_label_counts() -> None:
    """Protects from a label that comes twice, or is contradicted."""
    coordinator = Coordinator(quorum=1, keep=True)
    coordinator.hears("bank", "e", 1.0)
    assert coordinator.labelled("e", 1.0) == ["bank: e 1 0"]
    assert coordinator.labelled("e", 5.0) == []
    assert coordinator.hears("shop", "e", 1.0) == ["shop: e 1 2"]
    assert figures(coordinator.role)["duplicate_labels"] == 1


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
            entity, sequence = next(iter(party.role.snapshots()[0].in_flight.items()))
            party.answered(entity, sequence, 1.0)
        for change in party.role.changed_state():
            kept.pop(change.key, None)
            kept[change.key] = change
    again = Party(steps=Steps("sgd", 0.1, 3))
    for change in kept.values():
        again.role.restore(change)
    assert again.role.snapshots()[0].answered == party.role.snapshots()[0].answered
    assert len(again.role.snapshots()[0].answered) == (first + second) % 3 > 0


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


def test_without_noise_on_steps_the_figure_has_another_name() -> None:
    """Protects operators from taking for a guarantee what covers an entity's own embeddings only."""
    mechanism = Mechanism(1.0, 4.0, None, None, None, "0" * 64)
    party = Party(mechanism)
    party.sees("e")
    found = figures(party.role)
    assert found["privacy_mu_per_release"] == 0.5
    assert not {"privacy_mu", "privacy_epsilon"} & found.keys()


def test_noise_is_the_secrets_alone() -> None:
    """Protects embeddings: who knows everything but the secret cannot take the noise off; a repeated step
    makes the same noise."""
    values = [
        Party(Mechanism(1.0, 4.0, None, None, None, secret)).sees("e")[0][2]
        for secret in ("a" * 64, "b" * 64, "a" * 64)
    ]
    assert values[0] == values[2] != values[1]
    drawn = [
        Party(Mechanism(1.0, 4.0, None, None, None, f"{number}")).sees("e")[0][2] for number in range(400)
    ]
    assert np.std(drawn) == pytest.approx(4.0, rel=0.15)


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


def test_the_budget_is_shown_beside_what_is_spent_of_it() -> None:
    """Protects operators' alarms, which compare the two: the figure is the one that was set, and missing
    where none was."""
    budget = Mechanism(1.0, 4.0, 1.0, 4.0, 0.75, "0" * 64)
    assert figures(Party(budget).role)["privacy_budget_mu"] == 0.75
    assert "privacy_budget_mu" not in figures(Party(Mechanism(1.0, 4.0, 1.0, 4.0, None, "0" * 64)).role)


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


def test_rejections_name_the_sender() -> None:
    """Protects everybody from a forged reply: an entity is its key's alone."""
    party = Party()
    party.sees("e")
    message = Reply(VERSION, 0, "e", 0, 1, encode_array(np.array([1.0])))
    (rejection,) = party.role.receive([received("gradients", message, "other")], 0.0)
    assert isinstance(rejection, Rejection)
    assert rejection.error.reason == "forged"


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


def test_a_party_that_has_its_gradient_is_stood_for_by_its_mean_once_it_is_too_old() -> None:
    """Protects the bound D for all parties of a row: whoever has its gradient has forgotten the entity and is
    not asked; its embedding is used up to D steps, after that its mean takes its place, at once and counted.
    tau is of all that is used."""
    for steps, gradient in ((2, 6.0), (3, 14.0)):
        coordinator = Coordinator(quorum=1, max_staleness=2, keep=True)
        coordinator.labelled("e", 0.0)
        assert coordinator.hears("bank", "e", 1.0, version=0)[1:] == ["bank: e 1 2"]
        # bank's mean becomes 5.
        coordinator.hears("bank", "other", 9.0, version=steps)
        assert coordinator.hears("shop", "e", 2.0, version=0) == [f"shop: e 1 {gradient:g}"]
        found = figures(coordinator.role)
        assert found["outdated_embeddings"] == (steps > 2)
        assert found["staleness_largest"] == (2 if steps == 2 else 0)
        assert found["staleness_steps"] / max(found["aged_embeddings"], 1) == pytest.approx(
            2 / 3 if steps == 2 else 0.0
        )


def test_learning_waits_for_its_own_quorum_and_a_prediction_for_its_own() -> None:
    """Protects predictions from waiting for parties that only learning needs, and first steps from being
    taken against the mean of a party that is a moment late: all are waited for unless told otherwise, for
    ``reply_seconds``. Until then an entity is predicted again with each embedding, though its label is there,
    as in a history.
    """
    coordinator = Coordinator(quorum=1, learning_quorum=None, reply_seconds=10.0)
    assert coordinator.labelled("e", 1.0, now=0.0) == []
    assert coordinator.hears("bank", "e", 1.0, now=1.0) == ["e is 1, of 1, revision 0"]
    assert coordinator.hears("shop", "e", 2.0, now=2.0) == ["e is 3, of 2, revision 1"]
    learnt = ["bank: e 1 12", "shop: e 1 12", "phone: e 1 12"]
    assert coordinator.hears("phone", "e", 4.0, now=3.0) == ["e is 7, of 3, revision 2", *learnt]
    assert figures(coordinator.role)["entities"] == 0
    assert figures(coordinator.role)["learnt_below_quorum"] == 0


def test_an_entity_that_a_party_does_not_show_is_learnt_from_all_the_same() -> None:
    """Protects learning from a party that is away, or does not know everybody: after ``reply_seconds`` its
    mean stands for it, that is counted, and if it comes later it gets its gradient then, alone. Nothing is
    waited for before the label.
    """
    coordinator = Coordinator(quorum=1, learning_quorum=None, reply_seconds=10.0)
    coordinator.hears("phone", "other", 4.0)
    coordinator.hears("bank", "e", 1.0, now=1.0)
    coordinator.hears("shop", "e", 2.0, now=2.0)
    assert coordinator.tick(50.0) == []
    assert coordinator.labelled("e", 1.0, now=60.0) == []
    assert coordinator.role.wake_at == 70.0
    assert coordinator.tick(69.9) == []
    assert coordinator.tick(70.0) == ["bank: e 1 12", "shop: e 1 12"]
    assert figures(coordinator.role)["learnt_below_quorum"] == 1
    assert figures(coordinator.role)["silent_parties"] == 0
    assert coordinator.hears("phone", "e", 0.0, now=500.0) == ["phone: e 2 4"]
    assert figures(coordinator.role)["learnt_below_quorum"] == 1


def test_waiting_is_earned() -> None:
    """Protects learning from a party that is slow or gone: it is waited for once, not at every entity, and
    again as soon as it shows one in time, though that was learnt from already; what it shows too late does
    not count. A restart changes nothing."""
    coordinator = Coordinator(quorum=1, learning_quorum=None, reply_seconds=10.0, revise=False)

    def shown_by_others(entity: str, now: float) -> list[str]:
        coordinator.labelled(entity, 0.0, now)
        coordinator.hears("bank", entity, 0.0, now=now)
        return coordinator.hears("shop", entity, 0.0, now=now)

    assert shown_by_others("e", 0.0) == shown_by_others("f", 5.0) == []
    assert len(coordinator.tick(10.0)) == 2
    assert len(shown_by_others("g", 11.0)) == 2
    assert len(coordinator.tick(15.0)) == 2
    assert len(coordinator.hears("phone", "e", 0.0, now=21.0)) == 1
    changes = list(coordinator.role.changed_state())
    sequences = coordinator.sequences
    coordinator = Coordinator(quorum=1, learning_quorum=None, reply_seconds=10.0, revise=False)
    coordinator.sequences = sequences
    for change in changes:
        coordinator.role.restore(change)
    assert len(shown_by_others("h", 22.0)) == 2
    assert figures(coordinator.role)["learnt_below_quorum"] == 1
    # It keeps up again, though the others were first.
    assert len(coordinator.hears("phone", "h", 0.0, now=32.0)) == 1
    assert shown_by_others("i", 33.0) == []
    assert len(coordinator.hears("phone", "i", 0.0, now=34.0)) == 3


def test_an_unknown_entity_does_not_end_the_quorum() -> None:
    """Protects a newcomer's accuracy: one entity that a party does not know, and the party, though always a
    moment behind the others, is waited for at all that it knows.
    """
    coordinator = Coordinator(quorum=1, learning_quorum=None, reply_seconds=10.0)
    for number in range(30):
        name, now = f"e{number}", float(number)
        coordinator.labelled(name, 0.0, now)
        for party in ("bank", "shop"):
            coordinator.hears(party, name, 0.0, now=now)
        if number != 3:
            coordinator.hears("phone", name, 0.0, now=now + 0.5)
        coordinator.tick(now + 0.5)
    # The unknown one, and the next of which the party was not waited for.
    assert figures(coordinator.role)["learnt_below_quorum"] == 2


def test_gradients_to_a_party_precede_what_it_is_asked_for() -> None:
    """Protects the bound D: a party that is asked first shows an entity as it is before the steps of the same
    batch, and what it shows is older than anybody knows.
    """
    coordinator = Coordinator(quorum=1, learning_quorum=1, max_staleness=0)
    coordinator.hears("bank", "old", 1.0, version=0)
    for number in range(3):
        coordinator.hears("bank", f"new{number}", 1.0, version=5)
    names = ("old", "new0", "new1", "new2")
    told = coordinator.said([received("labels", Label(name, name, 0.0), name) for name in names], 0.0)
    assert told == ["bank: new0 2 2", "bank: new1 3 2", "bank: new2 4 2", "bank: old 1 again"]


def test_what_comes_late_makes_a_party_no_younger() -> None:
    """Protects the bound D from two writers of one party: an embedding below its latest number is as old as
    it says."""
    coordinator = Coordinator(quorum=1, learning_quorum=1, max_staleness=2)
    coordinator.labelled("e", 0.0)
    coordinator.hears("bank", "x", 0.0, sequence=10, version=10)
    assert coordinator.hears("bank", "e", 1.0, sequence=5, version=3) == [
        "e is 1, of 1, revision 0",
        "bank: e 5 again",
    ]
    coordinator.labelled("y", 0.0)
    assert coordinator.hears("bank", "y", 1.0, sequence=11, version=9)[-1].startswith("bank: y 11 ")
    assert figures(coordinator.role)["staleness_largest"] == 1


def test_the_time_of_the_quorum_begins_when_nothing_else_is_missing() -> None:
    """Protects ``wait_for`` from the end of the quorum's time: t new embeddings are awaited however long that
    takes."""
    coordinator = Coordinator(quorum=1, learning_quorum=None, wait_for=2, reply_seconds=10.0, revise=False)
    coordinator.labelled("e", 1.0)
    coordinator.hears("bank", "e", 1.0, now=0.0)
    assert coordinator.tick(100.0) == []
    assert coordinator.hears("shop", "e", 2.0, now=200.0) == []
    assert coordinator.tick(209.9) == []
    assert coordinator.tick(210.0) == ["bank: e 1 4", "shop: e 1 4"]


def test_state_of_a_release_with_one_quorum_is_read() -> None:
    """Protects upgrades: an entity as the releases before remembered it, with an answer that had come, goes
    on."""
    coordinator = Coordinator(quorum=1, learning_quorum=2)
    content = encode_array(np.array([1.5]))
    entity = [0.0, 1.0, {0: [1, 1, 0, content, True, False, True, 0]}, 0, 0, None, None, 0]
    change = StateChange("state", 0, b"entity/e", msgspec.msgpack.encode(entity))
    coordinator.role.restore(change)
    assert coordinator.hears("shop", "e", 2.0) == ["e is 3.5, of 2, revision 0", "bank: e 1 5", "shop: e 1 5"]


def test_a_clock_that_was_ahead_holds_nobody_up() -> None:
    """Protects from a clock that is set back: whoever was asked before counts as absent after reply_seconds,
    not in an hour."""
    coordinator = Coordinator(max_staleness=0, quorum=1, reply_seconds=10.0)
    coordinator.hears("bank", "e", 1.0, version=0, now=3600.0)
    coordinator.hears("shop", "e", 2.0, version=0, now=3600.0)
    coordinator.hears("bank", "f", 1.0, version=9, now=3600.0)
    assert coordinator.labelled("e", 1.0, now=3600.0) == ["bank: e 1 again"]
    assert coordinator.tick(0.0) == []
    assert coordinator.role.wake_at == 10.0
    assert len(coordinator.tick(10.0)) == 1


def test_a_message_after_the_clock_was_set_right_ends_no_wait_late() -> None:
    """Protects an entity that began to wait for its quorum by a clock that was ahead. A message that comes
    after the clock was set right, and before the next tick, gives the entity a right age: its wait has to
    become right too.
    """
    coordinator = Coordinator(quorum=1, learning_quorum=3, reply_seconds=10.0, revise=False)
    coordinator.labelled("e", 1.0, now=3600.0)
    coordinator.hears("bank", "e", 1.0, now=3600.0)
    assert coordinator.hears("shop", "e", 2.0, now=0.0) == []
    assert coordinator.tick(0.0) == []
    assert coordinator.role.wake_at == 10.0
    assert coordinator.tick(10.0) == ["bank: e 1 4", "shop: e 1 4"]


def test_who_was_asked_in_vain_is_as_old_after_a_restart_as_without() -> None:
    """Protects law 3 where time ends the asking: which entity is the oldest decides who makes room."""

    def remembered(restart: bool) -> list[str]:
        coordinator = Coordinator(max_staleness=0, quorum=1, reply_seconds=10.0, limit=3)
        changes: dict[bytes, StateChange] = {}

        def committed() -> None:
            for change in coordinator.role.changed_state():
                changes.pop(change.key, None)
                if change.value is not None:
                    changes[change.key] = change

        coordinator.hears("bank", "a", 1.0, version=0)
        coordinator.hears("bank", "x", 1.0, version=5)
        assert coordinator.labelled("a", 1.0) == ["bank: a 1 again"]
        committed()
        coordinator.hears("bank", "b", 1.0, version=5, now=5.0)
        committed()
        coordinator.tick(10.0)
        committed()
        if restart:
            coordinator = Coordinator(max_staleness=0, quorum=1, reply_seconds=10.0, limit=3)
            for change in changes.values():
                coordinator.role.restore(change)
        return list(coordinator.role.snapshots()[0].entities)

    assert remembered(restart=True) == remembered(restart=False) == ["x", "b", "a"]


def test_every_entity_that_is_forgotten_is_counted_once_by_why() -> None:
    """Protects the alerts: entities that were learnt from are no loss, and what was never learnt from is not
    hidden among them."""

    def forgotten(coordinator: Coordinator) -> dict[str, float]:
        counted = {
            name.partition("/")[2]: value
            for name, value in figures(coordinator.role).items()
            if name.startswith("forgotten")
        }
        return {reason: count for reason, count in counted.items() if count}

    crowded = Coordinator(limit=1)
    for number in range(3):
        crowded.hears("bank", f"e{number}", 1.0)
        crowded.labelled(f"e{number}", 1.0)
    crowded.labelled("f", 1.0)
    crowded.labelled("g", 1.0)
    assert forgotten(crowded) == {"learnt": 3, "displaced": 1}
    old = Coordinator(expiry=10.0, quorum=2)
    for party in ("bank", "shop"):
        old.hears(party, "learnt", 1.0)
        old.hears(party, "unlabelled", 1.0)
    old.labelled("learnt", 1.0)
    old.hears("bank", "alone", 1.0)
    old.labelled("unknown", 1.0)
    old.tick(10.0)
    assert forgotten(old) == {"learnt": 1, "no_label": 1, "no_quorum": 1, "no_embedding": 1}


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
