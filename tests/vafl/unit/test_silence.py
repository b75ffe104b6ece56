"""A party or coordinator whose peers have fallen silent is not ready, says who should answer, and recovers by
itself."""

from __future__ import annotations

from typing import Any

from peers import Peers
from vafl.makers import member_sections


def vafl(kind: str, party: str = "bank", patience: float = 60.0) -> dict[str, Any]:
    return member_sections(kind, party, alignment={"patience_seconds": patience})


def test_a_party_without_a_coordinator_turns_red() -> None:
    """Protects a party that shows embeddings to nobody."""
    federation = Peers(vafl("vafl-party"))
    [party] = federation.workers
    for number in range(13):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
        assert (party.health.trouble is None) == (number < 12)
    assert "vafl-coordinator" in (party.health.trouble or "")


def test_a_party_whose_labels_stop_is_told_of_labels() -> None:
    """Protects an operator's night: the coordinator runs and predicts, so whoever is told to start it looks
    in the wrong place."""
    federation = Peers(vafl("vafl-coordinator"), vafl("vafl-party"), vafl("vafl-party", "shop"))
    party = federation.workers[1]
    for number in range(14):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
        federation.send("shop-rows", f"ann-{number}", {"age": 0.1})
    assert "the coordinator gets no labels" in (party.health.trouble or "")
    federation.send("outcomes", "ann-13", {"defaulted": 1})
    federation.step()
    assert party.health.trouble is None


def test_a_silent_party_is_named_by_the_coordinator_and_hears_of_its_return() -> None:
    """Protects predictions that lack a party: the coordinator says which one shows nothing, until it does."""
    federation = Peers(vafl("vafl-coordinator"), vafl("vafl-party"))
    coordinator, party = federation.workers
    for number in range(14):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
        federation.send("outcomes", f"ann-{number}", {"defaulted": 1})
    assert "no embedding of shop " in (coordinator.health.trouble or "")
    assert party.health.trouble is None
    federation.start(vafl("vafl-party", "shop"))
    federation.send("shop-rows", "ann-3", {"age": 0.1})
    federation.step()
    assert coordinator.health.trouble is None


def test_who_is_waited_for_is_said_before_the_patience_is_over() -> None:
    """Protects operators: for ten minutes, the default, whoever waited for an absent member was "ok"."""
    federation = Peers(*(vafl(kind, patience=600.0) for kind in ("vafl-coordinator", "vafl-party")))
    coordinator, party = federation.workers
    for number in range(20):
        federation.clock.now += 5.0
        federation.send("bank-rows", f"ann-{number}", {"age": 0.5})
    assert coordinator.role.backlog == "waits for shop since 1970-01-01T00:16:45Z, longer than usual"
    assert str(party.role.backlog).startswith("waits for gradients of the coordinator since ")
    assert (coordinator.health.trouble, party.health.trouble) == (None, None)
    shop = vafl("vafl-party", "shop")
    federation.start(shop)
    federation.send("shop-rows", "ann-3", {"age": 0.1})
    federation.send("outcomes", "ann-3", {"defaulted": 1})
    assert "waits for" not in f"{coordinator.role.backlog} {party.role.backlog}"


def test_a_stream_that_ends_leaves_no_debt() -> None:
    """Protects idle nights: an entity that the other party never sees is no silence of that party."""
    federation = Peers(vafl("vafl-coordinator"), vafl("vafl-party"))
    federation.send("bank-rows", "ann", {"age": 0.5})
    for _ in range(100):
        federation.clock.now += 60.0
        federation.step()
    assert federation.workers[0].health.trouble is None
