"""Several active parties, any of which may end at any point: their coefficients are those of one list of
iterations, to 1e-9."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from fdskl.laws.closed_loop import ClosedLoop
from fdskl.makers import settings_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import Mutation, after, instead

from streamfl.contract.role import BadRecord
from streamfl.fdskl.learning.iteration_queue import IterationQueue
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.own_outputs import OwnOutputs
from streamfl.fdskl.learning.shared_model import SharedModel
from streamfl.fdskl.party.active import ActivePartition
from streamfl.fdskl.sums import masks
from streamfl.fdskl.sums.masks import mask_key

ENTITIES = [f"e{number}" for number in range(18)]
# B, R, kept features, gamma, lambda of the makers' federation.
BLOCK, SIZE, KEPT, STEP, DECAY = 3, 2, 6, 1.0, 1e-3
# How often everybody goes on first; then which party takes how many messages, and -1: is taken up by another
# process; and whether what it did is lost.
Turn = tuple[int, int, int, bool]


def number_of(entity: str) -> float:
    return 0.17 * int(entity[1:]) - 1.3


class Learnt:
    """A federation that has learnt. begun: by version of the model, the entities of the iteration that was
    begun last there."""

    def __init__(self, parties: int, active: list[int], topology: str, queue: list[Turn]) -> None:
        self.names = [f"p{number}" for number in active]
        self.active = active
        self.begun: dict[int, list[str]] = {}
        sections: dict[str, Any] = {
            "federation": {"active": self.names},
            "learning": {"solver": "sgd", "regularisation": DECAY, "step": STEP},
            "alignment": {"reply_seconds": 0.7, "expiry_seconds": 1e6, "limit": 40, "linger_ms": 5.0},
            "aggregation": {"topology": topology, "circle_bits": 64, "round_seconds": 2.0},
            "standardisation": {"columns": False},
        }
        self.loop = loop = ClosedLoop(
            [settings_of(f"p{number}", parties, **sections) for number in range(parties)]
        )
        patch = pytest.MonkeyPatch()
        next_iteration = ActivePartition._next_iteration

        def begun(partition: ActivePartition) -> Any:
            iteration = next_iteration(partition)
            self.begun[partition.model.version] = list(iteration._entities)
            return iteration

        def masked(pair_secret: bytes, round_id: bytes, purpose: bytes, bits: int) -> bytes:
            key = mask_key(pair_secret, round_id, purpose, bits)
            assert loop.turn is not None
            loop.turn.masks[key] += 1
            return key

        patch.setattr(ActivePartition, "_next_iteration", begun)
        patch.setattr(masks, "mask_key", masked)
        try:
            for entity in ENTITIES:
                loop.write_sample(entity, number_of(entity))
            loop.settle()
            for number, entity in enumerate(ENTITIES):
                loop.write_label(entity, float(number % 3 > 0), active[number % len(active)])
            for steps, party, most, lost in queue:
                party %= parties
                for _ in range(steps):
                    for number in range(parties):
                        loop.step(number, 1000)
                    loop.now += 0.001
                if most < 0:
                    loop.restart(party)
                else:
                    loop.step(party, most, lost)
                loop.now += 0.01
            loop.settle()
            loop.write_sample("last", 0.4)
            loop.settle()
        finally:
            patch.undo()

    def features(self, entity: str, count: int) -> Any:
        """phi of an entity, of everybody's frequencies, (count,)."""
        number = 0.4 if entity == "last" else number_of(entity)
        phases = np.zeros(count)
        for member in self.loop.members:
            drawn = member.role.partition(0).sums.own_part.contributions.frequencies(1.0)
            row = np.array([[number + member.number, number * number]])
            phases += drawn.partial_phases(row, [(0, count)])[0]
        return np.sqrt(2.0) * np.cos(phases)

    def check(self) -> None:
        """Coefficients, their owners, the last prediction and the use of masks, against Algorithm 1 over the
        log."""
        learners = [message.sender for message in self.loop.log if message.learnt]
        assert len(learners) == len(ENTITIES) // BLOCK
        count = len(learners) * SIZE
        known = {entity: self.features(entity, count) for entity in (*ENTITIES, "last")}
        alphas = np.zeros(count)
        for t in range(len(learners)):
            new, added = slice(t * SIZE, (t + 1) * SIZE), np.zeros(SIZE)
            assert len(self.begun[t]) == BLOCK
            for entity in self.begun[t]:
                assert learners[t] == self.names[int(entity[1:]) % len(self.names)]
                label = 1.0 if int(entity[1:]) % 3 > 0 else -1.0
                slope = -label / (1 + np.exp(label * (known[entity] @ alphas)))
                added -= STEP / (BLOCK * SIZE) * slope * known[entity][new]
            alphas *= 1 - STEP * DECAY
            alphas[new] = added
            alphas[: max(0, (t + 1) * SIZE - KEPT)] = 0.0
        for member, name in ((self.loop.members[number], f"p{number}") for number in self.active):
            own = member.role.active_partition(0)
            expansion = own.model.snapshot()
            mine = np.repeat([learner == name for learner in learners], SIZE)
            assert (expansion.version, expansion.first + len(expansion.alphas)) == (len(learners), count)
            np.testing.assert_allclose(
                expansion.alphas, np.where(mine, alphas, 0.0)[expansion.first :], rtol=0, atol=1e-9
            )
            assert not own.rounds.busy
        for member in self.loop.members:
            assert max(member.masks.values()) == 1, f"party {member.number} has used a mask twice"
        (said,) = [one for one in self.loop.predictions if one.entity == "last"]
        assert said.model == len(learners)
        np.testing.assert_allclose(said.score, known["last"] @ alphas, rtol=0, atol=1e-9)


TURN = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-1, 4), st.booleans())
SEVERAL = st.sampled_from([(2, [0, 1]), (3, [2, 0]), (4, [1, 3]), (4, [3, 0, 2])])


@given(
    who=SEVERAL,
    topology=st.sampled_from(["tree", "star", "ring"]),
    queue=st.lists(TURN, min_size=5, max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_coefficients_are_exact_whoever_is_killed(
    who: tuple[int, list[int]], topology: str, queue: list[Turn]
) -> None:
    """Protects the one model of several active parties from a restart anywhere: none learns twice, or from
    stale coefficients."""
    Learnt(*who, topology, queue).check()


def others_iterations_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    # The party answers with the coefficients of the version before.
    def change(real: Any, self: OwnOutputs, key: Any) -> None:
        versions = list(self._versions.values())
        if self._wanted[key].left is None and len(versions) > 1:
            stale = versions[-2]
            for question in self._wanted[key].questions(stale, self._width):
                self._rounds.want(question)
            if not self._wanted[key].left:
                self._ready()
            return
        real(self, key)

    instead(patch, OwnOutputs, "_begin", change)


def others_iterations_decay_nothing(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        KernelModel,
        "take_turn",
        lambda real, self, first, decay, bandwidth: real(self, first, 1.0, bandwidth),
    )


def decays_what_is_new_too(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        KernelModel,
        "put",
        lambda real, self, block, alphas: real(self, block, alphas * (1 - STEP * DECAY)),
    )


def decays_when_a_turn_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    def change(result: bool, self: IterationQueue, party: int, number: int) -> bool:
        models[id(self)].decay_to(models[id(self)].scale * (1 - STEP * DECAY))
        return result

    models: dict[int, KernelModel] = {}

    def made(
        result: None,
        self: SharedModel,
        settings: Any,
        fingerprint: int,
        partition: Any,
        model: Any,
        rounds: Any,
    ) -> None:
        models[id(self.queue)] = model

    after(patch, SharedModel, "__init__", made)
    after(patch, IterationQueue, "take_request", change)
    others_iterations_decay_nothing(patch)


def an_abandoned_round_decays(patch: pytest.MonkeyPatch) -> None:
    def change(result: None, self: ActivePartition, key: Any) -> None:
        self.model.decay_to(self.model.scale * (1 - STEP * DECAY))

    after(patch, ActivePartition, "abandoned", change)


def two_have_the_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IterationQueue, "has_come", IterationQueue.is_asked_for)


def turns_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IterationQueue, "restore", lambda self, value: None)


def the_end_of_a_turn_is_not_remembered(patch: pytest.MonkeyPatch) -> None:
    def change(real: Any, self: IterationQueue) -> int:
        number: int = real(self)
        self._remember(msgspec.structs.replace(self._record, ended=self._record.ended - 1))
        return number

    instead(patch, IterationQueue, "end", change)


def others_parts_are_left_out(patch: pytest.MonkeyPatch) -> None:
    after(patch, OwnOutputs, "drop", lambda result, self, key: None if result is None else result * 0)


def drops_the_newest(patch: pytest.MonkeyPatch) -> None:
    instead(
        patch,
        KernelModel,
        "take_turn",
        lambda real, self, first, *given: real(self, self._record.first, *given),
    )


MUTATIONS: dict[str, Mutation] = {
    "a stale alpha: the version before": others_iterations_are_not_seen,
    "decay: not of others' iterations": others_iterations_decay_nothing,
    "decay out of order: what is new decays too": decays_what_is_new_too,
    "decay out of order: when a turn is asked for": decays_when_a_turn_is_asked_for,
    "decay: an abandoned round decays": an_abandoned_round_decays,
    "turns: two have one": two_have_the_turn,
    "turns: forgotten by a restart": turns_are_not_remembered,
    "turns: the end is forgotten by a restart": the_end_of_a_turn_is_not_remembered,
    "outputs: others' parts are left out": others_parts_are_left_out,
    "features: others' are not dropped": drops_the_newest,
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the law above from being blind: stale coefficients, or decay out of order, fail within 30
    runs."""
    MUTATIONS[name](monkeypatch)
    random = np.random.default_rng(3)
    for run in range(30):
        queue = [
            (*(int(one) for one in random.integers([0, 0, -1], [5, 3, 5])), bool(random.integers(2)))
            for _ in range(30)
        ]
        try:
            Learnt(3, [2, 0], "tree", queue).check()
        except (AssertionError, BadRecord) as error:
            print(f"{name}: caught by run {run}: {str(error)[:100]}")
            return
    pytest.fail(f"{name}: not caught")
