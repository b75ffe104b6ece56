"""Models of the user's own in a client: among its experts and beside it, remembered, and wrong in every
way."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from pofmkl.unit.test_windowed import assert_same_after_restart, learner, stream, take

from streamfl.configuration.settings import load_settings
from streamfl.contract.role import ConfigurationError, Measurement, Received, Record, Send, StateChange
from streamfl.learning.own_models import ModelFailures, OwnModel, decode_remembered
from streamfl.pofmkl.client.challenger_memory import REMEMBERED_EVERY
from streamfl.pofmkl.client.live_challengers import OFF_LABELS
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.client_journal import ChangedClientParts
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.stateful_experts import KIND, StatefulExperts
from streamfl.pofmkl.state import CHALLENGER
from streamfl.pofmkl.state_settings import client_state_settings
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind


def own(function: str, **keys: Any) -> OwnModel:
    return OwnModel(function, f"guest_models:{function}", **keys)


def guest(how: str, **parameters: Any) -> OwnModel:
    return own("Guest", parameters={"how": how, **parameters})


def counts(measurements: Iterable[Measurement], name: str) -> dict[str, float]:
    """A counter's values by reason, those that are not 0."""
    return {dict(one.labels)["reason"]: one.value for one in measurements if one.name == name and one.value}


def named(name: str, function: str, **keys: Any) -> OwnModel:
    return OwnModel(name, f"guest_models:{function}", **keys)


# Some that are right, and some that forget, refuse, grow or raise while the windows go round.
EXPERTS = (
    own("line"),
    "linear",
    named("steep", "line", parameters={"rate": 0.5}),
    own("Forgetful"),
    own("brief"),
    own("growing", state_bytes=150),
    named("none", "Counting", state_bytes=1),
    *(named(how, "Guest", parameters={"how": how, "after": 140}) for how in ("learn", "state", "restore")),
)


@pytest.mark.long
@pytest.mark.parametrize(("cut", "change"), [(288, None), (333, 300)])
def test_a_restart_changes_nothing(cut: int, change: int | None) -> None:
    """Protects law 3 with experts that remember themselves: whatever they forget, refuse or raise, a restart
    is not seen."""
    inputs, labels = stream(samples=450, change=change)
    assert_same_after_restart(
        inputs, labels, cut, {"river": EXPERTS, "detector": "none" if change is None else "adwin"}
    )


@pytest.mark.parametrize("cut", [256])
def test_a_restart_changes_nothing_where_labels_come_late(cut: int) -> None:
    """Protects the same where many labels come in a row and no sample between them, the first of them after
    the restart too."""
    inputs = stream(1, 400)[0][0]
    labels = 0.3 + 0.2 * inputs[:, 0]
    one, other = (learner(experts=(), river=(own("line"), own("Counting"))) for _ in range(2))
    parameters = np.zeros((one.kernels, one.row_length))

    def seen(some: DefaultLearner, row: int, start: int, stop: int) -> list[bytes]:
        return [
            some.predict(np.array([row]), inputs[t : t + 1], parameters).encoded()[0]
            for t in range(start, stop)
        ]

    def learn(some: DefaultLearner, row: int, start: int, forecasts: list[bytes]) -> None:
        for t, forecast in enumerate(forecasts, start):
            some.learn(np.array([row]), [forecast], labels[t : t + 1], parameters, np.zeros(one.kernels))

    other.borrow()
    row, theirs = one.borrow(), other.borrow()
    remembered: dict[bytes, bytes] = {}
    for start in range(0, cut, 20):
        learn(one, row, start, seen(one, row, start, min(start + 20, cut)))
        remembered |= one.parts(row)
    forecasts = seen(one, row, cut, 400)
    remembered |= one.parts(row)
    for key, value in remembered.items():
        other.restore_part(theirs, key, value)
    learn(one, row, cut, forecasts)
    learn(other, theirs, cut, forecasts)
    left, right = (dict(some.parts(at)) for some, at in ((one, row), (other, theirs)))
    assert left == right
    assert any(key[:1] == KIND for key in left)
    left, right = (
        some.predict(np.array([at]), inputs[:1], parameters).experts
        for some, at in ((one, row), (other, theirs))
    )
    np.testing.assert_array_equal(left, right)


def test_what_was_before_a_change_is_not_taken_back() -> None:
    """Protects a client whose samples are numbered anew: a state of the same number, of before that, is
    another one."""
    changed = ChangedClientParts()
    failures = ModelFailures("expert", ["Counting"])
    experts = StatefulExperts({0: own("Counting")}, "square", 1, 1, 8, changed, failures)
    experts.keep([3], np.zeros((4, 8, 2), np.float32), [4])
    assert [decode_remembered(value).number for _, value in changed.collect(3)] == [4]
    experts.begin_anew(3)
    assert [decode_remembered(value).state for _, value in changed.collect(3)] == [b""]


def expert_predictions(one: DefaultLearner, samples: int) -> tuple[np.ndarray[Any, Any], float]:
    """Of one's own experts after so many labels, and the running mean of the labels."""
    labels = np.random.default_rng(1).uniform(0, 1, (1, samples))
    row = one.borrow()
    take(one, [row], np.zeros((1, samples, 3)), labels)
    forecast = one.predict(np.array([row]), np.zeros((1, 3)), np.zeros((one.kernels, one.row_length)))
    return forecast.experts[0, one.kernels :], float(labels.mean())


def test_one_that_remembers_itself_knows_all_samples() -> None:
    """Protects what state and restore are for: 600 labels are known, where another model knows 256 at
    most."""
    one = learner(experts=(), river=(own("Counting"), own("brief")), detector="none")
    row = one.borrow()
    take(one, [row], np.zeros((1, 600, 3)), np.linspace(0, 1, 600)[None])
    forecast = one.predict(np.array([row]), np.zeros((1, 3)), np.zeros((one.kernels, one.row_length)))
    long, short = forecast.experts[0, one.kernels :]
    assert long == pytest.approx(600e-6, rel=1e-3)
    # It is kept above the smallest label of its window.
    assert short > 0.5


def test_a_state_beyond_its_bound_is_not_remembered() -> None:
    """Protects changelog and memory: the model begins anew with the latest samples, which is counted, and the
    rest goes on."""
    one = learner(experts=(), river=(own("growing", state_bytes=100),), detector="none")
    row = one.borrow()
    take(one, [row], np.zeros((1, 300, 3)), np.linspace(0, 1, 300)[None])
    kept = {key: value for key, value in one.parts(row) if key[:1] == KIND}
    assert all(len(value) < 100 for value in kept.values())
    assert counts(one.measure(), "expert_failures") == {"too_large": 2}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        *(
            ("predict", "predict"),
            ("exit", "predict"),
            ("learn", "learn"),
            ("state", "state"),
            ("restore", "state"),
        ),
        *((how, "no_number") for how in ("inf", "text")),
    ],
)
def test_an_expert_that_is_wrong_is_replaced_counted_and_told_once(
    how: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Protects a client from somebody's model: the running mean stands for it, and the log is not flooded."""
    with caplog.at_level(logging.WARNING):
        one = learner(experts=(), river=(guest(how),), detector="none")
        found, mean = expert_predictions(one, 300)
    measured = counts(one.measure(), "expert_failures")
    assert measured.keys() == {reason}
    assert measured[reason] >= 2
    assert [record.message for record in caplog.records if "expert Guest" in record.message] == [
        next(record.message for record in caplog.records if f"expert Guest: {reason}" in record.message)
    ]
    # What a model says is kept within the labels; off, it is the mean.
    if reason != "state":
        assert found[0] == pytest.approx(mean, rel=1e-6)


def sections(experts: list[str], challengers: list[str], models: dict[str, Any]) -> dict[str, Any]:
    return {
        "federation": {"name": "f", "clients": 3},
        "role": {"kind": "pofmkl-client"},
        "samples": {"topic": "t", "features": ["x", "z", "w"], "label": "y"},
        "learning": {"features_per_kernel": 2, "catch_up_samples": 0},
        "kernels": {"bandwidths": [1.0], "views": ["standardised"]},
        "experts": {"river": experts},
        "challengers": {"models": challengers},
        "models": models,
    }


def role(challengers: list[str], models: dict[str, Any]) -> PofmklClient:
    built = find_kind("pofmkl-client").build(PofmklSettings.model_validate(sections([], challengers, models)))
    assert isinstance(built, PofmklClient)
    built.open(0)
    return built


def arrived(count: int, client: str = "a", start: int = 0) -> list[Received]:
    samples = [
        Sample(client, str(n), (n / 100, 0.5, 1.0), 0.2 + n % 7 / 10) for n in range(start, start + count)
    ]
    return [Received("samples", one, Record("t", 0, 0, client.encode(), b"")) for one in samples]


def states(one: PofmklClient) -> dict[bytes, bytes | None]:
    return {
        change.key: change.value for change in one.changed_state() if change.key.startswith(CHALLENGER.prefix)
    }


def figure(one: PofmklClient, name: str, model: str) -> float:
    [found] = [
        item.value for item in one.measure() if item.name == name and dict(item.labels).get("model") == model
    ]
    return found


COUNTING = {"counter": {"make": "guest_models:Counting"}}


def test_a_challenger_goes_on_where_it_was_remembered() -> None:
    """Protects a comparison from every deployment of the worker: at most 63 labels are lost, and none that
    was remembered."""
    first = role(["counter"], COUNTING)
    first.receive(arrived(REMEMBERED_EVERY + 10), 1.0)
    remembered = states(first)
    assert remembered.keys() == {CHALLENGER.prefix + b"\0\1acounter"}
    again = role(["counter"], COUNTING)
    for key, value in remembered.items():
        again.restore(StateChange("state", 0, key, value))
    again.receive(arrived(REMEMBERED_EVERY), 2.0)
    [(_, value)] = states(again).items()
    other = role(["counter"], COUNTING)
    other.receive(arrived(2 * REMEMBERED_EVERY), 2.0)
    assert states(other) == {CHALLENGER.prefix + b"\0\1acounter": value}


def test_nobody_remembers_what_nobody_runs() -> None:
    """Protects the changelog from states that are kept for ever: a challenger was taken out of the settings,
    or its client went."""
    first = role(["counter"], COUNTING)
    first.receive(arrived(REMEMBERED_EVERY), 1.0)
    [(key, value)] = states(first).items()
    for others in (role([], {}), role(["last-label"], {})):
        others.restore(StateChange("state", 0, key, value))
        assert states(others) == {key: None}
        assert states(others) == {}
    assert first.forget("a")
    assert states(first) == {key: None}


@pytest.mark.parametrize("how", ["predict", "exit", "learn", "nan"])
def test_a_challenger_that_fails_comes_back(how: str) -> None:
    """Protects from one wrong moment that decides for good: it is off for some labels, counted once, and
    begins anew."""
    found = role(
        ["wrong", "last-label"], {"wrong": {"make": "guest_models:Guest", "parameters": {"how": how}}}
    )
    replies = found.receive(arrived(3), 1.0)
    assert sum(isinstance(one, Send) and one.channel == "predictions" for one in replies) == 3
    assert figure(found, "challenger_failures", "wrong") == 1
    assert figure(found, "challenger_labels", "wrong") == 2
    found.receive(arrived(OFF_LABELS - 1, start=3), 2.0)
    assert figure(found, "challenger_labels", "wrong") == 2
    found.receive(arrived(1, start=OFF_LABELS + 2), 3.0)
    assert figure(found, "challenger_labels", "wrong") == 3
    assert figure(found, "challenger_labels", "last-label") == OFF_LABELS + 3


@pytest.mark.parametrize(
    ("model", "reason"), [("growing", "too_large"), ("state", "state"), ("restore", "restore")]
)
def test_states_that_cannot_be_kept_are_counted(model: str, reason: str) -> None:
    """Protects whoever believes that a challenger is remembered: a metric says that it is not, and it is
    measured all the same."""
    models = {
        "growing": {"make": "guest_models:growing", "state_bytes": 20},
        "state": {"make": "guest_models:Guest", "parameters": {"how": "state", "after": 0}},
        "restore": {"make": "guest_models:Guest", "parameters": {"how": "restore", "after": 0}},
    }
    found = role([model], {model: models[model]})
    found.receive(arrived(REMEMBERED_EVERY), 1.0)
    if reason == "restore":
        kept, found = states(found), role([model], {model: models[model]})
        for key, value in kept.items():
            found.restore(StateChange("state", 0, key, value))
        found.receive(arrived(1), 1.0)
    assert counts(found.measure(), "challenger_state_failures") == {reason: 1}
    assert all(value is None for value in states(found).values())


def test_a_guest_has_an_input_of_its_own() -> None:
    """Protects the other challengers: one that empties its input must not leave them without."""
    alone, beside = role(["linear"], {}), role(["counter", "linear"], COUNTING)
    for one in (alone, beside):
        one.receive(arrived(40), 1.0)
    assert figure(alone, "challenger_rmse", "linear") == figure(beside, "challenger_rmse", "linear")


@pytest.mark.parametrize(
    ("experts", "challengers", "models", "said"),
    [
        (["lin"], [], COUNTING, "experts.river: 'lin' is not known: any of running-mean"),
        ([], ["last-label"], COUNTING, "models.counter: nobody uses it"),
        (
            ["knn"],
            [],
            {"knn": {"make": "guest_models:Counting"}},
            "'knn' is no name for a model of one's own",
        ),
        (["counter"], [], {"counter": {"maker": "x:y"}}, "models.counter.make is missing"),
        (
            ["counter"],
            [],
            {"counter": {"make": "guest_models:Counting", "state_bytes": 10**7}},
            "models.counter.state_bytes",
        ),
        (["guest_models:lines"], [], {}, "has no attribute 'lines'"),
    ],
)
def test_settings_are_told_before_anything_runs(
    experts: list[str], challengers: list[str], models: dict[str, Any], said: str
) -> None:
    """Protects the first try: exit code 2 and the key, rather than a worker without what it was asked for."""
    with pytest.raises(ConfigurationError) as found:
        load_settings(None, PofmklSettings, sections(experts, challengers, models))
    assert said in str(found.value)


def test_an_expert_stays_as_it_was_made() -> None:
    """Protects a client's weights: another model under the same name is refused at the start; its bound may
    change."""

    def made(**keys: Any) -> dict[str, Any]:
        given = sections(["line"], [], {"line": {"make": "guest_models:line", **keys}})
        return dict(client_state_settings(PofmklSettings.model_validate(given)).must_stay)

    before = made(parameters={"rate": 0.1})
    assert before["models.line.parameters"] == {"rate": 0.1}
    assert made(parameters={"rate": 0.2}) != before
    assert made(parameters={"rate": 0.1}, state_bytes=70_000) == before
    without = client_state_settings(PofmklSettings.model_validate(sections([], [], {})))
    assert not any(key.startswith("models") for key in without.values)
