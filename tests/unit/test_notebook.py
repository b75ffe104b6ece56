"""``streamfl.simulate`` in Python, for every system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import polars as pl
import pytest

import streamfl
from streamfl.contract.role import ConfigurationError, DataError
from streamfl.contract.system import installed_systems
from streamfl.simulation.notebook import FrameTable


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    mpl.use("agg")
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def frame(rows: int = 90) -> pd.DataFrame:
    generator = np.random.default_rng(2)
    made = pd.DataFrame(generator.normal(size=(rows, 2)), columns=["t", "u"], index=range(1000, 1000 + rows))
    made["site"] = np.array(["a", "b", "c"], dtype=object)[np.arange(rows) % 3]
    made["load"] = 100.0 * (made["t"] + 0.1 * made["u"])
    return made


def test_predictions_stand_beside_the_rows_that_they_are_of() -> None:
    """Protects the join with the frame: each prediction has the client and the label of its own row, in the
    label's unit."""
    data = frame()
    result = streamfl.simulate(data, label="load", client_column="site", seed=3)
    found = result.to_frame()
    rows = data.iloc[found["row"]]
    assert found["row"].tolist() == list(range(90))
    assert found["client"].tolist() == rows["site"].tolist()
    np.testing.assert_allclose(found["label"], rows["load"])
    errors = np.square(found["prediction"] - found["label"])
    assert errors.mean() == pytest.approx(result.figures["rmse"] ** 2)
    assert result.figures["clients"] == 3
    assert np.abs(found["prediction"] - found["label"]).mean() == pytest.approx(result.figures["mae"])
    assert result.figures["rmse"] < result.figures["rmse_running_mean"]


def test_it_is_the_commands_run(tmp_path: Any) -> None:
    """Protects from two simulators: dictionaries of columns and of sections give the same figures as
    files."""
    data = frame().drop(columns="site")
    data.to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "client.toml").write_text(
        '[federation]\nname = "notebook"\nclients = 3\n[role]\nkind = '
        '"pofmkl-client"\n[learning]\nfeatures_per_kernel = 20\n'
    )
    named = streamfl.simulate(tmp_path / "data.csv", tmp_path / "client.toml", label="load", rounds=20)
    columns = {name: data[name].tolist() for name in data}
    sections = {"federation": {"clients": 3}, "learning": {"features_per_kernel": 20}}
    given = streamfl.simulate(columns, sections, label="load", rounds=20)
    assert {**given.figures, "seconds": 0} == {**named.figures, "seconds": 0}
    assert given.predictions["client"][:4].tolist() == ["client-0", "client-1", "client-2", "client-0"]


def test_a_result_shows_itself() -> None:
    """Protects the notebook: a table without a call, with escaped texts, and a picture in given axes or new
    ones."""
    result = streamfl.simulate(frame(), label="load", clients=2, rounds=10)
    assert "<td>federation</td>" in result._repr_html_()
    assert "RMSE, units of load" in repr(result)
    assert len(result.plot().get_lines()) == 3
    from matplotlib import pyplot

    axes = pyplot.subplots()[1]
    assert result.plot(axes) is axes
    compared = streamfl.compare(
        frame(), label="load", clients=2, rounds=10, methods=["local", "running-mean"]
    )
    assert [found["method"] for found in compared.figures["methods"]] == ["local", "running-mean"]
    assert len(compared.plot().get_lines()) == 2
    errors = np.square(compared.to_frame()["local"] - compared.to_frame()["label"]).mean()
    assert errors == pytest.approx(compared.figures["methods"][0]["rmse"] ** 2)


def test_systems_whose_parties_have_columns_are_simulated_too() -> None:
    """Protects the common entry point: the role decides which system runs, and missing results are reported,
    not invented."""
    data = frame().drop(columns="site")
    config = {
        "federation": {"parties": ["plant", "weather"], "embedding_size": 1},
        "role": {"kind": "vafl-coordinator"},
        "learning": {"loss": "square"},
    }
    result = streamfl.simulate(data, config, label="load", split="plant=t,weather=u", online=True)
    assert result.figures["rmse"] > 0
    with pytest.raises(ConfigurationError, match="no picture"):
        result.plot()
    with pytest.raises(ConfigurationError, match="no prediction"):
        result.to_frame()


@pytest.mark.parametrize(
    ("data", "options", "said"),
    [
        ([1, 2], {}, "not a list"),
        (pl.DataFrame({"x": [1.0], "y": [1.0]}).lazy(), {}, "not a LazyFrame"),
        ({"x": [1.0], "y": [1.0, 2.0]}, {}, "equal length"),
        ({"x": [], "y": []}, {}, "no rows"),
        ({"x": [[1.0]], "y": [1.0]}, {}, "2 dimensions"),
        ({"x": [1.0, 2.0], "y": [1.0, 2.0]}, {"label": "z"}, "the data: no column z"),
    ],
)
def test_data_that_cannot_be_used_is_told(data: Any, options: dict[str, Any], said: str) -> None:
    """Protects the first try in a notebook from an error deep inside."""
    with pytest.raises(DataError, match=said):
        streamfl.simulate(data, clients=1, **options)


def test_mistakes_are_told_by_their_key() -> None:
    """Protects from options and keys without effect, and from an operator's environment in a notebook."""
    data = frame()
    with pytest.raises(
        ConfigurationError, match=r"split has no meaning with role\.kind = 'pofmkl-client'.*client_column"
    ):
        streamfl.simulate(data, label="load", split="a=t")
    with pytest.raises(ConfigurationError, match=r"the settings: federation\.clients is missing"):
        streamfl.simulate(data, label="load")
    with pytest.raises(ConfigurationError, match=r"learning\.rate is not known"):
        streamfl.simulate(data, {"learning": {"rate": 1}}, label="load", clients=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": -1}, "rounds = -1: a whole number of at least 1 is expected. T, samples a client"),
        ({"rounds": True}, "rounds = True: a whole number"),
        ({"clients": "2"}, "clients = '2': a whole number of at least 1"),
        ({"seed": "a"}, "seed = 'a': a whole number is expected. Left out: federation.seed"),
        ({"label": 1}, "label = 1: a text, such as '1', is expected. The data's label column"),
        (
            {"config": [1]},
            "config is a list: the path of a role's settings file, or its sections as a dictionary",
        ),
        ({"config": {"federation": None}}, "the settings: 'federation' = None: the name of a section"),
        ({"config": {1: {}}}, "the settings: 1 = {}: the name of a section"),
    ],
)
def test_what_a_program_gives_is_checked_as_a_commands_is(options: dict[str, Any], said: str) -> None:
    """Protects from figures of another run than requested, and from an error deep inside: the message says
    what to give."""
    given = {"label": "load", "clients": 2, **options}
    for function in (streamfl.simulate, streamfl.compare):
        with pytest.raises(ConfigurationError) as found:
            function(frame(), **given)
        assert str(found.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay_labels": -1}, "delay_labels = -1: a whole number of at least 0 is expected"),
        ({"methods": "local"}, "methods = 'local': a list of names is expected"),
        ({"methods": []}, "methods = []: a list of names is expected"),
    ],
)
def test_what_a_program_compares_is_checked(options: dict[str, Any], said: str) -> None:
    """Protects a comparison in the same way."""
    with pytest.raises(ConfigurationError) as found:
        streamfl.compare(frame(), label="load", clients=2, **options)
    assert str(found.value).startswith(said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"split": {"plant": ["t"]}},
            "split = {'plant': ['t']}: a text is expected. Which input columns each party has",
        ),
        ({"epochs": 0}, "epochs = 0: a whole number of at least 1"),
        ({"online": "no"}, "online = 'no': True or False is expected"),
        ({"network_delay": "1"}, "network_delay = '1': a number is expected"),
        (
            {"delay_distribution": "normal"},
            "delay_distribution = 'normal': one of constant, exponential is expected",
        ),
    ],
)
def test_what_a_program_gives_to_parties_is_checked(options: dict[str, Any], said: str) -> None:
    """Protects the systems whose parties have columns in the same way: each checks the values of its own
    options."""
    config = {
        "federation": {"parties": ["plant", "weather"], "embedding_size": 1},
        "role": {"kind": "vafl-coordinator"},
    }
    with pytest.raises(ConfigurationError) as found:
        streamfl.simulate(frame(), config, label="load", **{"split": "plant=t,weather=u", **options})
    assert str(found.value).startswith(said)


def test_numbers_of_numpy_are_numbers() -> None:
    """Protects computed options: NumPy's whole numbers are accepted."""
    result = streamfl.simulate(
        frame(), label="load", clients=np.int64(2), rounds=np.int32(5), seed=np.int64(1)
    )
    assert result.figures["rounds"] == 5


def test_no_environment_reaches_into_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects figures from a variable that was set for a worker."""
    monkeypatch.setenv("STREAMFL_FEDERATION__CLIENTS", "45")
    monkeypatch.setenv("STREAMFL_ROLE__KIND", "vafl-party")
    assert (
        streamfl.simulate(frame(), {"federation": {"clients": 2}}, label="load", rounds=5).figures["clients"]
        == 2
    )


def test_gaps_and_kinds_of_columns() -> None:
    """Protects frames as pandas makes them: gaps become NaN among numbers and None elsewhere."""
    table = FrameTable(
        pd.DataFrame(
            {
                "whole": pd.array([1, None, 3], dtype="Int64"),
                "text": ["a", None, "c"],
                "flag": [True, False, True],
                "when": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
            }
        )
    )
    assert table.columns["whole"].dtype == np.float64
    assert np.isnan(table.columns["whole"][1])
    assert table.columns["text"].tolist() == ["a", None, "c"]
    assert table.inputs(()) == ["whole", "flag"]


def test_every_system_that_is_simulated_takes_settings_and_data_from_a_program() -> None:
    """Protects a new system from being left out: without its options it asks for them, and does not fail on
    the types."""
    for system in installed_systems():
        if system.simulate is not None:
            with pytest.raises(ConfigurationError):
                streamfl.simulate(
                    frame(), {"role": {"kind": system.kinds[0]}, "federation": {"clients": 0}}, label="load"
                )
