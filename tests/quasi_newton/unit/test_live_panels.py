"""The board of quasi-Newton federations, asked of a real Prometheus that has watched one through kills and
restarts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
import pytest
from live.watched import NOTHING_REFUSED, Watched, federation, replaced
from quasi_newton.proof.observed_messages import messages_of
from sklearn.metrics import roc_auc_score
from soak.subject import FEDERATION, Plan

from streamfl.quasi_newton.learning.descent import DescentState
from streamfl.quasi_newton.messages import StepDecision, read_content

pytestmark = pytest.mark.long

PREDICTIONS, PARTIES = f"{FEDERATION}.predictions", ("bank", "shop")
COUNT, MORE = 260, 60
NAMES = re.compile(rb"batch/\d+/names/")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A federation of which coordinator and guest were killed in a training, and that rests."""
    plan, folder = Plan("quasi-newton", "sqlite"), tmp_path_factory.mktemp("scorecard")
    # So long that a kill falls into it on a busy machine, too, and that iterations are left after it.
    with federation(
        "quasi-newton", plan, folder, lambda _, own: replaced(own, {"epochs = 4": "epochs = 16"})
    ) as found:
        found.write(*found.load(0, COUNT))
        for killed in ("coordinator", "bank"):
            said = found.count(f"{FEDERATION}.bank.decisions")
            found.until_more(f"{FEDERATION}.bank.decisions", said + 1)
            found.kill(killed)
            found.start(killed)
        found.until(lambda: found.count(PREDICTIONS) >= COUNT, "all are scored")
        found.rest()
        # Workers that come back and have nothing to do.
        found.kill("shop")
        found.start("shop")
        found.restart("coordinator")
        found.calm_from_now()
        found.write(*found.load(COUNT, COUNT + MORE))
        found.until(lambda: found.written(PREDICTIONS) > MORE, "all are scored")
        found.rest()
        yield found


def test_a_training_is_that_of_the_topics(watched: Watched) -> None:
    """Protects whoever looks at the board after restarts: loss, training, iterations and phases are the
    topics'."""
    decisions = messages_of(watched.left(), f"{FEDERATION}.bank.decisions")
    steps = [read_content(one.content, StepDecision) for one in decisions if one.kind == "step"]
    assert steps[-1].over
    # Nobody is told a loss: the coordinator alone knows it.
    assert not any(step.loss for step in steps)
    descent = watched.left().latest(f"{FEDERATION}.quasi-newton-coordinator.state")
    (state,) = [
        msgspec.msgpack.decode(value, type=DescentState)
        for (_, key), value in descent.items()
        if key == b"descent"
    ]
    assert watched.value("Loss") == pytest.approx(state.last_loss, rel=1e-9)
    of_members = watched.ask('max by (role) (streamfl_phase{system="$system"})')
    assert of_members == {
        f"quasi-newton-{kind}": phase for kind, phase in (("coordinator", 3), ("guest", 7), ("host", 7))
    }
    runs = len({one.run for one in decisions if one.kind == "begin"})
    trainings = watched.ask('streamfl_training{system="$system"}')
    assert set(trainings.values()) == {runs} == {1}
    iterations = len({one.round // 2 for one in decisions if one.kind == "step"})
    assert set(watched.ask('streamfl_iteration{system="$system"}').values()) == {iterations}
    assert set(watched.ask('streamfl_model_version{system="$system"}').values()) == {runs}


def test_counts_are_those_of_the_topics(watched: Watched) -> None:
    """Protects every line that is a rate: what workers count is what lies in the topics."""
    truth = {
        ("samples_total", "quasi-newton-guest"): MORE,
        ("samples_total", "quasi-newton-host"): MORE,
        ("labels_total", "quasi-newton-guest"): MORE,
        ("predictions_total", "quasi-newton-guest"): watched.written(PREDICTIONS),
        ("answered_entities_total", "quasi-newton-host"): MORE,
    }
    assert {one: watched.counted(*one) for one in truth} == truth


def test_the_model_is_judged_on_entities_that_it_has_not_seen(watched: Watched) -> None:
    """Protects the figure that a score is trusted by: the area is that of predictions and labels, of whoever
    was in no batch."""
    state = watched.left().latest(f"{FEDERATION}.bank.state")
    learnt = [
        name
        for (_, key), value in state.items()
        if NAMES.match(key)
        for name in msgspec.msgpack.decode(value)
    ]
    outputs = {
        one["entity"]: one["output"] for one in watched.contents(PREDICTIONS) if one["entity"] not in learnt
    }
    labels = {
        (one.key or b"").decode(): json.loads(one.value or b"")["y"] for one in watched.bus.read("labels")
    }
    assert len(outputs) + len(learnt) == COUNT + MORE
    area = roc_auc_score([labels[name] for name in outputs], list(outputs.values()))
    assert watched.value("Model on held-out entities", "AUC") == pytest.approx(area)


def test_no_line_is_empty(watched: Watched) -> None:
    """Protects panels from being empty, or NaN, on a federation that works, and after restarts."""
    assert watched.empty() == NOTHING_REFUSED


def test_the_service_is_as_it_is(watched: Watched) -> None:
    """Protects whoever is on call: who is up, what waits, and how often workers were started again are as
    they were."""
    assert watched.service() == watched.resting
