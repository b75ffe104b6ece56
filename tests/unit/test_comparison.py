"""The comparison of methods: what it may be asked, and that every method is judged on the same streams by the same rule."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run_command

from streamfl.challengers import challenger, challenger_names
from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.simulation.comparison import Problem, compare, method_names
from streamfl.simulation.federation import simulate

SAMPLES, CLIENTS = 30, 3


def problem(**learning: object) -> Problem:
    generator = np.random.Generator(np.random.PCG64(3))
    inputs = generator.normal(size=(SAMPLES, CLIENTS, 2))
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": CLIENTS, "seed": 5},
            "role": {"kind": "pofmkl-client"},
            "samples": {"topic": "t", "features": ["a", "b"], "label": "y", "input_norm": 4.0, "label_range": [-2.0, 6.0]},
            "learning": {"features_per_kernel": 5, **learning},
            "kernels": {"bandwidths": [0.5, 1.0, 2.0]},
            "uplink": {"kernels_per_upload": 2},
        }
    )
    return Problem(settings, inputs, 1.0 + inputs[..., 0] + 0.1 * generator.normal(size=(SAMPLES, CLIENTS)))


def test_every_method_predicts_before_it_sees_the_label() -> None:
    """Protects the comparison from a method that looks at what it is to predict: it would win every table."""
    whole = problem()
    changed = whole.labels.copy()
    changed[20:] += 0.5
    other = Problem(whole.settings, whole.inputs, changed)
    for one, two in zip(compare(whole, method_names()), compare(other, method_names()), strict=True):
        np.testing.assert_array_equal(one.predictions[:21], two.predictions[:21], err_msg=one.name)
        assert not np.array_equal(one.predictions[21:], two.predictions[21:]), one.name


def test_errors_are_of_the_labels_of_the_learning_scale() -> None:
    """Protects the table: a method whose error is in another unit than its neighbours' cannot be compared."""
    given = problem()
    scaled = (given.labels + 2.0) / 8.0
    for contender in compare(given, method_names()):
        np.testing.assert_allclose(contender.squared_errors, (contender.predictions - scaled) ** 2, err_msg=contender.name)
        assert contender.squared_errors.shape == (SAMPLES, CLIENTS)


def test_the_federation_is_the_one_that_is_deployed() -> None:
    """Protects the row that the table is about: the same roles, the same bytes as ``streamfl simulate``."""
    given = problem()
    (found,) = compare(given, ["pofmkl"])
    outcome = simulate(given.settings, given.inputs, given.labels, local_only=False)
    np.testing.assert_array_equal(found.predictions, outcome.predictions)
    assert found.uplink_bytes == outcome.uplink_bytes


def test_learning_alone_sends_nothing_and_hears_nobody() -> None:
    """Protects the yardstick 'local': a client's predictions must not depend on the other clients' samples."""
    given = problem()
    (together,) = compare(given, ["local"])
    alone = Problem(given.settings, given.inputs[:, :1], given.labels[:, :1])
    (first,) = compare(alone, ["local"])
    np.testing.assert_array_equal(together.predictions[:, 0], first.predictions[:, 0])
    assert together.uplink_bytes == 0


def test_trivial_challengers_are_what_they_are_called() -> None:
    """Protects the two yardsticks that embarrass most learners."""
    mean, last = challenger("running-mean"), challenger("last-label")
    seen: list[tuple[float, float]] = []
    for label in (4.0, 1.0, 7.0):
        seen.append((mean.predict({}), last.predict({})))
        for one in (mean, last):
            one.learn({}, label)
    assert seen == [(0.0, 0.0), (4.0, 4.0), (2.5, 1.0)]
    assert (mean.predict({}), last.predict({})) == (4.0, 7.0)


@pytest.mark.parametrize("name", challenger_names())
def test_challengers_stay_between_the_labels_that_they_have_seen(name: str) -> None:
    """Protects the comparison from a linear model's first steps, which are off by orders of magnitude."""
    one = challenger(name)
    generator = np.random.Generator(np.random.PCG64(1))
    labels = generator.uniform(-3.0, 2.0, size=25)
    for number, label in enumerate(labels.tolist()):
        inputs = dict(enumerate((1e3 * generator.normal(size=2)).tolist()))
        if number:
            assert labels[:number].min() <= one.predict(inputs) <= labels[:number].max()
        one.learn(inputs, label)


def test_a_wrong_method_is_told_before_anything_runs() -> None:
    """Protects a user's minutes: a mistyped last name must not end a long run."""
    began: list[str] = []
    with pytest.raises(ConfigurationError, match=r"'knm'.*known are pofmkl"):
        list(compare(problem(), ["pofmkl", "knm"], began.append))
    assert began == []
    with pytest.raises(ConfigurationError, match=r"learning\.loss"):
        list(compare(problem(loss="logistic"), ["pofmkl"], began.append))


def test_the_command_prints_one_object_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects scripts that read the figures, and the picture beside them."""
    given = problem()
    data, chart, configuration = tmp_path / "data.npz", tmp_path / "chart.svg", tmp_path / "client.toml"
    np.savez(data, X=given.inputs.reshape(-1, 2), y=given.labels.ravel())
    configuration.write_text(
        f'[federation]\nname = "f"\nclients = {CLIENTS}\n[role]\nkind = "pofmkl-client"\n[learning]\nfeatures_per_kernel = 4\n'
    )
    arguments = ["--data", str(data), "--methods", "pofmkl, knn,running-mean", "--chart", str(chart), "--format", "json"]
    code, out, _ = run_command(monkeypatch, capsys, "compare", configuration, *arguments)
    assert code == 0
    found = json.loads(out)
    assert found["clients"] == CLIENTS
    assert found["rounds"] == SAMPLES
    assert {method["method"] for method in found["methods"]} == {"pofmkl", "knn", "running-mean"}
    assert [method["mse"] for method in found["methods"]] == sorted(method["mse"] for method in found["methods"])
    assert "<svg" in chart.read_text()
