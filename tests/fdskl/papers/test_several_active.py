"""Several active parties learn one model, alpha for alpha what one list of all iterations gives: Gu et al.
2020, Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from streamfl.fdskl.messages import OUTPUTS, PARTIAL_SUM, ROUND
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all
from streamfl.runtime.bus import Outgoing

Floats = NDArray[np.float64]
COLUMNS, ROWS, PARTIES = 8, 48, 4
BLOCK, SIZE, STEP, DECAY = 4, 3, 0.7, 1e-2


def data() -> tuple[Floats, Floats]:
    random = np.random.default_rng(11)
    x = random.normal(size=(ROWS + 5, COLUMNS))
    return x, (np.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).astype(float)


def made(
    active: Sequence[str],
    topology: str = "tree",
    overheard: Callable[[Outgoing], None] | None = None,
    **sections: dict[str, Any],
) -> KernelFederation:
    """A federation that has not learnt yet."""
    x, y = data()
    parts = np.array_split(np.arange(COLUMNS), PARTIES)
    small = {
        "solver": "sgd", "bandwidth": 2.0, "block_instances": BLOCK, "block_features": SIZE,
        "features_limit": 24, "step": STEP,
        "regularisation": DECAY, "window": 64,
    }  # fmt: skip
    settings = settings_of_all(
        [f"p{number}" for number in range(PARTIES)],
        federation={"seed": 5, "active": list(active)},
        learning=small | sections.get("learning", {}),
        aggregation={"topology": topology, "circle_bits": 64} | sections.get("aggregation", {}),
        standardisation={"columns": False, "transform": "none"},
    )
    names = [[f"c{column}" for column in part] for part in parts]
    return KernelFederation(settings, [x[:, part] for part in parts], names, y, overheard=overheard)


def learn(federation: KernelFederation, between: Callable[[int], None] = lambda batch: None) -> None:
    """All rows, a few at a time, and five more that the whole model predicts. between: done while each few
    are learnt from."""
    for batch, begin in enumerate(range(0, ROWS, 12)):
        federation.write_samples(range(begin, begin + 12))
        federation.run()
        federation.write_labels(range(begin, begin + 12))
        between(batch)
        federation.run()
    federation.write_samples(range(ROWS, ROWS + 5))
    federation.run()


def alphas(federation: KernelFederation) -> Floats:
    """Of every kept feature, whoever has it."""
    return np.asarray(sum(one.alphas for one in federation.expansions.values()))


def phi(federation: KernelFederation, count: int) -> Floats:
    """Features of all rows, of everybody's frequencies, (rows, count)."""
    bandwidth = federation.held.model.bandwidth
    assert bandwidth is not None
    phases = np.zeros((ROWS + 5, count))
    for role, own in zip(federation.roles.values(), federation.inputs.values(), strict=True):
        drawn = role.partition(0).sums.own_part.contributions.frequencies(bandwidth)
        phases += own @ drawn.frequencies(0, count).T + drawn.offsets(0, count)
    return np.sqrt(2.0) * np.cos(phases)


def oracle(features: Floats, learners: Sequence[str], known: dict[str, list[int]], kept: int = 24) -> Floats:
    """alpha_1, alpha_2, … of Algorithm 1, one iteration after the other: of its learner's next rows, and
    earlier ones decay."""
    signs = 2 * data()[1] - 1
    found = np.zeros(features.shape[1])
    left = {name: list(rows) for name, rows in known.items()}
    for t, name in enumerate(learners):
        rows, left[name] = left[name][:BLOCK], left[name][BLOCK:]
        new = slice(t * SIZE, (t + 1) * SIZE)
        f = features[rows] @ found
        slopes = -signs[rows] / (1 + np.exp(signs[rows] * f))
        found *= 1 - STEP * DECAY
        found[new] = -STEP / (BLOCK * SIZE) * (features[rows][:, new].T @ slopes)
        found[: max(0, (t + 1) * SIZE - kept)] = 0.0
    return found


def check_equals_the_oracle(federation: KernelFederation, kept: int = 24) -> None:
    """Every coefficient, every owner, and what was published of the last rows."""
    learners, names = federation.learners, federation.settings.federation.active_parties
    assert len(learners) == ROWS // BLOCK
    assert set(learners) == set(names)
    known = {name: [row for row in range(ROWS) if federation.learner_of(row) == name] for name in names}
    features = phi(federation, len(learners) * SIZE)
    expected = oracle(features, learners, known, kept)
    first = max(0, len(expected) - kept)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(alphas(federation), expected[first:], rtol=0, atol=1e-9)
    for name, one in federation.expansions.items():
        mine = np.repeat([learner == name for learner in learners], SIZE)[first:]
        assert (one.version, one.first, len(one.alphas)) == (len(learners), first, len(expected) - first)
        assert not one.alphas[~mine].any()
        assert np.all(one.alphas[mine] != 0.0)
    said = {one.entity: one for one in federation.predictions()}
    last = [said[str(row)] for row in range(ROWS, ROWS + 5)]
    assert {one.model for one in last} == {len(learners)}
    assert {one.parties for one in last} == {PARTIES}
    np.testing.assert_allclose([one.score for one in last], features[ROWS:] @ expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("active", "topology"),
    [(("p2", "p0"), "tree"), (("p3", "p1", "p2"), "ring"), (("p0", "p1", "p2", "p3"), "star")],
)
def test_several_active_parties_learn_what_one_would(active: Sequence[str], topology: str) -> None:
    """Protects the paper's sum over active workers: coefficients to 1e-9, predictions, and who has which,
    under every topology."""
    federation = made(active, topology)
    learn(federation)
    check_equals_the_oracle(federation)


def test_workers_that_are_taken_up_by_others_learn_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Protects the worker's own way of it, with changelog and positions: any party ends in the middle of
    others' iterations."""
    federation = made(("p2", "p0"))
    names = list(federation.workers)
    random = np.random.default_rng(2)

    def restarts(_batch: int) -> None:
        for _ in range(6):
            federation.run(float(random.integers(1, 12)) / 1000)
            federation.restart(names[int(random.integers(PARTIES))])

    learn(federation, restarts)
    check_equals_the_oracle(federation)
    assert "given up because a party restarted" in caplog.text


def test_the_first_turn_finds_the_bandwidth_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects features of one kernel: whoever learns first measures the distances, and the others take its
    word."""
    monkeypatch.setattr(f"{__name__}.ROWS", 144)
    federation = made(("p3", "p1"), learning={"bandwidth": None, "features_limit": 96, "window": 100})
    learn(federation)
    first, second = (one.bandwidth for one in federation.expansions.values())
    assert first == second == pytest.approx(0.7 * np.sqrt(2 * COLUMNS), rel=0.2)
    check_equals_the_oracle(federation, kept=96)


def test_predictions_go_on_while_others_learn() -> None:
    """Protects whoever waits for predictions: each is by a version that there was, exactly, and none waits
    for learning to end."""
    federation = made(("p0", "p1"), learning={"features_limit": 300})
    federation.write_samples(range(ROWS))
    federation.run()
    models: dict[int, Floats] = {}
    for begin in range(0, ROWS, 8):
        federation.write_labels(range(begin, begin + 8))
        federation.write_samples(range(ROWS, ROWS + 5))
        while True:
            before = federation.now
            federation.run(0.0005)
            parts = list(federation.expansions.values())
            if len({one.version for one in parts}) == 1:
                models[parts[0].version] = np.sum([one.alphas for one in parts], axis=0)
            if federation.now == before or not any(role.waiting for role in federation.roles.values()):
                break
        federation.run()
    features = phi(federation, len(federation.learners) * SIZE)
    said = [one for one in federation.predictions() if int(one.entity) >= ROWS and one.model in models]
    assert len({one.model for one in said}) > 3
    for one in said:
        alphas = models[one.model]
        assert one.score == pytest.approx(features[int(one.entity), : len(alphas)] @ alphas, abs=1e-9)


def test_parts_of_f_travel_under_masks_of_their_own() -> None:
    """Protects f_l' from whoever reads the bus: what a leaf sends looks uniform, and two messages of the same
    f_l' have nothing in common."""
    said: dict[str, list[NDArray[np.uint64]]] = {"p1": [], "p3": []}
    asked: set[tuple[int, int]] = set()

    def overheard(one: Outgoing) -> None:
        if one.topic == "f.p3.rounds":
            announced = ROUND.decode(one.value)
            if announced.sender == "p0" and announced.purpose == OUTPUTS:
                asked.add((announced.incarnations[0], announced.number))
        elif one.topic == "f.p0.sums":
            message = PARTIAL_SUM.decode(one.value)
            if message.sender in said and (message.incarnation, message.number) in asked:
                said[message.sender].append(np.frombuffer(message.values, "<u8"))

    federation = made(("p0", "p1", "p2"), "star", overheard=overheard)
    learn(federation)
    for parts in said.values():
        numbers = np.concatenate(parts)
        assert len(numbers) > 60
        assert len(set(numbers.tolist())) == len(numbers)
        assert scipy.stats.kstest(numbers / 2.0**64, "uniform").pvalue > 1e-3


def test_a_part_of_f_that_is_too_large_is_refused_and_said(caplog: pytest.LogCaptureFixture) -> None:
    """Protects a sum from numbers that would wrap around: with a step that diverges nobody answers, and
    somebody says why."""
    federation = made(("p0", "p1"), learning={"step": 1e6, "regularisation": 1e-7})
    federation.write_samples(range(ROWS))
    federation.run()
    federation.write_labels(range(ROWS))
    federation.run(100.0)
    assert "learning diverges" in caplog.text
    assert (
        federation.figure("p0", PartyMetrics.abandoned_rounds)
        + federation.figure("p1", PartyMetrics.abandoned_rounds)
        > 0
    )
    assert max(np.abs(one.alphas).max() for one in federation.expansions.values()) > 1e4
