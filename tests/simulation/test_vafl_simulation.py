"""Vertical federations under faults: seeds hold, and faults put into the roles on purpose are found."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from simulation.test_mutations import Mutation, after, check_caught, instead

from streamfl.optimisers import AdaGrad
from streamfl.simulation.faults.chances import FAULTS
from streamfl.simulation.faults.vafl import FOR_EVER, scenario, simulate
from streamfl.vafl.coordinator import VaflCoordinator
from streamfl.vafl.party import VaflParty

SEEDS = range(60)


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects exactly-once, the equations, quorums and progress of vertical learning under faults at every call of the loop."""
    verdicts = [simulate(seed) for seed in SEEDS]
    assert [f"SEED={verdict.seed}  # {verdict.failure}" for verdict in verdicts if verdict.failure] == []
    met = sum((verdict.faults for verdict in verdicts), Counter())
    assert set(met) == set(FAULTS)


def test_scenarios_are_of_every_kind() -> None:
    """Protects the breadth of the seeds: every delay rule, with every head and loss, alone and scaled out."""
    chosen = [scenario(seed) for seed in SEEDS]
    assert {one.synchronous for one in chosen} == {True, False}
    assert {one.settings.head.kind for one in chosen} == {"sum", "network"}
    assert {one.settings.learning.loss for one in chosen} == {"square", "logistic", "softmax"}
    assert {one.settings.learning.optimiser for one in chosen} == {"sgd", "sgd-decay", "adagrad", "adam"}
    assert {one.settings.learning.max_staleness for one in chosen} == {None, 0, 1, 2}
    assert {one.settings.bus.processing_guarantee for one in chosen} == {"exactly_once", "at_least_once"}
    assert {one.partitions for one in chosen} == {1, 2, 3}
    assert {one.settings.alignment.keep for one in chosen} == {True, False}
    impatient = {(one.forgets, one.settings.alignment.reply_seconds < FOR_EVER) for one in chosen}
    assert impatient == set(product((True, False), repeat=2))


def test_a_seed_is_one_history() -> None:
    """Protects whoever reproduces a failure: the same seed is the same run, to the byte."""
    assert [simulate(seed).hash for seed in (3, 4)] == [simulate(seed).hash for seed in (3, 4)]


def takes_embeddings_again(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, task: Any, *rest: Any) -> Any:
        for party in task.parties:
            party.runs = []
        return real(self, task, *rest)

    instead(patch, VaflCoordinator, "_take_embedding", change)


def takes_replies_again(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, partition: int, task: Any, reply: Any, now: float) -> Any:
        shown = task.shown.get(reply.entity)
        sends = real(self, partition, task, reply, now)
        if shown is not None and reply.gradient:
            task.shown[reply.entity] = shown
        return sends

    instead(patch, VaflParty, "_take_reply", change)


def learns_before_the_quorum(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, *arguments: Any) -> Any:
        object.__setattr__(self.alignment, "quorum", 1)
        return real(self, *arguments)

    instead(patch, VaflCoordinator, "_learn_if_ready", change)


def answers_twice(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, task: Any, name: str, entity: Any, now: float) -> Any:
        for held in entity.held.values():
            held.fresh = True
        return result

    after(patch, VaflCoordinator, "_learn_if_ready", change)


def steps_on_whatever_came_together(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, batch: Any, now: float) -> Any:
        for partition, task in self._tasks.items():
            if task.answered:
                self._step(partition, task)
        return result

    after(patch, VaflParty, "receive", change)


def names_the_version_before(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, partition: int, task: Any, *given: Any) -> Any:
        back = int(task.counters is not None and task.counters.steps > 0)
        if not back:
            return real(self, partition, task, *given)
        task.counters.steps -= back
        sends = real(self, partition, task, *given)
        task.counters.steps += back
        return sends

    instead(patch, VaflParty, "_show", change)


def forgets_the_squares(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdaGrad, "arrays", property(lambda self: {}, lambda self, value: None), raising=False)


def leaves_late_parties_waiting(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, task: Any, name: str, entity: Any, now: float) -> Any:
        entity.rounds = 0
        return result

    after(patch, VaflCoordinator, "_learn_if_ready", change)


def learns_from_whatever_is_old(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VaflCoordinator, "_too_stale", lambda self, task, entity: [])


def forgets_by_the_first_message(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, task: Any, name: str, now: float) -> Any:
        known = task.entities.get(name)
        since = now if known is None else known.since
        entity = real(self, task, name, now)
        entity.since = since
        return entity

    instead(patch, VaflCoordinator, "_entity", change)


def learns_from_a_step_older(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, *arguments: Any) -> Any:
        before, bound = self.alignment, self.alignment.max_staleness
        self.alignment = dataclasses.replace(before, max_staleness=None if bound is None else bound + 1)
        stale = real(self, *arguments)
        self.alignment = before
        return stale

    instead(patch, VaflCoordinator, "_too_stale", change)


def gives_up_too_early(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, partition: int, task: Any, now: float) -> Any:
        return real(self, partition, task, now + 0.7 * self.alignment.reply_seconds)

    instead(patch, VaflCoordinator, "_give_up_asking", change)


def gives_up_who_answered_too(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, partition: int, task: Any, now: float) -> Any:
        for name, at in task.asked.items():
            for held in task.entities[name].held.values() if at + self.alignment.reply_seconds <= now else ():
                held.asked = True
        return real(self, partition, task, now)

    instead(patch, VaflCoordinator, "_give_up_asking", change)


def forgets_too_early(patch: pytest.MonkeyPatch) -> None:
    instead(patch, VaflParty, "_expire", lambda real, self, partition, task, now: real(self, partition, task, now + 1.0))


def of(role: type, *prefixes: bytes) -> Mutation:
    """The role takes back everything but what these keys begin."""

    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = role.restore  # type: ignore[attr-defined]
        patch.setattr(role, "restore", lambda self, change: None if change.key.startswith(prefixes) else real(self, change))

    return mutate


MUTATIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "party: parameters not restored": of(VaflParty, b"array/parameters"),
    "party: counters not restored": of(VaflParty, b"task"),
    "party: entities not restored": of(VaflParty, b"entity/"),
    "party: answered entities not restored": of(VaflParty, b"answered/"),
    "party: waiting samples not restored": of(VaflParty, b"waiting/"),
    "party: optimiser's state not restored": forgets_the_squares,
    "party: takes a reply twice": takes_replies_again,
    "party: steps on whatever came together": steps_on_whatever_came_together,
    "party: names the version before": names_the_version_before,
    "party: forgets too early": forgets_too_early,
    "coordinator: entities not restored": of(VaflCoordinator, b"entity/"),
    "coordinator: parties not restored": of(VaflCoordinator, b"party/"),
    "coordinator: parameters not restored": of(VaflCoordinator, b"array/"),
    "coordinator: counters not restored": of(VaflCoordinator, b"task"),
    "coordinator: takes an embedding twice": takes_embeddings_again,
    "coordinator: learns before the quorum": learns_before_the_quorum,
    "coordinator: answers twice": answers_twice,
    "coordinator: leaves late parties waiting": leaves_late_parties_waiting,
    "coordinator: learns from whatever is old": learns_from_whatever_is_old,
    "coordinator: learns from what is a step too old": learns_from_a_step_older,
    "coordinator: gives up too early": gives_up_too_early,
    "coordinator: gives up who answered too": gives_up_who_answered_too,
    "coordinator: forgets by the first message": forgets_by_the_first_message,
}
# As test_mutations has it.
TRIED_FIRST = {
    "coordinator: learns from whatever is old": 23,
    "coordinator: learns from what is a step too old": 77,
    "coordinator: gives up too early": 128,
    "coordinator: gives up who answered too": 23,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation's worth: what loses, doubles or learns wrongly fails within 200 seeds, with what it did wrong."""
    MUTATIONS[name](monkeypatch)
    check_caught(name, simulate, TRIED_FIRST.get(name, 0))
