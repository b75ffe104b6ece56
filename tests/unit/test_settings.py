"""Settings: their precedence, and that an error names key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamfl.configuration.settings import RoleSettings, Section, load_kind, load_settings
from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.kinds import find_kind

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


def test_overrides_win_over_the_environment_and_that_over_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's STREAMFL_ variable must reach the worker, and a command's option must override it."""
    assert load_settings(config, PofmklSettings).federation.clients == 40
    monkeypatch.setenv("STREAMFL_FEDERATION__CLIENTS", "41")
    monkeypatch.setenv("STREAMFL_SAMPLES__FEATURES", '["a", "b", "c"]')
    loaded = load_settings(config, PofmklSettings)
    assert loaded.federation.clients == 41
    assert loaded.samples is not None
    assert loaded.samples.features == ["a", "b", "c"]
    assert loaded.samples.topic == "readings"
    assert load_settings(config, PofmklSettings, {"federation": {"clients": 42}}).federation.clients == 42


def test_client_options_from_the_environment_have_their_types(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kafka-python refuses a timeout that is text."""
    monkeypatch.setenv("STREAMFL_BUS__OPTIONS__session_timeout_ms", "6000")
    monkeypatch.setenv("STREAMFL_BUS__OPTIONS__sasl_mechanism", "PLAIN")
    options = load_settings(config, PofmklSettings).bus.options
    assert options == {"session_timeout_ms": 6000, "sasl_mechanism": "PLAIN"}


def test_constructing_settings_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation's settings must not depend on the operator's environment."""
    monkeypatch.setenv("STREAMFL_FEDERATION__CLIENTS", "41")
    content = {"federation": {"name": "f", "clients": 3}, "role": {"kind": "pofmkl-server"}}
    assert PofmklSettings(**content).federation.clients == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("federation", "clients", 0, ["federation.clients", "0", "greater than or equal to 1"]),
        ("federation", "name", "two words", ["federation.name", "two words"]),
        ("bus", "urll", "x", ["bus.urll", "did you mean 'url'"]),
        (
            "learning",
            "staleness",
            "eager",
            ["learning.staleness", "'eager'", "'lockstep', 'bounded' or 'async'"],
        ),
        ("learning", "max_staleness", 3, ["learning.max_staleness = 3", 'staleness = "async"']),
        ("uplink", "kernels_per_upload", 52, ["uplink.kernels_per_upload = 52", "1 to 24"]),
        (
            "learning",
            "shared_directions",
            True,
            ["learning.shared_directions", 'learning.preset = "default"', '"paper"'],
        ),
        ("learning", "staleness", "bounded", ["learning.max_staleness is missing"]),
        (
            "federation",
            "clients",
            10**26,
            ["federation.clients = 1" + 26 * "0", "less than or equal to 1000000"],
        ),
        (
            "learning",
            "upload_interval_ms",
            10**400,
            ["learning.upload_interval_ms = 1", "less than or equal to 86400000"],
        ),
        ("federation", "clients", True, ["federation.clients = True", "a number is expected"]),
        ("federation", "shards", 52, ["federation.shards = 52", "number of kernels is 24", "1 to 24"]),
        ("samples", "label_range", [1, 0], ["samples.label_range", "smaller one first"]),
        (
            "samples",
            "label_range",
            [1.0],
            ["samples.label_range = [1.0]: two finite numbers", "smaller one first"],
        ),
        ("samples", "label_range", [-1e308, 1e308], ["samples.label_range = [-1e+308, 1e+308]", "1e+300"]),
        ("samples", "topic", "two words", ["samples.topic = 'two words'", "1 to 249 letters"]),
        ("samples", "topic", "line\n", ["samples.topic = 'line\\n'", "1 to 249 letters"]),
        ("samples", "topic", "..", ["samples.topic = '..'", "1 to 249 letters"]),
        ("samples", "topic", "x" * 250, ["samples.topic = 'xxx", "1 to 249 letters"]),
        ("federation", "name", "line\n", ["federation.name = 'line\\n'"]),
        ("kernels", "smoothness", 0.7, ["kernels.smoothness = 0.7: 0.5, 1, 1.5"]),
        ("samples", "features", ["a", "a"], ["samples.features", "none twice"]),
        ("kernels", "bandwidths", [1.0, -1.0], ["kernels.bandwidths = [1.0, -1.0]", "positive"]),
        ("speed", "up", True, ["speed is not known", "samples"]),
    ],
)
def test_a_mistake_names_key_value_and_what_is_allowed(
    config: Path, section: str, key: str, value: object, expected: list[str]
) -> None:
    """The reader of the message has to be able to correct the file without reading the code."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, {section: {key: value}})
    for part in [str(config), *expected]:
        assert part in str(caught.value)


def test_a_list_that_is_too_short_in_the_environment_is_a_mistake(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missing item's place is outside the given list: reporting it must not fail."""
    monkeypatch.setenv("STREAMFL_SAMPLES__LABEL_RANGE", "[1]")
    with pytest.raises(
        ConfigurationError, match=r"samples\.label_range = \[1\]: two finite numbers are expected"
    ):
        load_settings(config, PofmklSettings)


class _PairSection(Section):
    pair: tuple[float, float]


class _PairSettings(RoleSettings):
    other: _PairSection


def test_a_short_list_of_any_section_is_explained(config: Path) -> None:
    """Sections of other systems get explained errors without a validator of their own."""
    config.write_text(GOOD.partition("[samples]")[0])
    with pytest.raises(ConfigurationError, match=r"other\.pair = \[1\.0\]: more items are expected"):
        load_settings(config, _PairSettings, {"other": {"pair": [1.0]}})


def test_frequencies_that_no_memory_holds_are_refused(config: Path) -> None:
    """Each number may be allowed although the product exceeds a machine's memory. The message names all
    factors."""
    large: dict[str, Any] = {
        "learning": {"preset": "paper", "features_per_kernel": 100_000},
        "samples": {"features": "inputs", "dimension": 106},
    }
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, large)
    for part in (
        "learning.features_per_kernel = 100000",
        "51",
        "kernels",
        "106",
        "samples.dimension",
        "4.0 GiB",
        "lower",
    ):
        assert part in str(caught.value)
    large["samples"]["dimension"] = 105
    load_settings(config, PofmklSettings, large)


@pytest.mark.parametrize(
    "own", ["predictions", "updates", "model", "pofmkl-client.state", "pofmkl-server.state", "dead-letters"]
)
def test_samples_do_not_come_from_the_federations_own_topics(config: Path, own: str) -> None:
    """A client that reads its own output would feed itself for ever. A name with the same prefix is the
    user's."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, {"samples": {"topic": f"plant.{own}"}})
    assert f"samples.topic = 'plant.{own}': a topic other than the federation's own" in str(caught.value)
    load_settings(config, PofmklSettings, {"samples": {"topic": f"plant.{own}.readings"}})


def test_the_limits_themselves_are_allowed(config: Path) -> None:
    """A limit that refuses a documented value would stop a correct federation."""
    loaded = load_settings(
        config,
        PofmklSettings,
        {
            "federation": {"clients": 1_000_000, "shards": 51},
            "kernels": {"smoothness": 50},
            "learning": {
                "preset": "paper",
                "learning_rate": 1e6,
                "regularisation": 1e6,
                "features_per_kernel": 100_000,
            },
            "samples": {"topic": "x" * 249},
        },
    )
    assert loaded.federation.shards == len(loaded.kernels.dictionary())


def test_every_mistake_is_reported_at_once(config: Path) -> None:
    """Reporting one mistake for each start would be tedious."""
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings, {"federation": {"clients": 0}, "log": {"level": "loud"}})
    assert "federation.clients" in str(caught.value)
    assert "log.level" in str(caught.value)


def test_an_unknown_section_in_the_environment_is_a_mistake(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped variable must not be dropped silently. A variable with a single underscore is not
    streamfl's."""
    monkeypatch.setenv("STREAMFL_SERVICE_HOST", "10.0.0.1")
    load_settings(config, PofmklSettings)
    monkeypatch.setenv("STREAMFL_SAMPELS__TOPIC", "x")
    with pytest.raises(ConfigurationError, match=r"STREAMFL_SAMPELS__TOPIC.*did you mean 'samples'"):
        load_settings(config, PofmklSettings)


def test_sections_within_sections_are_a_mistake_however_deep(config: Path) -> None:
    """A file that a program has spoilt is told of as any other mistake: its sections are too deep to be
    printed."""
    config.write_text(f"{GOOD}\n[{'.'.join('a' * 2000)}]\nx = 1\n")
    with pytest.raises(ConfigurationError, match="a is not known"):
        load_settings(config, PofmklSettings)


def test_kernels_whose_weights_no_array_holds_are_refused(config: Path) -> None:
    """As many as this were a traceback of NumPy; fewer are refused with what a record holds."""
    content = {"kernels": {"bandwidths": [float(width) for width in range(1, 20_001)]}}
    settings = load_settings(config, PofmklSettings, content)
    with pytest.raises(ConfigurationError, match=r"kernels\.bandwidths and kernels\.views give \d+ kernels"):
        find_kind("pofmkl-client").build(settings)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing or broken file is for the operator to correct: no traceback."""
    with pytest.raises(ConfigurationError, match=r"nothing\.toml: cannot be read"):
        load_settings(tmp_path / "nothing.toml", PofmklSettings)
    broken = tmp_path / "broken.toml"
    broken.write_text("[federation\n")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load_kind(broken)
    broken.write_bytes(b"\xef\xbb\xbf[role]\r\nkind = 'pofmkl-server'\r\n")
    assert load_kind(broken) == "pofmkl-server"
    broken.write_text("[federation]\n")
    with pytest.raises(ConfigurationError, match=r"role\.kind is missing"):
        load_kind(broken)


def test_the_step_size_is_the_papers(config: Path) -> None:
    """eta = 1 / sqrt(T) by default: the reproduction depends on it."""
    assert (
        load_settings(config, PofmklSettings, {"learning": {"preset": "paper", "horizon": 400}}).learning.rate
        == 0.05
    )
    assert (
        load_settings(
            config, PofmklSettings, {"learning": {"preset": "paper", "learning_rate": 0.3}}
        ).learning.rate
        == 0.3
    )
