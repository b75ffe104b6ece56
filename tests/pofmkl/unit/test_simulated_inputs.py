"""``[[samples.inputs]]`` on a table: a simulation learns from the numbers that workers would make of the same
rows."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run_command

from streamfl.runtime.bus import connect

CONFIG = """
[federation]
name = "plant"
seed = 7
clients = 2
[bus]
url = "memory://inputs"
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
label = "y"
[learning]
features_per_kernel = 4
"""
INPUTS = """
[[samples.inputs]]
field = "temp"
missing = "mean"
[[samples.inputs]]
field = "meta.site"
as = "category"
values = ["north", "south"]
[[samples.inputs]]
field = "at"
as = "hour-of-day"
"""
ROWS = 60


@pytest.fixture
def table() -> pd.DataFrame:
    rng = np.random.default_rng(1)
    hours = rng.integers(0, 24, ROWS)
    temp = rng.normal(20.0, 2.0, ROWS)
    site = rng.choice(["north", "south"], ROWS)
    label = 0.1 * temp + (site == "north") + np.sin(hours / 24 * 2 * np.pi)
    temp[[4, 5, 20]] = np.nan
    at = [f"2026-01-01T{hour:02d}:00:00Z" for hour in hours]
    return pd.DataFrame(
        {"device": ["a", "b"] * (ROWS // 2), "temp": temp, "meta.site": site, "at": at, "y": label}
    )


def run(folder: Path, table: pd.DataFrame, config: str, command: str, *options: object) -> list[str]:
    (folder / "client.toml").write_text(config)
    table.to_csv(folder / "data.csv", index=False)
    given = ("--data", folder / "data.csv", "--client-column", "device", "--format", "json", *options)
    return [str(part) for part in (command, folder / "client.toml", *given)]


def by_hand(table: pd.DataFrame) -> pd.DataFrame:
    """The inputs as docs/inputs.md defines them. A mean is told from the client's first value, as the default
    learner's are."""
    mean = table.groupby("device")["temp"].transform(lambda own: own.expanding().mean())
    hours = pd.to_datetime(table["at"]).dt.hour * 2 * np.pi / 24
    return pd.DataFrame(
        {
            "device": table["device"],
            "temp": table["temp"].fillna(mean) - table.groupby("device")["temp"].transform("first"),
            "north": 1.0 * (table["meta.site"] == "north"),
            "south": 1.0 * (table["meta.site"] == "south"),
            "sine": np.sin(hours),
            "cosine": np.cos(hours),
            "y": table["y"],
        }
    )


def test_predictions_are_those_of_the_numbers_by_hand(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects whoever tries a file of `streamfl init` on a table: what is simulated is what workers will
    compute."""
    runs = {"encoded": (table, CONFIG + INPUTS), "plain": (by_hand(table), CONFIG + "[uplink]\n")}
    found = {}
    for name, (rows, config) in runs.items():
        folder = tmp_path / name
        folder.mkdir()
        arguments = run(folder, rows, config, "simulate", "--trace", folder / "trace")
        code, out, err = run_command(monkeypatch, capsys, *arguments)
        assert code == 0, err
        assert json.loads(out)["dropped_rows"] == 0
        found[name] = np.load(folder / "trace" / "trace.npz")["predictions"]
    assert found["encoded"].size == ROWS
    np.testing.assert_allclose(found["encoded"], found["plain"], rtol=1e-6)


def test_rows_that_would_be_dead_letters_are_left_out_and_told(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the figures: a row that a worker refuses is in no mean of errors, and whoever reads them is
    told why."""
    table.loc[[2, 3], "at"] = "yesterday"
    code, out, err = run_command(monkeypatch, capsys, *run(tmp_path, table, CONFIG + INPUTS, "simulate"))
    assert (code, json.loads(out)["dropped_rows"]) == (0, 2)
    assert "not_a_time: 2" in err


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"at": "yesterday"}, "refuses every row; the first: "), ({"temp": None}, "no column temp")],
)
def test_tables_of_another_shape_are_refused_with_the_reason(
    tmp_path: Path,
    table: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, str | None],
    expected: str,
) -> None:
    """Protects whoever names another column than the table has: an exit code and what is wrong."""
    for column, value in change.items():
        table = table.drop(columns=column) if value is None else table.assign(**{column: value})
    code, _, err = run_command(monkeypatch, capsys, *run(tmp_path, table, CONFIG + INPUTS, "simulate"))
    assert code == 5
    assert expected in err


def test_how_topics_are_written_is_nothing_to_a_simulation(
    tmp_path: Path,
    table: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects whoever tries their own file on a table: a simulation has no registry, and no topic of
    theirs."""
    config = CONFIG.replace(
        'topic = "readings"', 'topic = "readings"\nformat = "csv"\ncolumns = ["device", "y"]'
    )
    sections = '[predictions]\nformat = "avro"\nregistry = {url = "http://127.0.0.1:9"}'
    plain = run_command(monkeypatch, capsys, *run(tmp_path, table, CONFIG + INPUTS, "simulate"))
    code, out, err = run_command(
        monkeypatch, capsys, *run(tmp_path, table, config + INPUTS + sections, "simulate")
    )
    assert code == 0, err
    assert json.loads(out)["rmse"] == json.loads(plain[1])["rmse"]


@pytest.mark.parametrize("named", [INPUTS[: INPUTS.index("[[samples.inputs]]", 5)], 'features = ["temp"]'])
def test_a_column_with_a_dot_in_its_name_is_the_field_in_backticks(
    named: str,
    tmp_path: Path,
    table: pd.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Protects columns such as PM2.5: the settings that `streamfl init` writes for them are those that a
    simulation reads."""
    config = (
        CONFIG.replace('label = "y"', 'label = "y"\n' + named)
        if named.startswith("features")
        else CONFIG + named
    )
    figures = []
    for name, settings in (("temp", config), ("PM2.5", config.replace('"temp"', '"`PM2.5`"'))):
        renamed = table.rename(columns={"temp": name})
        code, out, told = run_command(
            monkeypatch, capsys, *run(tmp_path, renamed, settings, "simulate", "--label", "y")
        )
        assert code == 0, told
        figures.append(
            {key: value for key, value in json.loads(out).items() if key not in ("seconds", "record_bytes")}
        )
    assert figures[0] == figures[1]


def test_replay_writes_a_column_with_a_dot_in_its_name_under_that_name(
    tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the way from such a table to a topic: the field in backticks is the column, and is written
    under its own name."""
    url = f"memory://{tmp_path.name}-dots"
    config = (
        (CONFIG + INPUTS)
        .replace('"temp"', '"`PM2.5`"')
        .replace("memory://inputs", url)
        .replace("meta.site", "site")
    )
    (tmp_path / "client.toml").write_text(config)
    table.rename(columns={"temp": "PM2.5", "meta.site": "site"}).to_csv(tmp_path / "data.csv", index=False)
    path = tmp_path / "client.toml"
    assert run_command(monkeypatch, capsys, "topics", path, "--create-inputs", "--partitions", 1)[0] == 0
    code, _, told = run_command(monkeypatch, capsys, "replay", path, "--data", tmp_path / "data.csv")
    assert code == 0, told
    with closing(connect(url, {})) as bus:
        first = json.loads(next(iter(bus.read("readings"))).value or b"")
    assert first["PM2.5"] == table["temp"][0]
