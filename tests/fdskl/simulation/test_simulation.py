"""Masked sums under faults: seeds hold, and faults put into the roles on purpose are found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fault_runs import check_every_fault_is_met, check_seeds_repeat
from fdskl.proof.faults import simulate
from fdskl.proof.scenario import FOR_EVER, scenario
from mutations import Mutation, after, check_caught, instead, without, written

from streamfl.fdskl.learning import iteration
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.party.partition import PartyPartition
from streamfl.fdskl.party.peers import Peers
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.predicting.catch_up import CatchUp
from streamfl.fdskl.sums import contributions, sums
from streamfl.fdskl.sums.own_columns import OwnColumns
from streamfl.fdskl.sums.pending_sums import PendingSums
from streamfl.fdskl.sums.received_rounds import ReceivedRounds
from streamfl.fdskl.sums.rounds import Rounds
from streamfl.fdskl.sums.secret import Secret
from streamfl.fdskl.sums.standardisation import Standardisation
from streamfl.testing.faults.fault_rates import FAULTS

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_starts")]

# Short runs. Together they meet every fault twice, and are of every kind. `make simulate` runs any others.
SEEDS = (1, 4, 6, 8, 15, 21, 22, 27, 32)


def test_every_check_holds_and_every_fault_is_met() -> None:
    """Protects exactly-once, one-time masks, the equations and progress of masked sums under faults at every
    call of the loop."""
    check_every_fault_is_met(simulate, SEEDS, FAULTS)


def test_scenarios_are_of_every_kind() -> None:
    """Protects the breadth of the seeds: every topology, mask, solver, loss and kernel, alone and scaled
    out."""
    chosen = [scenario(seed) for seed in SEEDS]
    assert {len(one.parties) for one in chosen} == {2, 3, 4, 5}
    assert {one.synchronous for one in chosen} == {True, False}
    assert {one.settings.aggregation.topology for one in chosen} == {"tree", "star", "ring"}
    assert {one.settings.aggregation.mask for one in chosen} == {"one-time", "paper", "none"}
    assert {one.settings.aggregation.frequencies for one in chosen} == {"private", "shared"}
    assert {one.settings.aggregation.circle_bits for one in chosen} == {32, 64}
    assert {one.settings.learning.solver for one in chosen} == {"newton", "sgd"}
    assert {one.settings.learning.loss for one in chosen} == {"square", "logistic", "smooth-hinge"}
    assert {one.settings.learning.kernel for one in chosen} == {"gaussian", "laplacian", "matern"}
    assert {one.settings.learning.bandwidth is None for one in chosen} == {True, False}
    assert {one.settings.learning.sweeps is None for one in chosen} == {True, False}
    assert {one.settings.bus.processing_guarantee for one in chosen} == {"exactly_once", "at_least_once"}
    assert {one.settings.alignment.revise for one in chosen} == {True, False}
    assert {one.settings.alignment.expiry_seconds < FOR_EVER for one in chosen} == {True, False}
    assert {one.partitions for one in chosen} == {1, 2, 3}


def test_a_seed_is_one_history() -> None:
    """Protects whoever reproduces a failure: the same seed is the same run, to the byte, with its keys and
    secrets."""
    check_seeds_repeat(simulate, 4, 22)


def one_key_for_all_lives(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, parts: Any, names: Any, own: int, entropy: Any) -> None:
        real(self, parts, names, own, lambda: b"%032d" % own)

    instead(patch, Peers, "__init__", change)


def answers_a_round_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReceivedRounds, "__contains__", lambda self, key: False)
    instead(
        patch,
        ReceivedRounds,
        "note",
        lambda real, self, key, identity: bool(real(self, key, identity)) or True,
    )


def forwards_an_incomplete_sum(patch: pytest.MonkeyPatch) -> None:
    # Nor does anybody look at the check words, or at whose parts are in a sum.
    instead(patch, PendingSums, "is_whole", lambda real, self, pending, stage: pending.answered)
    patch.setattr(sums, "checked", lambda total: total[: -contributions.CHECK_WORDS])
    patch.setattr(PendingSums, "check_sender", lambda self, party, message: None)


def another_rounds_mask(patch: pytest.MonkeyPatch) -> None:
    masked = contributions.masked

    def change(numbers: Any, secrets: Any, own: int, identity: bytes, purpose: bytes) -> Any:
        return masked(numbers, secrets, own, identity[::-1] if own == 1 else identity, purpose)

    patch.setattr(contributions, "masked", change)
    patch.setattr(sums, "checked", lambda total: total[: -contributions.CHECK_WORDS])


def columns_of_the_entity_before(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any, entities: Any) -> Any:
        rows, known = result
        return (np.roll(rows, 1, axis=0) if known.all() else rows), known

    after(patch, OwnColumns, "rows", change)


def imputes_without_saying_so(patch: pytest.MonkeyPatch) -> None:
    after(patch, OwnColumns, "rows", lambda result, self, entities: (result[0], result[1] | True))


def ignores_new_columns(patch: pytest.MonkeyPatch) -> None:
    instead(patch, PartyPartition, "tell_revision", lambda real, self, entity, now: None)


def learns_a_label_twice(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, entity: str, label: float, *more: Any) -> None:
        real(self, entity, label, *more)
        if self.labels % 3 == 0:
            real(self, entity, label)

    instead(patch, LabelledEntities, "add", change)


def learns_with_stale_alphas(patch: pytest.MonkeyPatch) -> None:
    instead(patch, KernelModel, "_changed", lambda real, self: self._remember(self._record))


def drops_the_newest(patch: pytest.MonkeyPatch) -> None:
    def change(result: Any, self: Any) -> Any:
        self._record.first -= self.block
        return result

    after(patch, KernelModel, "drop_oldest", change)


def features_of_other_columns(patch: pytest.MonkeyPatch) -> None:
    instead(patch, FeatureCache, "_columns", lambda real, self, first: slice(0, self._block))


def a_step_too_long(patch: pytest.MonkeyPatch) -> None:
    step_size = iteration.step_size
    patch.setattr(iteration, "step_size", lambda *given: 1.1 * step_size(*given))


def forgets_what_was_asked(patch: pytest.MonkeyPatch) -> None:
    instead(patch, Rounds, "ask_again", lambda real, self, key: self._asked.pop(key, None))


def never_gives_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingSums, "expire", lambda self, seconds, now: None)
    patch.setattr(PendingSums, "abandon", lambda self, key, reason: None)
    # Nor is a tick asked for. One that is due at once would keep the run busy until it is stopped.
    patch.setattr(PendingSums, "oldest", None)


def begins_with_another_secret(patch: pytest.MonkeyPatch) -> None:
    instead(patch, Secret, "restore", lambda real, self, value: None)


def standardises_anew(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: Any, columns: Any, now: float) -> None:
        was, self.frozen = self.frozen, not self._wanted
        real(self, columns, now)
        self.frozen |= was

    instead(patch, Standardisation, "see", change)


def holds_a_backlog_back_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CatchUp, "let_go", lambda self, now: False)
    patch.setattr(CatchUp, "wake_at", None)


MUTATIONS: dict[str, Mutation] = {
    "masks: one key for all lives of a party": one_key_for_all_lives,
    "masks: of another round, and check words ignored": another_rounds_mask,
    "sums: a round is answered twice": answers_a_round_twice,
    "sums: an incomplete sum is sent on": forwards_an_incomplete_sum,
    "sums: nothing is given up": never_gives_up,
    "columns: of another entity": columns_of_the_entity_before,
    "columns: imputed and not counted": imputes_without_saying_so,
    "columns: new ones are not told of": ignores_new_columns,
    "columns: standardised anew with every sample": standardises_anew,
    "active: what came to nothing is not asked again": forgets_what_was_asked,
    "catch up: a backlog never goes on": holds_a_backlog_back_for_ever,
    "labels: learnt twice": learns_a_label_twice,
    "model: stale alphas": learns_with_stale_alphas,
    "model: the wrong features are dropped": drops_the_newest,
    "model: features of other columns in the cache": features_of_other_columns,
    "model: a step too long": a_step_too_long,
    "written: coefficients beyond what is read": written(
        b"alphas/", lambda content: np.full(len(content) // 8, 1e101).tobytes()
    ),
    "restored: without the secret": begins_with_another_secret,
    "restored: without predictions to be made": without(b"forecast/", role=FdsklParty),
}
# A short run that finds it.
TRIED_FIRST = {
    "masks: one key for all lives of a party": 19,
    "sums: an incomplete sum is sent on": 19,
    "sums: nothing is given up": 19,
    "columns: imputed and not counted": 31,
    "written: coefficients beyond what is read": 22,
    "restored: without predictions to be made": 22,
    "sums: a round is answered twice": 16,
    "model: features of other columns in the cache": 48,
    "columns: new ones are not told of": 126,
    "catch up: a backlog never goes on": 5,
    "model: stale alphas": 3,
    "columns: standardised anew with every sample": 7,
    "columns: of another entity": 19,
    "restored: without the secret": 3,
    "model: a step too long": 3,
    "masks: of another round, and check words ignored": 6,
    "active: what came to nothing is not asked again": 6,
    "labels: learnt twice": 8,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation's worth: what loses, doubles, shows or learns wrongly fails within 200 seeds,
    and says how."""
    MUTATIONS[name](monkeypatch)
    check_caught(name, simulate, TRIED_FIRST.get(name, 0))
