"""The board of kernel federations, asked of a real Prometheus that has watched one through kills and
restarts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from live.watched import NOTHING_REFUSED, Watched, federation
from soak.subject import FEDERATION, Plan

pytestmark = pytest.mark.long

LABELS, PREDICTIONS = "labels", f"{FEDERATION}.predictions"
COUNT = 100


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A federation whose active party and whose others were killed at work, and that rests."""
    with federation("fdskl", Plan("newton", "sqlite"), tmp_path_factory.mktemp("kernels")) as found:
        for number, killed in enumerate(("bank", "shop")):
            columns, labels = found.load(number * COUNT, (number + 1) * COUNT)
            found.write(columns)
            enough = number * COUNT + COUNT // 4
            found.until_more(PREDICTIONS, enough)
            found.kill(killed)
            found.start(killed)
            found.rest()
            found.write(labels)
            found.rest()
        # A worker that comes back and has nothing to do.
        found.restart("bank")
        found.calm_from_now()
        for part in found.load(2 * COUNT, 3 * COUNT):
            found.write(part)
            found.rest()
        yield found


def scored(watched: Watched, first_version: int = 0) -> dict[int, list[tuple[float, float]]]:
    """By partition, the outputs of predictions and the labels, -1 and 1, that came of them. first_version:
    only of predictions by this version of a model or a later one."""
    newest = {one["entity"]: one for one in watched.contents(PREDICTIONS)}
    found: dict[int, list[tuple[float, float]]] = {}
    for one in watched.bus.read(LABELS):
        label = 2 * json.loads(one.value or b"")["y"] - 1
        prediction = newest[(one.key or b"").decode()]
        if prediction["model"] >= first_version:
            found.setdefault(one.partition, []).append((prediction["score"], label))
    return found


def losses(pairs: list[tuple[float, float]]) -> float:
    outputs, labels = np.array(pairs).T
    return float(np.log1p(np.exp(-outputs * labels)).sum())


def best_constant(pairs: list[tuple[float, float]]) -> float:
    count, positive = len(pairs), sum(label > 0 for _, label in pairs)
    return -sum(some * math.log(some / count) for some in (positive, count - positive) if some)


def test_loss_and_regret_are_those_of_the_topics(watched: Watched) -> None:
    """Protects whoever reads the board after a restart: loss, accuracy and regret are the topics', whoever
    was killed."""
    pairs = scored(watched)
    every = [pair for own in pairs.values() for pair in own]
    loss = sum(map(losses, pairs.values()))
    assert len(every) == watched.count(LABELS) > COUNT
    assert len({output for output, _ in every}) > COUNT // 2
    learnt = scored(watched, first_version=1).values()
    regrets = [losses(own) - best_constant(own) for own in learnt]
    regret = sum(regrets) / sum(map(len, learnt))
    assert watched.value("Regret per sample") == pytest.approx(regret, rel=1e-6)
    assert watched.value("Loss before the label") == pytest.approx(loss / len(every), rel=0.05)
    right = sum((output >= 0) == (label > 0) for output, label in every)
    assert watched.value("Accuracy before the label") == pytest.approx(right / len(every), rel=0.05)


def test_no_line_is_empty(watched: Watched) -> None:
    """Protects panels from being empty, or NaN, on a federation that works."""
    assert watched.empty() == NOTHING_REFUSED


def test_counts_are_those_of_the_topics(watched: Watched) -> None:
    """Protects every line that is a rate: what workers count is what lies in the topics."""
    truth = {
        "samples_total": COUNT * len(watched.files),
        "predictions_total": watched.written(PREDICTIONS),
        "labels_total": watched.written(LABELS),
        "scored_total": watched.written(LABELS),
        "rounds_announced_total": watched.written(f"{FEDERATION}.shop.rounds"),
        "sums_sent_total": watched.written(f"{FEDERATION}.bank.sums")
        + watched.written(f"{FEDERATION}.shop.sums"),
    }
    assert truth["rounds_announced_total"] > 0
    assert {counter: watched.counted(counter) for counter in truth} == truth


def test_gauges_are_what_is_remembered(watched: Watched) -> None:
    """Protects lines that are no rates: after restarts they show what the state holds, and nothing waits."""
    state = watched.left().latest(f"{FEDERATION}.bank.state")
    iterations = max(msgspec.msgpack.decode(value)[0] for (_, key), value in state.items() if key == b"model")
    assert watched.prometheus.value('max(streamfl_model_version{system="fdskl"})') == iterations > 0
    labelled = sum(key.startswith(b"labelled/") for _, key in state)
    assert watched.value("Labelled entities", "learnt from") == labelled > COUNT
    assert watched.value("Waiting", "predictions") == 0
    assert set(watched.ask("sum by (group) (streamfl_group_lag_records)").values()) == {0}


def test_the_service_is_as_it_is(watched: Watched) -> None:
    """Protects whoever is on call: who is up, what waits, and how often workers were started again are as
    they were."""
    assert watched.service() == watched.resting
