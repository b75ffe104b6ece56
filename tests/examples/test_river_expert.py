"""The example of a River model runs as its page says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import run_command

EXAMPLE = Path(__file__).parents[2] / "examples" / "river_expert"
NAME = "own_models:bayesian_line"


def simulate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: Path
) -> dict[str, object]:
    """The figures of the page's command, with fewer rounds."""
    [line] = re.findall(
        r"^    PYTHONPATH=(.*)$", (EXAMPLE / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    folder, command, named, *rest = shlex.split(line)[0:1] + shlex.split(line)[2:]
    root = EXAMPLE.parents[1]
    assert (root / folder, command, root / named) == (EXAMPLE, "simulate", EXAMPLE / "client.toml")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    code, out, error = run_command(
        monkeypatch, capsys, command, str(config), *rest, "--rounds", "10", "--format", "json"
    )
    assert code == 0, error
    figures: dict[str, object] = json.loads(out)
    return figures


def test_the_model_takes_part_and_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects the extension point for models: the model changes the mixture, and its own error is
    reported."""
    figures = simulate(monkeypatch, capsys, EXAMPLE / "client.toml")
    errors = figures["challengers"]
    assert isinstance(errors, dict)
    assert errors.keys() == {NAME, "last-label"}
    text = (EXAMPLE / "client.toml").read_text(encoding="utf-8")
    without = tmp_path / "without.toml"
    without.write_text(text.replace(f'river = ["{NAME}"]', ""), encoding="utf-8")
    others = simulate(monkeypatch, capsys, without)
    assert others["rmse"] != figures["rmse"]
    assert others["challengers"] == errors


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("own_models:nothing", "has no attribute 'nothing'"),
        ("no_models:bayesian_line", "No module named 'no_models'"),
        ("pathlib:Path", "which has no learn_one and no predict_one"),
        ("river.linear_model:LogisticRegression", "no regressor of River's"),
        ("bayesian_line", "any of running-mean, last-label"),
        ("own models:line", "package.module:function"),
    ],
)
def test_a_wrong_name_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, named: str, said: str
) -> None:
    """Protects the first try: exit code 2 and the error in the name, instead of experts that are silently
    off."""
    config = tmp_path / "client.toml"
    config.write_text(
        (EXAMPLE / "client.toml").read_text(encoding="utf-8").replace(NAME, named), encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(EXAMPLE))
    code, _, error = run_command(
        monkeypatch, capsys, "simulate", str(config), "--data", "river:TrumpApproval", "--label", "y"
    )
    assert code == 2
    assert "experts.river" in error
    assert said in " ".join(error.split())


def test_a_regressor_is_no_classifier(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Protects clients with two classes from a model without probabilities, which would be wrong at every
    sample."""
    config = tmp_path / "client.toml"
    text = (EXAMPLE / "client.toml").read_text(encoding="utf-8")
    config.write_text(text + '\n[learning]\nloss = "logistic"\n', encoding="utf-8")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    code, _, error = run_command(
        monkeypatch, capsys, "simulate", str(config), "--data", "river:TrumpApproval", "--label", "y"
    )
    assert code == 2
    assert "no classifier of River's" in error
