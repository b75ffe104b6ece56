"""Vertical federations under faults: seeds hold, and faults put into the roles on purpose are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from fault_runs import check_every_fault_is_met, check_seeds_repeat
from msgspec import structs
from mutations import after, check_caught, instead, without
from vafl.proof.faults import simulate
from vafl.proof.scenario import FOR_EVER, scenario

from streamfl.testing.faults.fault_rates import FAULTS
from streamfl.testing.faults.federation import run
from streamfl.vafl.coordinator.entities import CoordinatorEntities
from streamfl.vafl.coordinator.parties import Parties
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import EMBEDDING
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbeddings
from streamfl.vafl.party.role import VaflParty

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

# Short runs. Together they meet every fault twice, and are of every kind. `make simulate` runs any others.
SEEDS = (1, 6, 9, 10, 11, 16, 21, 26, 28, 32, 34)


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects exactly-once, the equations, quorums and progress of vertical learning under faults at every
    call of the loop."""
    check_every_fault_is_met(simulate, SEEDS, FAULTS)


def test_scenarios_are_of_every_kind() -> None:
    """Protects the breadth of the seeds: every delay rule, with every head and loss, alone and scaled out."""
    chosen = [scenario(seed) for seed in SEEDS]
    assert {one.synchronous for one in chosen} == {True, False}
    assert {one.settings.head.kind for one in chosen} == {"sum", "network"}
    assert {one.settings.learning.loss for one in chosen} == {"square", "logistic", "softmax"}
    assert {one.settings.learning.optimiser for one in chosen} == {"sgd", "sgd-decay", "adagrad", "adam"}
    assert {one.settings.learning.max_staleness for one in chosen} == {None, 0, 1, 2}
    assert {one.settings.learning.batch_size for one in chosen} >= {None, 1, 2, 3, 4}
    assert {one.settings.learning.quorum for one in chosen} == {None, 1, 2, 3}
    assert {one.settings.alignment.requests for one in chosen} == {0, 1, 2, 4, 1000}
    assert {one.settings.bus.processing_guarantee for one in chosen} == {"exactly_once", "at_least_once"}
    assert {one.partitions for one in chosen} == {1, 2, 3}
    assert {one.settings.alignment.keep for one in chosen} == {True, False}
    impatient = {(one.forgets, one.settings.alignment.reply_seconds < FOR_EVER) for one in chosen}
    assert impatient == set(product((True, False), repeat=2))


def test_a_seed_is_one_history() -> None:
    """Protects whoever reproduces a failure: the same seed is the same run, to the byte."""
    check_seeds_repeat(simulate, 6, 26)


@pytest.mark.parametrize(("seed", "rate"), [(6, 1e37), (22, 1e37)])
def test_steps_that_are_far_too_long_end_in_what_can_be_read(seed: int, rate: float) -> None:
    """Protects a restart after learning went astray: outputs that are infinite or no number were remembered,
    and refused when read."""
    chosen = scenario(seed)
    learning = chosen.settings.learning.model_copy(update={"learning_rate": rate})
    federation = chosen.settings.federation.model_copy(update={"precision": "float32"})
    settings = chosen.settings.model_copy(update={"learning": learning, "federation": federation})
    assert run(replace(chosen, settings=settings), lambda faulty: None, "memory").failure is None


def learns_before_the_quorum(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, *given: Any) -> Any:
        self._learning_quorum = 1
        return real(self, *given)

    instead(patch, CoordinatorEntities, "decide", change)


def answers_twice(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, names: Any, rows: Any, *given: Any) -> Any:
        self._embeddings["unanswered"][rows] = self._embeddings["held"][rows]
        return result

    after(patch, CoordinatorEntities, "settle", change)


def names_the_version_before(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, *given: Any) -> Any:
        sends = real(self, *given)
        messages = [EMBEDDING.decode(send.value) for send in sends]
        before = [
            structs.replace(one, parameters_version=max(0, one.parameters_version - 1)) for one in messages
        ]
        return [
            structs.replace(send, value=EMBEDDING.encode(one))
            for send, one in zip(sends, before, strict=True)
        ]

    instead(patch, VaflParty, "_send_queued", change)


def leaves_late_parties_waiting(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, names: Any, rows: Any, *given: Any) -> Any:
        self._entities["rounds"][rows] = 0
        return result

    after(patch, CoordinatorEntities, "settle", change)


def learns_from_whatever_is_old(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, epochs: Any, versions: Any, bound: Any, shown_by: Any = None) -> Any:
        return real(self, epochs, versions, None, shown_by)

    instead(patch, Parties, "ages", change)


def forgets_by_the_first_message(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, *given: Any, **more: Any) -> Any:
        rows = self._rows
        known = {name: rows._since[rows[name]] for name in rows}
        admitted = real(self, *given, **more)
        for name in known.keys() & set(rows):
            rows._since[rows[name]] = known[name]
        return admitted

    instead(patch, CoordinatorEntities, "admit", change)


def gives_up_too_early(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, task: Any, now: float) -> Any:
        return real(self, task, now + 0.7 * self.settings.alignment.reply_seconds)

    instead(patch, VaflCoordinator, "_give_up_waiting", change)


def gives_up_who_answered_too(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, now: float) -> Any:
        for name in self._pending.overdue(now):
            row = self._rows[name]
            self._embeddings["asked"][row] = self._embeddings["held"][row]
        return real(self, now)

    instead(patch, CoordinatorEntities, "give_up_waiting", change)


def waits_for_the_quorum_without_end(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, rows: Any, outdated: Any, behind: Any) -> Any:
        return real(self, rows, outdated, behind & False)

    instead(patch, CoordinatorEntities, "decide", change)


def writes_outputs_beyond_what_is_read(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        CoordinatorEntities,
        "predicted",
        lambda real, self, rows, outputs: real(self, rows, outputs + 1e101),
    )


def forgets_too_early(patch: pytest.MonkeyPatch) -> None:
    instead(patch, InFlightEmbeddings, "expire", lambda real, self, now: real(self, now + 1.0))


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "party: parameters not restored": without(b"array/parameters", role=VaflParty),
    "party: waiting samples not restored": without(b"waiting/", role=VaflParty),
    "party: names the version before": names_the_version_before,
    "party: forgets too early": forgets_too_early,
    "coordinator: entities not restored": without(b"entity/", role=VaflCoordinator),
    "coordinator: learns before the quorum": learns_before_the_quorum,
    "coordinator: answers twice": answers_twice,
    "coordinator: leaves late parties waiting": leaves_late_parties_waiting,
    "coordinator: learns from whatever is old": learns_from_whatever_is_old,
    "coordinator: waits for the quorum without end": waits_for_the_quorum_without_end,
    "coordinator: gives up too early": gives_up_too_early,
    "coordinator: gives up who answered too": gives_up_who_answered_too,
    "coordinator: forgets by the first message": forgets_by_the_first_message,
    "written: outputs beyond what is read": writes_outputs_beyond_what_is_read,
}
# A short run that finds it.
TRIED_FIRST = {
    "party: parameters not restored": 5,
    "party: waiting samples not restored": 17,
    "party: names the version before": 5,
    "party: forgets too early": 28,
    "coordinator: entities not restored": 26,
    "coordinator: learns before the quorum": 22,
    "coordinator: answers twice": 19,
    "coordinator: leaves late parties waiting": 37,
    "coordinator: learns from whatever is old": 7,
    "coordinator: waits for the quorum without end": 3,
    "coordinator: gives up too early": 102,
    "coordinator: gives up who answered too": 25,
    "coordinator: forgets by the first message": 23,
    "written: outputs beyond what is read": 5,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation's worth: what loses, doubles or learns wrongly fails within 200 seeds, with
    what it did wrong."""
    MUTATIONS[name](monkeypatch)
    check_caught(name, simulate, TRIED_FIRST[name])
