"""A step takes as many gradients as were under way, and a head's first steps take few entities."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from vafl.makers import Steps, make_coordinator, party_settings
from vafl.unit.test_conversations import Party, figures, received

from benchmarks.vafl.defaults import Quality, federation, pooled, tables
from streamfl.contract.role import StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.functions.heads import SQUARE, NetworkHead
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import Embedding
from streamfl.vafl.party.role import VaflParty
from streamfl.vafl.state import TASK

# Of the tables that parties are compared on.
ROWS = 450
SOON = Steps("sgd", 1.0, 4, grows=True)


def shows(party: Party, *names: str) -> None:
    for name in names:
        party.sees(name)


def steps(party: Party) -> int:
    return party.role._tasks[0].life.steps


def test_where_labels_come_at_once_each_makes_a_step() -> None:
    """Protects slow streams and small tables: 16 labels passed before anything was learnt, and each came 16
    steps late."""
    party = Party(steps=SOON)
    for number in range(1, 4):
        party.sees(f"e{number}")
        assert figures(party.role)["missing_entities"] == (number == 1)
        party.answered(f"e{number}", number, 0.5)
        assert (steps(party), party.weight) == (number, -0.5 * number)


@pytest.mark.parametrize("restart", [False, True])
def test_what_the_same_parameters_showed_makes_one_step(restart: bool) -> None:
    """Protects from steps that go the same way again: three gradients at one point would carry the model
    three times as far."""
    party = Party(steps=SOON)
    kept: dict[bytes, StateChange] = {}

    def commits() -> None:
        kept.update({change.key: change for change in party.role.changed_state()})

    party.sees("first")
    party.answered("first", 1, 0.0)
    shows(party, "a", "b", "c")
    commits()
    party.answered("a", 2, 0.3)
    party.answered("b", 3, 0.6)
    commits()
    if restart:
        party = Party(steps=SOON)
        for change in kept.values():
            party.role.restore(change)
    assert steps(party) == 1
    party.answered("c", 4, 0.9)
    assert (steps(party), party.weight) == (2, pytest.approx(-0.6))
    # Afterwards nothing else is under way.
    party.sees("d")
    party.answered("d", 5, 0.1)
    assert steps(party) == 3


def test_more_than_a_batch_under_way_makes_whole_batches() -> None:
    """Protects the speed of fast streams: a step for each gradient costs as much as the gradients."""
    party = Party(steps=SOON)
    shows(party, *"abcdef")
    for number, name in enumerate("abcd", start=1):
        assert steps(party) == 0
        party.answered(name, number, 0.5)
    assert steps(party) == 1
    party.answered("e", 5, 0.5)
    assert steps(party) == 1
    party.answered("f", 6, 0.5)
    assert steps(party) == 2


def test_entities_that_nobody_labels_hold_up_no_step() -> None:
    """Protects streams of which few are labelled: who was shown before may never be answered, and is not
    waited for."""
    party = Party(steps=SOON)
    shows(party, "never", "nor this", "e")
    party.answered("e", 3, 0.5)
    assert steps(party) == 1


def test_a_state_of_before_goes_on() -> None:
    """Protects an upgrade: counters were remembered without what is under way."""
    party = Party(steps=Steps("sgd", 1.0, 4))
    shows(party, "a", "b")
    party.answered("a", 1, 0.3)
    successor = Party(steps=SOON)
    for change in party.role.changed_state():
        value = change.value
        if change.key == TASK.prefix and value is not None:
            value = msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:10])
        successor.role.restore(StateChange(change.channel, change.partition, change.key, value))
    successor.answered("b", 2, 0.5)
    assert (steps(successor), successor.weight) == (1, pytest.approx(-0.4))


def head(**steps: Any) -> VaflCoordinator:
    role = make_coordinator(
        embedding_size=1,
        head=NetworkHead(DenseNetwork([2, 1], dtype=np.float64)),
        loss=SQUARE,
        steps=Steps("sgd", 1e-3, 3, **steps),
        dtype=np.float64,
    )
    role.open(0)
    return role


def learns(role: VaflCoordinator, entities: range) -> None:
    for number in entities:
        name = f"e{number}"
        role.receive([received("labels", Label(name, name, 1.0), name)], 0.0)
        for party in ("bank", "shop"):
            shown = Embedding(VERSION, 0, name, 1, number + 1, 0, encode_array(np.ones(1)))
            role.receive([received(f"embeddings/{party}", shown, name)], 0.0)


def test_a_heads_first_steps_take_one_entity() -> None:
    """Protects networks on few entities: a head that moved once in 16 lost up to half of the square loss by
    it."""
    role = head(grows=True)
    learns(role, range(64))
    assert figures(role)["steps"] == 64
    learns(role, range(64, 64 + 2 * 64))
    assert figures(role)["steps"] == 128
    learns(role, range(192, 192 + 9))
    assert figures(role)["steps"] == 131
    whole = head()
    learns(whole, range(9))
    assert figures(whole)["steps"] == 3


@pytest.mark.parametrize(
    ("learning", "privacy", "expected"),
    [
        ({}, {}, (16, True)),
        ({"batch_size": 8}, {}, (8, False)),
        # Noise on a step is the same however few are in it.
        ({}, {"gradient_norm": 1.0, "gradient_noise": 1.0}, (16, False)),
        ({}, {"gradient_norm": None, "gradient_noise": None}, (16, True)),
    ],
)
def test_the_batch_that_is_left_out(
    learning: Any, privacy: Any, expected: tuple[int, bool], tmp_path: Any
) -> None:
    """Protects whoever says a batch size, and mu's price: with noise on steps a step of one entity would be
    mostly noise."""
    if privacy:
        secret = tmp_path / "secret"
        secret.write_bytes(bytes(np.random.default_rng(0).integers(0, 256, 64).tolist()))
        secret.chmod(0o600)
        privacy = {"embedding_norm": 1.0, "embedding_noise": 1.0, "secret_file": str(secret), **privacy}
    role = find_kind("vafl-party").build(party_settings(learning=learning, privacy=privacy))
    assert isinstance(role, VaflParty)
    assert (role.settings.batch_size, role.settings.fewer_at_once) == expected


@pytest.mark.long
@pytest.mark.parametrize(("square", "name"), [(True, "river TrumpApproval"), (False, "breast cancer")])
def test_parties_with_the_defaults_predict_as_well_as_rivers_pooled_model(square: bool, name: str) -> None:
    """Protects whoever tunes nothing: on a drifting stream the error was 2.2 times River's, on 519 rows
    accuracy 3.4% below it."""
    given, values = next((inputs, labels) for known, inputs, labels in tables(square) if known == name)
    given, values = given[:ROWS], values[:ROWS]
    labels = (values - values.min()) / (values.max() - values.min())
    river: Quality = pooled(given[:-50], labels[:-50], square, 1)
    found = federation(given, labels, square, 1)
    assert found.loss <= 1.02 * river.loss
    if river.accuracy is not None and found.accuracy is not None:
        assert found.accuracy >= 0.98 * river.accuracy
