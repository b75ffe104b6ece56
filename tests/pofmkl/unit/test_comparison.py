"""The comparison of methods: what it may be asked, and that every method is judged on the same streams by the
same rule."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import run_command

from streamfl.contract.role import ConfigurationError
from streamfl.learning.challengers import challenger, challenger_names
from streamfl.pofmkl.config import DriftSection, ExpertsSection, PofmklSettings
from streamfl.pofmkl.tools.comparison import Problem, compare, method_names, settings_of
from streamfl.pofmkl.tools.federation import simulate

SAMPLES, CLIENTS = 30, 3


def problem(kernels: dict[str, object] | None = None, **learning: object) -> Problem:
    generator = np.random.Generator(np.random.PCG64(3))
    inputs = generator.normal(size=(SAMPLES, CLIENTS, 2))
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": CLIENTS, "seed": 5},
            "role": {"kind": "pofmkl-client"},
            "samples": {
                "topic": "t",
                "features": ["a", "b"],
                "label": "y",
                "input_norm": 4.0,
                "label_range": [-2.0, 6.0],
            },
            "learning": {"staleness": "lockstep", "features_per_kernel": 5, **learning},
            "kernels": kernels or {"bandwidths": [0.5, 1.0, 2.0]},
            "uplink": {"kernels_per_upload": 2},
        }
    )
    return Problem(settings, inputs, 1.0 + inputs[..., 0] + 0.1 * generator.normal(size=(SAMPLES, CLIENTS)))


def test_every_method_predicts_before_it_sees_the_label() -> None:
    """Protects the comparison from a method that looks at what it is to predict: it would win every table."""
    whole = problem(preset="paper")
    changed = whole.labels.copy()
    changed[20:] += 0.5
    other = Problem(whole.settings, whole.inputs, changed)
    for one, two in zip(compare(whole, method_names()), compare(other, method_names()), strict=True):
        np.testing.assert_array_equal(one.predictions[:21], two.predictions[:21], err_msg=one.name)
        assert not np.array_equal(one.predictions[21:], two.predictions[21:]), one.name


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_the_federation_is_the_one_that_is_deployed(preset: str) -> None:
    """Protects the rows that the table is about: the same roles, the same bytes as ``streamfl simulate``."""
    given = problem(preset=preset)
    (found,) = compare(given, [preset])
    outcome = simulate(given.settings, given.inputs, given.labels, local_only=False)
    np.testing.assert_array_equal(found.predictions, outcome.predictions)
    assert found.uplink_bytes == outcome.uplink_bytes


def test_one_configuration_is_enough_for_both_presets() -> None:
    """Protects who compares presets whose keys exclude each other: what has no meaning in the other one is
    left out there."""
    default = problem(
        {"views": ["centred"], "bandwidths": [1.0, 2.0]},
        server_step="gradient",
        learning_rate=0.7,
        exploration=0.5,
    )
    own = {"experts": ExpertsSection(local=["last-label"]), "drift": DriftSection(detector="none")}
    paper = settings_of(default.settings.model_copy(update=own), "paper")
    assert PofmklSettings.model_validate(paper.model_dump(exclude_unset=True)).kernel_count == 51
    assert (paper.learning.rate, paper.learning.exploration, paper.learning.features_per_kernel) == (
        1000**-0.5,
        0.5,
        5,
    )
    assert paper.uplink.kernels_per_upload == 2
    other = problem(
        {"families": ["gaussian", "laplacian"], "bandwidths": [1.0]},
        preset="paper",
        horizon=7,
        regularisation=0.1,
    )
    back = settings_of(other.settings, "default")
    assert PofmklSettings.model_validate(back.model_dump(exclude_unset=True)).kernel_count == 12
    assert settings_of(paper, "paper") is paper
    for given in (default, other):
        names = [found.name for found in compare(given, ["default", "paper", "ofskl", "local"])]
        assert names == ["default", "paper", "ofskl", "local"]


def test_what_is_sent_fits_the_other_dictionary() -> None:
    """Protects a comparison of settings with more kernels an upload, or more shards, than the other preset
    has kernels."""
    given = problem({"bandwidths": np.linspace(0.1, 9.0, 40).tolist()}, preset="paper").settings
    many = given.model_copy(
        update={
            "uplink": given.uplink.model_copy(update={"kernels_per_upload": 40}),
            "federation": given.federation.model_copy(update={"shards": 30}),
        }
    )
    found = settings_of(many, "default")
    assert (found.uplink.kernels_per_upload, found.federation.shards, found.kernel_count) == (24, 24, 24)


def test_a_wrong_method_is_told_before_anything_runs() -> None:
    """Protects a user's minutes: a mistyped last name must not end a long run."""
    began: list[str] = []
    with pytest.raises(ConfigurationError, match=r"'knm'.*known are default"):
        list(compare(problem(), ["default", "knm"], began.append))
    assert began == []
    with pytest.raises(ConfigurationError, match=r"learning\.loss"):
        list(compare(problem(loss="logistic"), ["default"], began.append))


DELAY = 4


def late(given: Problem) -> Problem:
    return replace(given, delay=DELAY)


@pytest.mark.parametrize("name", method_names(DELAY))
def test_a_late_label_is_learnt_after_that_many_more_predictions(name: str) -> None:
    """Protects the late-label table: a label changes the prediction of the sample DELAY + 1 further on, and
    none before."""
    given = late(problem())
    changed = given.labels.copy()
    changed[10] += 1.5
    (one,), (two,) = compare(given, [name]), compare(replace(given, labels=changed), [name])
    first = 10 + DELAY + 1
    np.testing.assert_array_equal(one.predictions[:first], two.predictions[:first])
    assert not np.array_equal(one.predictions[first], two.predictions[first])


@pytest.mark.parametrize("name", challenger_names())
def test_a_late_challenger_is_told_each_sample_with_its_own_label(name: str) -> None:
    """Protects challengers from being told a label with another sample's inputs: here they are driven by
    hand."""
    given = late(problem())
    inputs, labels = given.scaled()
    (found,) = compare(given, [name])
    for client in range(CLIENTS):
        for number in range(0, SAMPLES, 7):
            learner = challenger(name)
            for earlier in range(number - DELAY):
                learner.learn(dict(enumerate(inputs[earlier, client])), labels[earlier, client])
            expected = learner.predict(dict(enumerate(inputs[number, client])))
            assert found.predictions[number, client] == pytest.approx(expected, abs=1e-12)


def test_methods_that_need_labels_at_once_say_so() -> None:
    """Protects the late-label table from the paper's methods learning from labels that are not there yet."""
    needing = set(method_names()) - set(method_names(DELAY))
    assert needing == {
        "paper", "ofskl", "ofmkl-avg", "vm-kofl-sum", "vm-kofl-mean", "em-kofl-sum", "em-kofl-mean",
        "per-fed-avg"
    }  # fmt: skip
    began: list[str] = []
    for name in needing:
        with pytest.raises(
            ConfigurationError,
            match=rf"'{name}': it needs labels at once, not {DELAY} samples late; default, local",
        ):
            list(compare(late(problem()), ["knn", name], began.append))
    budget = late(problem())
    uplink = budget.settings.uplink.model_copy(
        update={"kernels_per_upload": None, "budget_bytes_per_second": 1e4}
    )
    limited = replace(budget, settings=budget.settings.model_copy(update={"uplink": uplink}))
    with pytest.raises(ConfigurationError, match=r"uplink\.budget_bytes_per_second"):
        list(compare(limited, ["knn", "default"], began.append))
    assert began == []


def test_the_command_prints_one_object_and_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects scripts that read the figures, and the picture beside them."""
    given = problem()
    data, chart, configuration = tmp_path / "data.npz", tmp_path / "chart.svg", tmp_path / "client.toml"
    np.savez(data, X=given.inputs.reshape(-1, 2), y=given.labels.ravel())
    configuration.write_text(
        f'[federation]\nname = "f"\nclients = {CLIENTS}\n[role]\nkind = '
        '"pofmkl-client"\n[learning]\nfeatures_per_kernel = 4\n'
    )
    arguments = [
        "--data",
        str(data),
        "--methods",
        "default, paper,knn,running-mean",
        "--chart",
        str(chart),
        "--format",
        "json",
    ]
    code, out, _ = run_command(monkeypatch, capsys, "compare", configuration, *arguments)
    assert code == 0
    found = json.loads(out)
    assert found["clients"] == CLIENTS
    assert found["rounds"] == SAMPLES
    assert {method["method"] for method in found["methods"]} == {"default", "paper", "knn", "running-mean"}
    assert [method["rmse"] for method in found["methods"]] == sorted(
        method["rmse"] for method in found["methods"]
    )
    assert "<svg" in chart.read_text()
    code, out, _ = run_command(
        monkeypatch,
        capsys,
        "compare",
        configuration,
        "--data",
        data,
        "--delay-labels",
        3,
        "--chart",
        chart,
        "--format",
        "json",
    )
    found = json.loads(out)
    assert (code, found["delay_labels"]) == (0, 3)
    assert {method["method"] for method in found["methods"]} == set(method_names(3))
    assert all(method["about"] for method in found["methods"])
    code, _, error = run_command(
        monkeypatch,
        capsys,
        "compare",
        configuration,
        "--data",
        data,
        "--delay-labels",
        3,
        "--methods",
        "default,paper",
    )
    assert code == 2
    assert "labels at once" in error


@pytest.mark.parametrize(
    ("chart", "printed", "told"),
    [("chart.txt", False, "ending in .png or .svg"), ("nowhere/chart.png", True, "cannot be written")],
)
def test_a_picture_that_cannot_be_costs_no_results(
    chart: str,
    printed: bool,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects minutes of comparing: a name that is no picture's is told before the run, and a folder that is
    not there after the results; they were thrown away."""
    given = problem()
    data, configuration = tmp_path / "data.npz", tmp_path / "client.toml"
    np.savez(data, X=given.inputs.reshape(-1, 2), y=given.labels.ravel())
    configuration.write_text(
        f'[federation]\nname = "f"\nclients = {CLIENTS}\n[role]\nkind = "pofmkl-client"\n'
    )
    options = ("--data", data, "--methods", "running-mean", "--chart", tmp_path / chart)
    code, out, error = run_command(monkeypatch, capsys, "compare", configuration, *options)
    assert (code, "Methods on" in out, told in error) == (2, printed, True), error
