"""One iteration of each solver, its questions answered by plain arrays: what is asked, and what becomes of
the model."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fdskl.makers import settings_of
from numpy.typing import NDArray

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.learning.feature_cache import FeatureCache
from streamfl.fdskl.learning.iteration import BandwidthSearch, SgdIteration
from streamfl.fdskl.learning.labelled import LabelledEntities
from streamfl.fdskl.learning.model import KernelModel
from streamfl.fdskl.learning.newton_iteration import NewtonIteration
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.messages import DISTANCES
from streamfl.fdskl.sums.rounds import Question
from streamfl.state.changelog import ChangedParts

Floats = NDArray[np.float64]
PARTIES = 3
# So many entities and features are there at all.
ENTITIES, FEATURES = 40, 60
PHASES = np.random.default_rng(7).uniform(0, 2 * math.pi, (ENTITIES, FEATURES))
PHI = math.sqrt(2) * np.cos(PHASES)


def entity(number: int) -> str:
    return f"entity-{number}"


def number_of(name: str) -> int:
    return int(name.removeprefix("entity-"))


def learning(**changed: Any) -> FdsklSettings:
    section: dict[str, Any] = {
        "loss": "square",
        "bandwidth_multiplier": 0.5,
        "features_limit": 12,
        "block_features": 3,
        "block_instances": 4,
        "first_instances": 4,
        "window": 9,
        "visits": 2,
        "cache_bytes": 10**6,
        "regularisation": 0.01,
        "step": 0.5,
        **changed,
    }
    return settings_of("p0", 1, learning=section, aggregation={"circle_bits": 64}, alignment={"limit": 100})


class Active:
    """What an active party has for its iterations, and rounds that are answered by ``PHI``."""

    def __init__(self, settings: FdsklSettings) -> None:
        self.settings = settings
        learning = settings.learning
        self.parts = ChangedParts()
        self.labelled = LabelledEntities(self.parts, max(learning.window, learning.block_instances))
        self.model = KernelModel(self.parts, learning.block_features, learning.features_limit)
        self.model.set_bandwidth(1.0)
        self.cache = FeatureCache(self.model.block, self.model.limit, learning.cache_bytes)
        self.dropped = 0
        # By entity and feature, how often it was asked for.
        self.asked: Counter[tuple[int, int]] = Counter()
        self.known: dict[int, int] = {}
        self.remembered: dict[bytes, bytes] = {}

    def iteration(self) -> SgdIteration | NewtonIteration:
        if self.settings.learning.solver == "sgd":
            return SgdIteration(self.settings, self.model, self.labelled, self._drop)
        return NewtonIteration(self.settings, self.model, self.labelled, self.cache, self._drop)

    def label(self, rows: Sequence[int], label: Callable[[int], float]) -> None:
        for row in rows:
            self.labelled.add(entity(row), label(row))

    def answer(self, iteration: Any, questions: Sequence[Question]) -> None:
        for question in questions:
            rows = [number_of(name) for name in question.entities]
            features = [one.first + n for one in question.ranges for n in range(one.count)]
            self.asked.update((row, feature) for row in rows for feature in features)
            turns = PHASES[np.ix_(rows, features)] / (2 * math.pi)
            total = np.rint(turns * 2.0**53).astype(np.uint64).ravel() << np.uint64(11)
            known = np.array([self.known.get(row, PARTIES) for row in rows], np.uint8)
            iteration.answered(question, total, known)

    def run(self) -> None:
        """One iteration, the last answer coming first."""
        iteration = self.iteration()
        self.asked.clear()
        self.answer(iteration, list(iteration.questions())[::-1])
        assert iteration.ended

    def restart(self) -> Active:
        """Another life, of what this one remembered."""
        self.labelled.flush()
        for key, value in self.parts.changed_state():
            self.remembered.pop(key, None)
            if value is not None:
                self.remembered[key] = value
        again = Active(self.settings)
        again.parts.changed_state()
        again.remembered = self.remembered
        again.known, again.dropped = self.known, self.dropped
        for key, value in self.remembered.items():
            again.parts.restore(key, value)
        return again

    def _drop(self, count: int) -> None:
        self.dropped += count


def kept(active: Active) -> tuple[int, Floats]:
    """First kept feature, and the coefficients from it on."""
    expansion = active.model.snapshot()
    return expansion.first, expansion.alphas


# ---- sgd


def logistic_slope(output: float, label: float) -> float:
    """L'(u, y) of log(1 + exp(-y u)), the paper's Table 1."""
    return -label / (1 + math.exp(label * output))


def test_sgd_is_algorithm_1_coefficient_by_coefficient() -> None:
    """Protects what the paper's solver learns, also after a restart: alpha_new = -gamma / (B R) sum_b L'
    phi_new, every earlier alpha times 1 - gamma lambda, and beyond the limit the oldest features go.
    """
    gamma, decays, size, block, limit = 0.5, 1 - 0.5 * 0.01, 4, 3, 12
    active = Active(learning(solver="sgd", loss="logistic"))
    alphas: dict[int, float] = {}

    def label(row: int) -> float:
        return 1.0 if row % 3 else -1.0

    for number in range(7):
        if number == 3:
            active = active.restart()
        rows = [(number * size + n) % ENTITIES for n in range(size)]
        active.label(rows, label)
        active.run()
        slopes = [
            logistic_slope(sum(alpha * PHI[row, i] for i, alpha in alphas.items()), label(row))
            for row in rows
        ]
        new = range(number * block, (number + 1) * block)
        asked = {(row, feature) for row in rows for feature in (*alphas, *new)}
        assert set(active.asked) == asked
        assert set(active.asked.values()) == {1}
        alphas = {i: alpha * decays for i, alpha in alphas.items()}
        for i in new:
            alphas[i] = (
                -gamma
                / (size * block)
                * sum(slope * PHI[row, i] for slope, row in zip(slopes, rows, strict=True))
            )
        alphas = {i: alpha for i, alpha in alphas.items() if i >= (number + 1) * block - limit}
        first, found = kept(active)
        assert first == min(alphas)
        assert found == pytest.approx([alphas[i] for i in sorted(alphas)], rel=1e-9, abs=1e-13)
    assert (active.model.version, active.model.dropped, active.labelled.fresh) == (7, 7 * block - limit, 0)


def test_an_sgd_iteration_of_entities_that_are_gone_ends() -> None:
    """Protects learning from a halt: where all entities of an iteration were forgotten nothing can be asked,
    and the next one follows.
    """
    active = Active(learning(solver="sgd"))
    active.label(range(4), float)
    for row in range(4):
        active.labelled.forget(entity(row))
    active.run()
    assert not active.asked
    assert active.model.version == 1
    assert not kept(active)[1].any()
    assert active.labelled.fresh == 0
    active.label(range(4, 8), float)
    active.run()
    assert kept(active)[1].any()


def test_an_sgd_iteration_of_many_features_is_asked_in_parts() -> None:
    """Protects an iteration whose answers are longer than a record: parts in any order make the same
    coefficients."""
    features = 4000
    blocks = {"features_limit": features, "block_features": features, "block_instances": ENTITIES}
    active = Active(learning(solver="sgd", window=ENTITIES, **blocks))
    active.label(range(ENTITIES), lambda row: float(row % 2))
    iteration = active.iteration()
    questions = list(iteration.questions())
    assert len(questions) == 2
    assert [name for question in questions for name in question.entities] == [
        entity(row) for row in range(ENTITIES)
    ]
    phases = np.random.default_rng(1).uniform(0, 2 * math.pi, (ENTITIES, features))
    for question in questions[::-1]:
        assert not iteration.ended
        rows = [number_of(name) for name in question.entities]
        total = np.rint(phases[rows] / (2 * math.pi) * 2.0**53).astype(np.uint64).ravel() << np.uint64(11)
        iteration.answered(question, total, np.full(len(rows), PARTIES, np.uint8))
    # L'(0, y) of (u - y)^2 is -2 y.
    labels = np.arange(ENTITIES) % 2
    expected = 0.5 / (ENTITIES * features) * (2 * labels @ (math.sqrt(2) * np.cos(phases)))
    assert kept(active)[1] == pytest.approx(expected, rel=1e-7, abs=1e-15)


# ---- newton


class Descent:
    """The square loss minimised over one block of coefficients after the other, by the normal equations.

    min over alpha_b of sum_n (f_n - y_n)^2 / N + (lambda C / 2) |alpha|^2
    """

    def __init__(self, settings: KernelLearningSection) -> None:
        self.settings = settings
        self.blocks = settings.features_limit // settings.block_features
        self.alphas: dict[int, Floats] = {}
        self.turns = self.iterations = 0

    def phi(self, rows: Sequence[int], block: int) -> Floats:
        size = self.settings.block_features
        return PHI[np.ix_(rows, range(block * size, (block + 1) * size))]

    def outputs(self, rows: Sequence[int], without: int | None = None) -> Floats:
        parts = (self.phi(rows, block) @ own for block, own in self.alphas.items() if block != without)
        return sum(parts, np.zeros(len(rows)))

    def turn(self) -> list[int]:
        """Blocks whose turn it is: new ones while there is room, then the kept ones in order; one may give
        way to a new one."""
        visits, sweeps, known = self.settings.visits, self.settings.sweeps, sorted(self.alphas)
        new = known[-1] + 1 if known else 0
        if len(known) < self.blocks:
            return list(range(new, new + min(visits, self.blocks - len(known))))
        if sweeps is not None and self.iterations % math.ceil(sweeps / visits) == 0:
            del self.alphas[known[0]]
            return [
                new,
                *(
                    known[1 + (self.turns + n) % (self.blocks - 1)]
                    for n in range(min(visits, self.blocks) - 1)
                ),
            ]
        return [known[(self.turns + n) % self.blocks] for n in range(min(visits, self.blocks))]

    def iterate(self, rows: Sequence[int], labels: Floats) -> list[int]:
        # Of few entities the penalty is that of 1,024.
        few = max(1.0, 1024 / len(rows))
        penalty, turn = few * self.settings.regularisation * self.settings.features_limit, self.turn()
        for block in turn:
            phi, rest = self.phi(rows, block), labels - self.outputs(rows, without=block)
            normal = 2 / len(rows) * phi.T @ phi + penalty * np.eye(phi.shape[1])
            self.alphas[block] = np.linalg.solve(normal, 2 / len(rows) * phi.T @ rest)
        self.turns += len(turn)
        self.iterations += 1
        return turn


def truth(row: int) -> float:
    return math.sin(row) + row / 20


@pytest.mark.parametrize(
    ("changed", "restarts"),
    [
        ({}, (2, 6)),
        ({"cache_bytes": 0}, (5,)),
        ({"cache_bytes": 4 * 12 * 5}, ()),
        ({"sweeps": 3}, ()),
        ({"sweeps": 1, "visits": 1}, (4,)),
        ({"sweeps": 2, "cache_bytes": 0}, ()),
        ({"visits": 50}, ()),
        ({"features_limit": 3, "sweeps": 1}, (3,)),
        ({"block_features": 1, "features_limit": 5, "visits": 3}, ()),
        ({"window": 1}, ()),
    ],
)
def test_newton_is_the_least_squares_solution_block_by_block(
    changed: dict[str, Any], restarts: Sequence[int]
) -> None:
    """Protects what the default solver learns: each block is the minimum with all others fixed, over the
    window as it is, in the order that is promised; with any cache, restarted or not.
    """
    active = Active(learning(**changed))
    settings = active.settings.learning
    window = max(settings.window, settings.block_instances)
    oracle, shown = Descent(settings), []
    for number in range(9):
        if number in restarts:
            active = active.restart()
        rows = [(3 * number + n) % ENTITIES for n in range(settings.block_instances)]
        shown = [row for row in shown if row not in rows] + rows
        shown = shown[-window:]
        active.label(rows, truth)
        assert [number_of(name) for name in active.labelled] == shown
        active.run()
        oracle.iterate(shown, np.array([truth(row) for row in shown]))
        first, found = kept(active)
        assert first == min(oracle.alphas) * settings.block_features
        expected = np.concatenate([oracle.alphas[block] for block in sorted(oracle.alphas)])
        # Features are kept in float32.
        assert found == pytest.approx(expected, rel=1e-4, abs=2e-5)
        outputs = active.labelled.outputs_and_known([entity(row) for row in shown])[0]
        assert outputs == pytest.approx(oracle.outputs(shown), rel=1e-4, abs=1e-4)
        assert max(active.asked.values(), default=1) == 1
    assert active.model.dropped == min(oracle.alphas) * settings.block_features
    assert active.dropped == 0


def test_newton_asks_for_what_is_new_alone() -> None:
    """Protects the network: entities that were asked for are asked for new features only, and new entities
    for all of them."""
    active = Active(learning())
    active.label(range(4), truth)
    active.run()
    assert set(active.asked) == {(row, feature) for row in range(4) for feature in range(6)}
    active.label(range(4, 8), truth)
    active.run()
    old = {(row, feature) for row in range(4) for feature in range(6, 12)}
    assert set(active.asked) == old | {(row, feature) for row in range(4, 8) for feature in range(12)}
    active.label([8], truth)
    active.run()
    assert set(active.asked) == {(8, feature) for feature in range(12)}
    # All features are kept by now, and all entities are known.
    active.label([8], truth)
    active.run()
    assert not active.asked


def test_newton_without_a_cache_asks_for_the_blocks_of_the_turn() -> None:
    """Protects the network of who keeps nothing: not all kept features are asked for again, but those that
    are solved for."""
    active = Active(learning(cache_bytes=0))
    active.label(range(4), truth)
    active.run()
    active.run()
    active.run()
    assert set(active.asked) == {(row, feature) for row in range(4) for feature in range(6)}


def test_a_revised_entity_is_learnt_from_as_it_was_and_asked_for_anew() -> None:
    """Protects the window from mixed features: who has new columns in the middle of an iteration has no f and
    no features left. All are of what the parties know then, so that it stays even where one of them has
    forgotten it.
    """
    active = Active(learning())
    active.label(range(4), truth)
    iteration = active.iteration()
    questions = list(iteration.questions())
    iteration.revised(entity(2))
    active.answer(iteration, questions)
    outputs = active.labelled.outputs_and_known([entity(row) for row in range(4)])[0]
    assert np.isnan(outputs).tolist() == [False, False, True, False]
    active.known[2] = PARTIES - 1
    active.run()
    assert {feature for row, feature in active.asked if row == 2} == set(range(12))
    assert (active.dropped, len(active.labelled)) == (0, 4)
    assert {feature for row, feature in active.asked if row == 1} == set(range(6, 12))


def test_an_entity_of_which_a_party_forgot_its_columns_is_left_out() -> None:
    """Protects the model from means that stand for columns: the entity is forgotten and counted, the others
    are learnt from."""
    active, oracle = Active(learning()), Descent(learning().learning)
    active.label(range(5), truth)
    active.run()
    oracle.iterate(range(5), np.array([truth(row) for row in range(5)]))
    active.known[3] = PARTIES - 1
    active.run()
    rest = [0, 1, 2, 4]
    oracle.iterate(rest, np.array([truth(row) for row in rest]))
    assert active.dropped == 1
    assert [number_of(name) for name in active.labelled] == rest
    assert kept(active)[1] == pytest.approx(np.concatenate(list(oracle.alphas.values())), rel=1e-4, abs=2e-5)


def test_an_entity_that_never_had_all_columns_stays() -> None:
    """Protects learning where a party never knew an entity: its mean stands in from the beginning, and that
    is what is learnt."""
    active = Active(learning())
    active.known = dict.fromkeys(range(4), PARTIES - 1)
    active.label(range(4), truth)
    active.run()
    active.run()
    assert (active.dropped, len(active.labelled)) == (0, 4)


def test_newton_of_an_empty_window_ends() -> None:
    """Protects learning from a halt where all labelled entities are gone."""
    active = Active(learning())
    active.run()
    assert active.model.version == 1
    assert not kept(active)[1].any()


# ---- bandwidth


@pytest.mark.parametrize("laplacian", [False, True])
@pytest.mark.parametrize("count", [9, 40])
def test_the_bandwidth_is_the_median_distance(laplacian: bool, count: int) -> None:
    """Protects the kernel's scale: entities two by two, the latest ones, distance 0 left out, times the
    multiplier."""
    active = Active(
        learning(
            bandwidth=None,
            bandwidth_multiplier=0.7,
            kernel="laplacian" if laplacian else "gaussian",
            window=100,
        )
    )
    active.label(range(count), truth)
    search = BandwidthSearch(active.settings, active.model, active.labelled)
    (question,) = search.questions()
    assert (question.purpose, list(question.ranges)) == (DISTANCES, [])
    assert list(question.entities) == [entity(row) for row in range(count)][: count // 2 * 2]
    distances = np.random.default_rng(count).uniform(0.5, 3.0, count // 2)
    distances[:2] = 0.0
    parts = np.rint((distances if laplacian else distances**2) * 2.0**24).astype(np.uint64)
    search.answered(question, parts, np.full(len(question.entities), PARTIES, np.uint8))
    assert search.ended
    assert active.model.bandwidth == pytest.approx(0.7 * np.median(distances[2:]), rel=1e-6)


def test_entities_that_are_all_alike_have_a_bandwidth() -> None:
    """Protects learning from a kernel of width 0."""
    active = Active(learning(bandwidth=None, bandwidth_multiplier=0.7, window=100))
    active.label(range(4), truth)
    search = BandwidthSearch(active.settings, active.model, active.labelled)
    (question,) = search.questions()
    search.answered(question, np.zeros(2, np.uint64), np.zeros(4, np.uint8))
    assert active.model.bandwidth == 0.7


@pytest.mark.parametrize(("multiplier", "found"), [(1e3, 1e12), (1e-300, 1e-12)])
def test_a_median_beyond_all_bandwidths_becomes_the_nearest(multiplier: float, found: float) -> None:
    """Protects an active party from announcing a round that every party refuses, itself too, at which it
    would end."""
    settings = learning(bandwidth=None, kernel="laplacian", window=100)
    # The settings' bounds keep a median of whole steps above the smallest bandwidth.
    section = settings.learning.model_copy(update={"bandwidth_multiplier": multiplier})
    active = Active(settings.model_copy(update={"learning": section}))
    search = BandwidthSearch(active.settings, active.model, active.labelled)
    total = np.full(3, 2**63, np.uint64)
    search.answered(Question(search, DISTANCES, [], []), total, np.zeros(6, np.uint8))
    assert active.model.bandwidth == found
