"""What the coordinator told of labels: lives of an entity, its ledger, its budget, and what it refuses to
forget."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from scipy.stats import norm
from vafl.makers import Alignment, make_coordinator

from streamfl.contract.role import BadRecord, ConfigurationError, Received, Record, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.learning.accuracy import area_under_curve
from streamfl.privacy.accountant import epsilon_of
from streamfl.privacy.ledger import Ledger
from streamfl.records.labels import Label
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.heads import LOGISTIC, SQUARE, OutputLoss, softmax_loss
from streamfl.vafl.messages import REPLY, Embedding

SECRET, PARTIES, NOISE = "5e" * 32, ("bank", "shop"), 1.0


class Coordinator:
    """A coordinator of partitions 0 and 1, embeddings of size 1 that are added up, and what it tells of
    labels."""

    def __init__(
        self,
        noise: float = NOISE,
        state: Iterable[StateChange] = (),
        loss: OutputLoss = LOGISTIC,
        **options: Any,
    ) -> None:
        alignment = options.pop("alignment", Alignment(quorum=1, learning_quorum=1, wait_for=1))
        options = {"noise_secret": SECRET, **options}
        self.role = make_coordinator(
            parties=options.pop("parties", PARTIES),
            embedding_size=loss.outputs,
            loss=loss,
            alignment=alignment,
            gradient_noise=noise,
            **options,
        )
        self.loss = loss
        self.log: dict[tuple[int, bytes], StateChange] = {}
        self.sequence = 0
        for partition in (0, 1):
            self.role.open(partition)
        for change in state:
            self.role.restore(change)

    @property
    def state(self) -> list[StateChange]:
        """The changelog after compaction."""
        for change in self.role.changed_state():
            self.log.pop((change.partition, change.key), None)
            if change.value is not None:
                self.log[change.partition, change.key] = change
        return list(self.log.values())

    def lives(
        self, entity: str, label: float = 1.0, partition: int = 0, parties: Iterable[str] = PARTIES
    ) -> list[float]:
        """A label, then embeddings of 0 by all: what each party is told of the first output, less what it can
        compute."""
        told = self.labelled(entity, label, partition)
        for party in parties:
            told += self.shown(party, entity, partition)
        return told

    def labelled(self, entity: str, label: float = 1.0, partition: int = 0) -> list[float]:
        return self._take("labels", Label(entity, entity, label), entity, partition)

    def shown(self, party: str, entity: str, partition: int = 0) -> list[float]:
        self.sequence += 1
        values = encode_array(np.zeros(self.loss.outputs))
        message = Embedding(VERSION, self.role.fingerprint, entity, 1, self.sequence, 0, values)
        return self._take(f"embeddings/{party}", message, entity, partition)

    def _take(self, channel: str, message: Any, entity: str, partition: int) -> list[float]:
        sends = self.role.receive(
            [Received(channel, message, Record(channel, partition, 0, entity.encode(), b""))], 0.0
        )
        known = self.loss.gradient(np.zeros((1, self.loss.outputs)), np.zeros(1))[0, 0]
        told = [one for one in sends if isinstance(one, Send) and one.channel.startswith("gradients/")]
        return [float(np.frombuffer(REPLY.decode(one.value).gradient)[0] - known) for one in told]

    def figure(self, name: str, reason: str | None = None) -> float:
        labels = () if reason is None else (("reason", reason),)
        (found,) = [one.value for one in self.role.measure() if one.name == name and one.labels == labels]
        return found


# ---- which telling has which noise


@pytest.mark.long
def test_an_entity_that_comes_back_has_noise_of_its_own() -> None:
    """Protects the label of a customer who was forgotten and is shown again: the same noise on both would
    tell whether the label is the same one, for certain. Of both tellings together no more is known than mu =
    sqrt(2) / noise allows.
    """
    coordinator, count = Coordinator(), 1500
    generator = np.random.default_rng(1)
    same = generator.integers(0, 2, count)
    first = [coordinator.lives(f"e{number}", 1.0)[0] for number in range(count)]
    again = [coordinator.lives(f"e{number}", float(one))[0] for number, one in enumerate(same)]
    # Whoever looks for the same noise finds nothing: the nearest pairs are of either kind.
    area = area_under_curve(-np.abs(np.subtract(first, again)), same)
    bound = norm.cdf(1 / NOISE / np.sqrt(2))
    print(f"same label or not, by the difference of two tellings: AUC {area:.3f}, of one label {bound:.3f}")
    assert area <= bound + 4 * np.sqrt(1 / (6 * count))
    assert abs(np.corrcoef(np.add(first, 1), again + same)[0, 1]) < 4 / np.sqrt(count)


def test_within_a_life_the_noise_is_one() -> None:
    """Protects from averaging: parties that are told one after the other, and again after a restart, are told
    the same."""
    alignment = Alignment(quorum=1, learning_quorum=1, wait_for=1, keep=True)
    coordinator = Coordinator(alignment=alignment)
    told = coordinator.lives("ann")
    later = Coordinator(state=coordinator.state, alignment=alignment)
    later.sequence = coordinator.sequence
    told += later.shown("bank", "ann") + later.shown("shop", "ann")
    assert len(told) == 4
    assert len(set(told)) == 1
    assert later.figure("label_mu") == 1.0


@pytest.mark.parametrize("what", ["fingerprint", "partition", "entity", "label", "secret", "noise", "loss"])
def test_noise_is_named_by_all_that_it_belongs_to(what: str) -> None:
    """Protects labels of two federations with one secret, of two partitions, and whatever else might meet the
    same noise."""

    def noise(other: bool) -> float:
        other_than = what if other else ""
        strength = 2.0 if other_than == "noise" else NOISE
        coordinator = Coordinator(
            strength,
            fingerprint=int(other_than == "fingerprint"),
            noise_secret="a5" * 32 if other_than == "secret" else SECRET,
            loss=softmax_loss(2) if other_than == "loss" else LOGISTIC,
        )
        label = 0.0 if other_than == "label" else 1.0
        (told, *_) = coordinator.lives(
            "bob" if other_than == "entity" else "ann", label, partition=int(other_than == "partition")
        )
        part = {"loss": 1.0}.get(other_than, -label)
        return (told - part) / strength

    assert abs(noise(True) - noise(False)) > 1e-3


@pytest.mark.parametrize("change", [{"noise": 2.0}, {"noise_secret": "a5" * 32}])
def test_another_noise_within_a_life_is_another_telling(change: dict[str, Any]) -> None:
    """Protects from a restart with other settings between two parties' gradients: the second has other noise,
    and counts."""
    before = Coordinator(alignment=Alignment(quorum=1, learning_quorum=1))
    before.labelled("ann")
    (first,) = before.shown("bank", "ann")
    after = Coordinator(state=before.state, **change)
    (second,) = after.shown("shop", "ann")
    assert abs(first - second) > 1e-3
    price = 1 / change.get("noise", NOISE) ** 2
    assert after.figure("label_mu") == pytest.approx(math.sqrt(1 + price))


# ---- what it costs


@pytest.mark.parametrize(
    ("loss", "mu"),
    [(LOGISTIC, 1.0), (softmax_loss(4), math.sqrt(2)), (SQUARE, 2.0)],
    ids=["logistic", "softmax", "square"],
)
def test_mu_of_a_label_is_what_two_labels_differ_by(loss: OutputLoss, mu: float) -> None:
    """Protects the figure: against the largest distance of gradients of any two labels, taken from the loss
    itself."""
    labels = np.linspace(0, 1, 21) if loss.name == "square" else np.arange(max(2, loss.outputs)).astype(float)
    outputs = np.random.default_rng(3).normal(size=(1, loss.outputs)).repeat(len(labels), axis=0)
    gradients = loss.gradient(outputs, labels)
    apart = np.linalg.norm(gradients[:, np.newaxis] - gradients[np.newaxis], axis=2).max()
    assert mu == pytest.approx(apart, rel=1e-12)
    coordinator = Coordinator(0.5, loss=loss)
    for lives in (1, 2, 3):
        coordinator.lives("ann")
        coordinator.lives(f"other-{lives}")
        assert coordinator.figure("label_mu") == pytest.approx(math.sqrt(lives) * mu / 0.5)
    assert coordinator.figure("label_epsilon") == pytest.approx(epsilon_of(math.sqrt(3) * mu / 0.5, 1e-5))


def test_a_label_whose_budget_is_spent_is_told_no_more() -> None:
    """Protects the promise: what would pass the budget is neither answered nor learnt from, whatever
    restarts; others are."""
    coordinator = Coordinator(budget=1.5)
    for expected in (2, 2, 0, 0):
        assert len(coordinator.lives("ann")) == expected
        later = Coordinator(budget=1.5, state=coordinator.state)
        later.sequence, later.log = coordinator.sequence, coordinator.log
        coordinator = later
        assert coordinator.figure("label_mu") <= 1.5
    assert len(coordinator.lives("bob")) == 2
    assert coordinator.figure("label_mu") == pytest.approx(math.sqrt(2))
    assert coordinator.figure("label_budget_mu") == 1.5


def test_what_is_withheld_is_counted_and_forgotten() -> None:
    """Protects the memory and the alerts: an entity whose label may not be told waits for nobody once all
    have shown it."""
    coordinator = Coordinator(budget=1.0)
    coordinator.lives("ann")
    assert coordinator.lives("ann") == []
    assert coordinator.figure("withheld_labels", "budget") == 2
    assert coordinator.figure("forgotten_entities", "withheld") == 1
    assert coordinator.figure("entities") == 0
    # One party shows it, and nobody else.
    coordinator.lives("ann", parties=("bank",))
    coordinator.role.receive([], 1e9)
    assert coordinator.figure("forgotten_entities", "withheld") == 2


def test_nobody_is_asked_for_what_would_not_be_learnt_from() -> None:
    """Protects parties' budgets: a newer embedding of an entity whose label may not be told would be shown
    for nothing."""
    alignment = Alignment(quorum=1, learning_quorum=1, max_staleness=0)
    coordinator = Coordinator(budget=1.0, alignment=alignment)
    coordinator.lives("ann")
    coordinator.shown("bank", "ann")
    newer = Embedding(VERSION, 0, "bob", 1, 99, 5, encode_array(np.zeros(1)))
    coordinator.role.receive([Received("embeddings/bank", newer, Record("x", 0, 0, b"bob", b""))], 0.0)
    assert coordinator.labelled("ann") == []
    assert coordinator.figure("requests") == 0


def test_the_ledger_of_labels_is_bounded() -> None:
    """Protects the memory, and the promise where it is full: of whom nothing can be remembered nothing is
    told."""
    coordinator = Coordinator(ledger_limit=2)
    assert [len(coordinator.lives(name)) for name in ("ann", "bob", "cid", "ann")] == [2, 2, 0, 2]
    assert coordinator.figure("withheld_labels", "ledger") == 2
    assert (
        len(
            [
                key
                for _, key in coordinator.log or [(0, change.key) for change in coordinator.state]
                if key.startswith(b"spent/")
            ]
        )
        == 2
    )


def test_without_noise_nothing_is_claimed() -> None:
    """Protects whoever reads the metrics: without noise there is no mu of labels, and no ledger."""
    coordinator = Coordinator(0.0)
    assert len(coordinator.lives("ann")) == 2
    assert not {one.name for one in coordinator.role.measure()} & {
        "label_mu",
        "label_epsilon",
        "label_budget_mu",
    }
    assert not [change for change in coordinator.state if change.key.startswith(b"spent/")]


# ---- promises across restarts


def test_a_coordinator_with_a_ledger_does_not_go_on_without_noise() -> None:
    """Protects labels whose budget is spent: a setting that is lost by mistake would tell them without any
    noise."""
    before = Coordinator()
    before.lives("ann")
    with pytest.raises(BadRecord, match=r"privacy\.reply_noise is missing.*privacy\.without_noise = true"):
        Coordinator(0.0, before.state)
    after = Coordinator(0.0, before.state, without_noise=True)
    assert [notice.reason for notice in after.role.notices()] == ["without_noise"]
    after.log, after.sequence = before.log, before.sequence
    assert after.lives("bob") == [-1.0, -1.0]
    with pytest.raises(BadRecord, match="released labels without noise before"):
        Coordinator(NOISE, after.state)


def test_no_mu_is_claimed_of_labels_that_were_told_without_noise() -> None:
    """Protects from a figure that leaves out what was told before; what was only predicted is no telling."""
    predicted = Coordinator(0.0)
    predicted.shown("bank", "ann")
    Coordinator(NOISE, predicted.state)
    told = Coordinator(0.0)
    told.lives("ann")
    with pytest.raises(BadRecord, match="start over with another federation"):
        Coordinator(NOISE, told.state)


def test_state_of_before_there_was_a_ledger_of_labels_is_read() -> None:
    """Protects an upgrade: what an older release remembered of entities and counters lacks the new fields,
    and a party's ledger had mu^2 alone.
    """
    before = Coordinator(alignment=Alignment(quorum=1, learning_quorum=1, wait_for=2))
    before.labelled("ann")
    before.shown("bank", "ann")
    fields = {b"task": 3, b"entity/ann": 8}
    old = [
        StateChange(
            one.channel,
            one.partition,
            one.key,
            msgspec.msgpack.encode(msgspec.msgpack.decode(one.value)[: fields[one.key]]),
        )
        if one.key in fields and one.value is not None
        else one
        for one in before.state
        if not one.key.startswith(b"spent/")
    ]
    after = Coordinator(state=old, alignment=Alignment(quorum=1, learning_quorum=1, wait_for=2))
    after.sequence = before.sequence
    assert len(after.shown("shop", "ann")) == 2
    ledger = Ledger(10, 4.0)
    ledger.restore(b"ann", msgspec.msgpack.encode(2.25))
    assert ledger.spent("ann") == 2.25
    assert (ledger.refusal("ann", 1.75), ledger.refusal("ann", 1.76), ledger.largest) == (
        None,
        "budget",
        2.25,
    )


# ---- settings


def settings(kind: str, **privacy: Any) -> VaflSettings:
    own: dict[str, Any] = (
        {"labels": {"topic": "outcomes", "label": "y"}}
        if kind == "vafl-coordinator"
        else {"party": {"name": "bank"}, "samples": {"topic": "accounts", "features": ["x"]}}
    )
    federation = {"name": "f", "parties": list(PARTIES), "embedding_size": 1}
    return VaflSettings.model_validate(
        {"federation": federation, "role": {"kind": kind}, "privacy": privacy, **own}
    )


def test_a_coordinators_budget_is_of_its_labels(tmp_path: Path) -> None:
    """Protects operators from a budget that nothing keeps: a coordinator's belongs to reply_noise, a party's
    to embeddings."""
    secret = str(tmp_path / "secret")
    assert (
        settings("vafl-coordinator", reply_noise=1.0, budget_mu=2.0, secret_file=secret).privacy.budget_mu
        == 2.0
    )
    with pytest.raises(ValueError, match="embedding_norm is missing"):
        settings("vafl-coordinator", budget_mu=2.0)
    with pytest.raises(ValueError, match="embedding_norm is missing"):
        settings("vafl-party", reply_noise=1.0, budget_mu=2.0, secret_file=secret)
    with pytest.raises(ValueError, match="without_noise = true has no meaning with reply_noise"):
        settings("vafl-coordinator", reply_noise=1.0, without_noise=True, secret_file=secret)


def test_a_budget_that_nothing_fits_is_refused_at_the_start(tmp_path: Path) -> None:
    """Protects operators from a member that is ready, and learns of nobody: the least that learning costs is
    said."""
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    noise = {
        "embedding_norm": 1.0,
        "embedding_noise": 4.0,
        "gradient_norm": 1.0,
        "gradient_noise": 4.0,
        "secret_file": str(path),
    }
    for kind, least, privacy in (
        ("vafl-party", 0.7071, noise),
        ("vafl-coordinator", 0.5, {"reply_noise": 2.0, "secret_file": str(path)}),
    ):
        build = find_kind(kind).build
        build(settings(kind, **privacy, budget_mu=least + 1e-3))
        with pytest.raises(
            ConfigurationError, match=rf"budget_mu = {least - 1e-3:g}: .* mu = {least}, so nothing would ever"
        ):
            build(settings(kind, **privacy, budget_mu=least - 1e-3))
