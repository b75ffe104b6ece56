"""Several active parties under faults: seeds hold, and mistakes in taking turns are found."""

from __future__ import annotations

from typing import Any

import pytest
from fault_runs import check_every_fault_is_met
from fdskl.proof.faults import simulate_several
from fdskl.proof.scenario import scenario_of_several
from mutations import Mutation, after, check_caught, instead

from streamfl.fdskl.learning import iteration
from streamfl.fdskl.learning.iteration_queue import IterationQueue
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.own_outputs import OwnOutputs
from streamfl.fdskl.party.active import ActivePartition
from streamfl.testing.faults.fault_rates import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

# Short runs that meet every fault, most of them twice.
SEEDS = (8, 9, 14, 15, 19, 22, 31)


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects the one model of several active parties: aborted and repeated commits, moved partitions,
    workers cut off."""
    # Half a commit there is with at_least_once alone.
    check_every_fault_is_met(simulate_several, SEEDS, set(FAULTS) - {"half a commit"})
    chosen = [scenario_of_several(seed) for seed in SEEDS]
    assert {len(one.settings.federation.actives) for one in chosen} >= {2, 3, 4}
    assert {one.settings.aggregation.topology for one in chosen} == {"tree", "star", "ring"}


def others_iterations_decay_nothing(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        KernelModel,
        "take_turn",
        lambda real, self, first, decay, bandwidth: real(self, first, 1.0, bandwidth),
    )


def answers_by_the_version_before(patch: pytest.MonkeyPatch) -> None:
    real = iteration.SharedSgdIteration._outputs_before
    patch.setattr(iteration.SharedSgdIteration, "_outputs_before", lambda self: real(self) * 0)


def an_abandoned_round_decays(patch: pytest.MonkeyPatch) -> None:
    def change(result: None, self: ActivePartition, key: Any) -> None:
        self.model.decay_to(self.model.scale * 0.9)

    after(patch, ActivePartition, "abandoned", change)


def others_parts_are_left_out(patch: pytest.MonkeyPatch) -> None:
    after(patch, OwnOutputs, "drop", lambda result, self, key: None if result is None else result * 0)


def turns_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IterationQueue, "restore", lambda self, value: None)


def two_have_the_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IterationQueue, "has_come", IterationQueue.is_asked_for)


MUTATIONS: dict[str, Mutation] = {
    "decay: not of others' iterations": others_iterations_decay_nothing,
    "decay: an abandoned round decays": an_abandoned_round_decays,
    "outputs: stale, from before anything was learnt": answers_by_the_version_before,
    "outputs: a party's part is left out": others_parts_are_left_out,
    "restored: without turns": turns_are_not_remembered,
    "turns: two have one": two_have_the_turn,
}


# A short run that finds it.
TRIED_FIRST = {
    "decay: not of others' iterations": 12,
    "decay: an abandoned round decays": 8,
    "outputs: stale, from before anything was learnt": 17,
    "outputs: a party's part is left out": 17,
    "restored: without turns": 32,
    "turns: two have one": 22,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation's worth: what learns out of turn or from stale coefficients fails, and says
    how."""
    MUTATIONS[name](monkeypatch)
    check_caught(name, simulate_several, TRIED_FIRST[name])
