"""What bounds an input, a label and an update: one number spoils nothing, and clean numbers count as they are."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from identities import figure
from numpy.typing import NDArray

import streamfl
from streamfl.kernels import SQUARE
from streamfl.pofmkl import client_scales
from streamfl.pofmkl.config import BANDWIDTHS, PofmklSettings
from streamfl.pofmkl.default_learner import DefaultLearner
from streamfl.pofmkl.learner import Batch
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.server import PofmklServer
from streamfl.pofmkl.views import VIEWS, ViewedFeatures
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.wire import VERSION, encode_array

WRONG = 1e6


def stream(count: int) -> Iterator[tuple[dict[int, float], float]]:
    """Labels around 20, with a deviation of 4."""
    random = np.random.default_rng(0)
    for _ in range(count):
        x = random.normal(size=4)
        yield dict(enumerate(x.tolist())), 20 + 5 * float(np.sin(2 * x[0]) + 0.5 * x[1] * x[2] + 0.1 * random.normal())


def errors(wrong_label: int | None = None, wrong_input: int | None = None) -> NDArray[np.float64]:
    """Of a regressor, sample by sample, against the true label; one that it learns is wrong."""
    model, found = streamfl.Regressor(features_per_kernel=30), []
    for number, (x, y) in enumerate(stream(300)):
        found.append(abs(model.predict_one(x) - y))
        given = {**x, 0: WRONG} if number == wrong_input else x
        model.learn_one(given, WRONG if number == wrong_label else y)
    return np.array(found)


@pytest.fixture(name="clean", scope="module")
def _clean() -> NDArray[np.float64]:
    return errors()


@pytest.mark.parametrize("at", [0, 1, 5, 30, 150])
def test_one_wrong_label_spoils_a_regressor_for_no_hundreds_of_samples(clean: NDArray[np.float64], at: int) -> None:
    """Protects predictions from one label of a million: they were off by thousands for the rest of the stream."""
    spoilt = errors(wrong_label=at)
    # Which of the first labels is wrong shows once there are ten.
    since = max(at + 1, 10)
    assert spoilt[since : since + 100].mean() < 1.5 * clean[since : since + 100].mean()
    assert spoilt[200:].mean() < 1.2 * clean[200:].mean()


def test_one_wrong_input_spoils_a_regressor_no_more(clean: NDArray[np.float64]) -> None:
    """Protects a column from one wrong number in it: all later ones looked the same, for ever."""
    spoilt = errors(wrong_input=150)
    assert spoilt[151:].mean() < 1.2 * clean[151:].mean()


def test_what_was_bounded_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Protects who runs a regressor from a bound that acts in silence."""
    model = streamfl.Regressor(features_per_kernel=5)
    with caplog.at_level(logging.WARNING):
        for number, (x, y) in enumerate(stream(60)):
            model.learn_one({**x, 0: WRONG} if number == 40 else x, WRONG if number in (30, 50) else y)
    assert model.bounded == {"labels": 2, "inputs": 1}
    assert [record.args for record in caplog.records] == [("Regressor", "labels"), ("Regressor", "inputs")]


def test_clean_numbers_count_as_they_are_to_the_last_bit(clean: NDArray[np.float64], monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects everybody's predictions: bounds change nothing where nothing is too far out."""
    monkeypatch.setattr(client_scales, "reach", lambda counts, means, squares: np.full(means.shape, np.inf))
    assert errors().tolist() == clean.tolist()


def test_a_label_in_the_declared_range_counts_as_it_is_however_rare() -> None:
    """Protects alarms: where labels were 0 for a thousand samples and are in the range that was declared, a 1 is a 1."""
    learnt = [learner_of([*[0.0] * 500, 0.001, *[0.0] * 500], at) for at in (1.0, 50.0)]
    assert [one[0] for one in learnt] == [1.0, 1.0]
    assert [one[1] for one in learnt] == [0, 1]


def test_a_level_that_moves_for_good_is_followed() -> None:
    """Protects streams whose labels change for good from being held where they were."""
    random = np.random.default_rng(1)
    model, last = streamfl.Regressor(features_per_kernel=10), 0.0
    for number in range(260):
        x, y = {0: float(random.normal())}, float(random.normal()) + (100 if number >= 200 else 0)
        if number >= 220:
            last = max(last, abs(model.predict_one(x) - 100))
        model.learn_one(x, y)
    assert last < 20
    assert model.bounded["labels"] <= 5


def learner_of(labels: list[float], then: float) -> tuple[float, int]:
    """As what a label counts at the service's learner after these, and how many were bounded."""
    features = ViewedFeatures(VIEWS, BANDWIDTHS, 5, 1, 0)
    learner = DefaultLearner(features=features, loss=SQUARE, seed=0)
    row, parameters = np.array([learner.borrow()]), np.zeros((features.kernels, 10), np.float32)
    inputs = np.random.default_rng(0).uniform(-1, 1, (len(labels) + 1, 1))
    every = np.array([*labels, then])
    batch = Batch(row, np.array([0]), np.array([len(every)]), inputs, every, np.ones(len(every), np.bool_))
    learnt = learner.predict_and_learn(batch, parameters, np.zeros(features.kernels))
    assert every[-1] == then, "the caller's own labels stay as they are"
    return float(learnt.labels[-1]), learner.bounds.counts["labels"]


class Paper:
    """A client of two names and a server with ``preset = "paper"``, without keys, on the memory bus."""

    def __init__(self, **learning: Any) -> None:
        self.now = 1_700_000_000.0
        self.bus = MemoryBus(clock=lambda: self.now)
        content: dict[str, Any] = {
            "federation": {"name": "plant", "clients": 2, "features": ["x"]},
            "bus": {"commit_interval_ms": 0},
            "learning": {"preset": "paper", "features_per_kernel": 10, "learning_rate": 0.2, **learning},
            "kernels": {"bandwidths": [0.5, 1.0]},
            "samples": {"topic": "readings", "features": ["x"], "label": "y"},
        }
        own = [PofmklSettings(**content, role={"kind": f"pofmkl-{kind}"}) for kind in ("client", "server")]  # type: ignore[arg-type]
        specs = {spec.name: spec for one in own for spec in find_kind(one.role.kind).topics(one)}
        self.bus.create([type(spec)(spec.name, 1, spec.compacted) for spec in specs.values()])
        clock = lambda: self.now  # noqa: E731 - the same for both
        self.client, self.server = (build_worker(one, self.bus, clock, clock, lambda seconds: None) for one in own)
        self.random = np.random.default_rng(0)

    def learn(self, rounds: int, label: float | None = None) -> None:
        for _ in range(rounds):
            for name in ("a", "b"):
                x = float(self.random.uniform(-1, 1))
                y = 0.5 + 0.3 * float(np.sin(3 * x)) if label is None else label
                self.bus.write([Outgoing("readings", name.encode(), json.dumps({"x": x, "y": y}).encode(), 0)])
            self.settle()

    def settle(self) -> None:
        for _ in range(6):
            self.now += 0.7
            for worker in (self.client, self.server):
                worker.step(0.0)

    def stranger(self, number: float) -> None:
        role = self.server.role
        assert isinstance(role, PofmklServer)
        steps = encode_array(np.full((2, 20), number, np.float32))
        version = int(figure(self.server, "model_version"))
        update = Update(VERSION, role.fingerprint, 1, "a", 99, 1, version, 1, (0, 1), steps)
        self.bus.write([Outgoing("plant.updates", b"a", UPDATE.encode(update), 0)])
        self.settle()

    def errors(self, count: int) -> float:
        """Mean absolute error of the latest predictions."""
        found = [json.loads(one.value or b"") for one in self.bus.read("plant.predictions")][-count:]
        return float(np.mean([abs(one["prediction"] - one["label"]) for one in found]))

    def refused(self) -> list[str]:
        return [dict(letter.headers)["error"].decode() for letter in self.bus.read("plant.dead-letters")]


@pytest.mark.parametrize("number", [1e17, 1e6, 1.0])
def test_an_update_of_a_stranger_moves_the_papers_model_by_no_more_than_one_range(number: float) -> None:
    """Protects preset = "paper" without keys: one update of any size spoilt the model, and the weights of its kernels, for good."""
    honest, attacked = Paper(staleness="async"), Paper(staleness="async")
    for federation in (honest, attacked):
        federation.learn(100)
    attacked.stranger(number)
    for federation in (honest, attacked):
        federation.learn(100)
    assert attacked.refused() == ["too_large"]
    assert attacked.errors(100) == honest.errors(100) < 0.1


def test_the_longest_update_that_a_stranger_may_write_is_unlearnt() -> None:
    """Protects the same from what the bound lets through: its harm is of one label range, and learning undoes it."""
    honest, attacked = Paper(staleness="async"), Paper(staleness="async")
    for federation in (honest, attacked):
        federation.learn(100)
    attacked.stranger(2 / 20**0.5)
    for federation in (honest, attacked):
        federation.learn(100)
    assert attacked.refused() == []
    assert attacked.errors(100) < 2 * honest.errors(100)


def test_a_label_far_out_of_the_declared_range_counts_as_one_range_beyond_it_for_the_paper() -> None:
    """Protects the same from a wrong label of its own samples: it is learnt as 2, counted and told."""
    clean, spoilt = Paper(staleness="async"), Paper(staleness="async")
    for federation in (clean, spoilt):
        federation.learn(100)
        federation.learn(1, label=900.0 if federation is spoilt else None)
        federation.learn(100)
    assert spoilt.errors(100) < 1.2 * clean.errors(100)
    assert figure(spoilt.client, "bounded_labels") == 2
    assert figure(clean.client, "bounded_labels") == figure(clean.client, "bounded_steps") == 0


def test_an_honest_client_sends_no_step_that_the_server_refuses() -> None:
    """Protects learning under a rate that is far too large: steps are shortened, counted and heard, not refused."""
    federation = Paper(staleness="async", learning_rate=100.0)
    federation.learn(20)
    assert federation.refused() == []
    assert figure(federation.client, "bounded_steps") > 0
    assert figure(federation.server, "model_version") > 0
