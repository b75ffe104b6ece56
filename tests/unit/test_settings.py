"""Settings: what wins, and that a mistake names key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfl.pofmkl.config import PofmklSettings
from streamfl.role import ConfigurationError
from streamfl.settings import load_kind, load_settings

GOOD = """
[federation]
name = "plant"
clients = 40
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
features = ["t1", "t2"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text(GOOD)
    return path


def test_overrides_win_over_the_environment_and_that_over_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator's STREAMFL_ variable must reach the worker, and a command's own option must beat it."""
    assert load_settings(config, PofmklSettings).federation.clients == 40
    monkeypatch.setenv("STREAMFL_FEDERATION__CLIENTS", "41")
    monkeypatch.setenv("STREAMFL_SAMPLES__FEATURES", '["a", "b", "c"]')
    loaded = load_settings(config, PofmklSettings)
    assert loaded.federation.clients == 41
    assert loaded.samples is not None
    assert loaded.samples.features == ["a", "b", "c"]
    assert loaded.samples.topic == "readings"
    assert load_settings(config, PofmklSettings, {"federation": {"clients": 42}}).federation.clients == 42


def test_client_options_from_the_environment_have_their_types(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kafka-python refuses a timeout that is text."""
    monkeypatch.setenv("STREAMFL_BUS__OPTIONS__session_timeout_ms", "6000")
    monkeypatch.setenv("STREAMFL_BUS__OPTIONS__sasl_mechanism", "PLAIN")
    options = load_settings(config, PofmklSettings).bus.options
    assert options == {"session_timeout_ms": 6000, "sasl_mechanism": "PLAIN"}


def test_constructing_settings_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation's settings are its own, whatever the operator's environment says."""
    monkeypatch.setenv("STREAMFL_FEDERATION__CLIENTS", "41")
    content = {"federation": {"name": "f", "clients": 3}, "role": {"kind": "pofmkl-server"}}
    assert PofmklSettings(**content).federation.clients == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("federation", "clients", 0, ["federation.clients", "0", "greater than or equal to 1"]),
        ("federation", "name", "two words", ["federation.name", "two words"]),
        ("bus", "urll", "x", ["bus.urll", "did you mean 'url'"]),
        ("bus", "processing_guarantee", "often", ["'often'", "'exactly_once' or 'at_least_once'"]),
        ("learning", "staleness", "eager", ["learning.staleness", "'eager'", "'lockstep', 'bounded' or 'async'"]),
        ("learning", "staleness", "bounded", ["max_staleness is missing"]),
        ("learning", "max_staleness", 3, ["max_staleness = 3", 'staleness = "lockstep"']),
        ("learning", "exploration", 1.5, ["learning.exploration", "1.5", "less than or equal to 1"]),
        ("uplink", "kernels_per_upload", 52, ["uplink.kernels_per_upload = 52", "1 to 51"]),
        ("samples", "label_range", [1, 0], ["samples.label_range", "smaller one first"]),
        ("samples", "features", ["a", "a"], ["samples.features", "none twice"]),
        ("kernels", "bandwidths", [1.0, -1.0], ["bandwidths", "positive"]),
        ("speed", "up", True, ["speed is not known", "samples"]),
    ],
)
def test_a_mistake_names_key_value_and_what_is_allowed(
    config: Path, section: str, key: str, value: object, expected: list[str]
) -> None:
    """Whoever reads the message has to be able to correct the file without reading the code."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, {section: {key: value}})
    for part in [str(config), *expected]:
        assert part in str(caught.value)


def test_every_mistake_is_reported_at_once(config: Path) -> None:
    """One start a mistake is no way to correct a file."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, {"federation": {"clients": 0}, "log": {"level": "loud"}})
    assert "federation.clients" in str(caught.value)
    assert "log.level" in str(caught.value)


def test_an_unknown_section_in_the_environment_is_a_mistake(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped variable must not be dropped in silence; one with a single underscore is not ours."""
    monkeypatch.setenv("STREAMFL_SERVICE_HOST", "10.0.0.1")
    load_settings(config, PofmklSettings)
    monkeypatch.setenv("STREAMFL_SAMPELS__TOPIC", "x")
    with pytest.raises(ConfigurationError, match=r"STREAMFL_SAMPELS__TOPIC.*did you mean 'samples'"):
        load_settings(config, PofmklSettings)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing or broken file is the operator's to correct: no traceback."""
    with pytest.raises(ConfigurationError, match=r"nothing\.toml: cannot be read"):
        load_settings(tmp_path / "nothing.toml", PofmklSettings)
    broken = tmp_path / "broken.toml"
    broken.write_text("[federation\n")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load_kind(broken)
    broken.write_text("[federation]\n")
    with pytest.raises(ConfigurationError, match=r"role\.kind is missing"):
        load_kind(broken)


def test_the_step_size_is_the_papers(config: Path) -> None:
    """eta = 1 / sqrt(T) unless it is given: the reproduction stands on it."""
    assert load_settings(config, PofmklSettings, {"learning": {"horizon": 400}}).learning.rate == 0.05
    assert load_settings(config, PofmklSettings, {"learning": {"learning_rate": 0.3}}).learning.rate == 0.3
