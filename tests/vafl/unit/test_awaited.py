"""While nothing is learnt, party and coordinator say what they wait for and how much of it is there."""

from __future__ import annotations

from typing import Any

from vafl.makers import Steps
from vafl.unit.test_conversations import PARTIES, Coordinator, Party, figures

from streamfl.contract.role import Received, Record
from streamfl.records.samples import Sample
from streamfl.simulation.system_tools import what_learning_waits_for


def standing(role: Any) -> list[str]:
    return [one.text for one in what_learning_waits_for(None, None, {}, role)]  # type: ignore[arg-type]


def test_a_coordinator_says_what_it_has_not_learnt_for_lack_of() -> None:
    """Protects the operator: labels without embeddings, or the other way round, looked like a federation that
    learns."""
    coordinator = Coordinator(quorum=2)
    for number in range(3):
        coordinator.hears("bank", f"e{number}", 1.0)
    coordinator.hears("shop", "e0", 1.0)
    coordinator.labelled("e1", 1.0)
    expected = (
        "has learnt from no entity: knows 1 without a label, and 1 with a label that fewer than 2 parties "
        "have sent (learning.quorum)"
    )
    assert coordinator.role.backlog == expected
    assert standing(coordinator.role) == [expected]
    lacking = {name: value for name, value in figures(coordinator.role).items() if name.startswith("lacking")}
    assert lacking == {"lacking_entities/label": 1, "lacking_entities/embeddings": 1}
    coordinator.labelled("e0", 1.0)
    assert coordinator.role.backlog is None
    assert standing(coordinator.role) == []


def test_a_coordinator_that_has_learnt_before_a_restart_waits_for_nothing() -> None:
    """Protects from a sentence that is wrong after every restart: a party's steps come from what it was
    answered."""
    coordinator = Coordinator(quorum=1)
    coordinator.hears("bank", "e", 1.0, version=3)
    assert coordinator.role.backlog is None


def test_a_party_says_how_many_gradients_its_first_step_lacks() -> None:
    """Protects the operator: where labels never come, a party shows its entities as if it learnt."""
    party = Party(steps=Steps("sgd", 1.0, 2))
    for entity in ("a", "b"):
        party.sees(entity)
    assert (
        party.role.backlog
        == "knows 0 of 2 entities with a gradient that the first step takes (learning.batch_size)"
    )
    for number, entity in enumerate(("a", "b")):
        assert figures(party.role)["missing_entities"] == 2 - number
        party.answered(entity, number + 1, 1.0)
    assert party.role.backlog is None
    assert figures(party.role)["missing_entities"] == 0


def test_a_coordinator_says_since_when_no_label_has_come() -> None:
    """Protects the operator: a coordinator that had learnt was "ok" however long labels had stopped, and the
    model stood still."""
    coordinator = Coordinator(quorum=1, expiry=1e5)
    for number in range(300):
        for party in PARTIES:
            coordinator.hears(party, f"e{number}", 1.0, now=float(number))
        if number < 200:
            coordinator.labelled(f"e{number}", 1.0, now=float(number))
        if (at := coordinator.role.wake_at) is not None and at <= number:
            coordinator.tick(float(number))
    assert coordinator.role.backlog == "no label has come since 1970-01-01T00:03:15Z, longer than usual"
    assert coordinator.role.trouble is None
    coordinator.labelled("e250", 1.0, now=300.0)
    assert coordinator.role.backlog is None


def test_a_partition_that_no_entity_comes_to_does_not_say_that_nothing_is_learnt() -> None:
    """Protects the operator: no key led to partitions 1 and 2, so a party that learnt in partition 0 said for
    ever that it knew no entity with a gradient, and after a restart the coordinator that it had learnt from
    none."""
    coordinator, party = Coordinator(quorum=1), Party(steps=Steps("sgd", 1.0, 1))
    for role in (coordinator.role, party.role):
        role.open(1)
        role.open(2)
        assert str(role.backlog).startswith("partition 0 ")
    party.sees("e")
    party.answered("e", 1, 1.0)
    coordinator.hears("bank", "e", 1.0, version=3)
    assert (coordinator.role.backlog, party.role.backlog) == (None, None)
    assert standing(coordinator.role) == standing(party.role) == []


def test_a_partition_that_has_not_learnt_is_named_beside_others_that_have() -> None:
    """Protects the operator of several partitions: which of them predicts by a model that has learnt
    nothing."""
    party = Party(steps=Steps("sgd", 1.0, 1))
    party.sees("e")
    party.answered("e", 1, 1.0)
    party.role.open(1)
    sample = Sample("other", "s", (1.0,), None)
    party.role.receive([Received("samples", sample, Record("samples", 1, 0, b"other", b""))], 0.0)
    assert str(party.role.backlog).startswith("partition 1 knows 0 of 1 entities with a gradient")
