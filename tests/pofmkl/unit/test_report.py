"""The report of a federation: what it shows is what the trace and the topics say."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import run_command

from streamfl.configuration.settings import RoleSettings, load_settings
from streamfl.kernels import loss_named
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.page import REPORTS
from streamfl.pofmkl.tools.regret import bound_over_time, regularised_regret
from streamfl.runtime.bus import Bus, Outgoing, connect
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.simulation.html import html
from streamfl.simulation.page import Chart, Page, ReadRecord

CONFIGURATION = """
[federation]
name = "plant"
seed = 7
clients = 2
features = ["t1", "t2"]
[bus]
url = "{url}"
commit_interval_ms = 0
max_poll_records = 8
[role]
kind = "pofmkl-{kind}"
[uplink]
budget_bytes_per_second = 1e6
[challengers]
models = ["last-label"]
"""
SAMPLES = """
[samples]
topic = "readings"
client = "device"
label = "lever"
sample_id = "id"
label_range = [0.0, 10.0]
"""
PAPER = """
[federation]
name = "plant"
[role]
kind = "pofmkl-client"
[learning]
preset = "paper"
learning_rate = 0.2
features_per_kernel = 5
"""
DEVICES, READINGS, LONGEST = ("press-1", "press-2"), 40, 400
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: run_command(monkeypatch, capsys, *arguments)


def readings() -> Iterator[dict[str, Any]]:
    for number in range(READINGS):
        for place, device in enumerate(DEVICES):
            t1, t2 = math.sin(number / 7 + place), math.cos(number / 11)
            yield {
                "device": device,
                "t1": t1,
                "t2": t2,
                "lever": 5 + 2 * t1 * t2 + place,
                "id": f"{device}/{number}",
            }


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with client.toml and server.toml, whose federation has predicted and learnt all its
    readings."""
    folder = tmp_path_factory.mktemp("plant")
    url = f"sqlite://{folder}/plant.db"
    bus = connect(url)
    workers = []
    for kind, more in (("server", ""), ("client", SAMPLES)):
        path = folder / f"{kind}.toml"
        path.write_text(CONFIGURATION.format(url=url, kind=kind) + more)
        settings = load_settings(path, PofmklSettings)
        wanted = {spec.name: spec for spec in find_kind(f"pofmkl-{kind}").topics(settings)}
        missing = wanted.keys() - bus.describe(wanted).keys()
        bus.create(
            [replace(wanted[name], partitions=wanted[name].partitions or 2) for name in sorted(missing)]
        )
        workers.append(build_worker(settings, bus))
    bus.write([Outgoing("readings", one["device"].encode(), json.dumps(one).encode()) for one in readings()])
    for _ in range(LONGEST):
        for worker in workers:
            worker.step(0.0)
        if len(list(rows(bus, "plant.predictions"))) == READINGS * len(DEVICES):
            break
    for worker in workers:
        worker.close()
    bus.close()
    return folder


def rows(bus: Bus, topic: str) -> Iterator[Any]:
    for partition in bus.offsets(topic, math.inf):
        for record in bus.read_from(topic, partition, 0):
            yield json.loads(record.value or b"null")


def tiles(page: Path) -> Mapping[str, str]:
    """The figures at the top of a page, by their names."""
    return dict(re.findall(r'<div class="figure"><span>(.*?)</span><b>(.*?)</b>', page.read_text()))


def chart(page: Page, title: str) -> Chart:
    [found] = [one for one in page.charts if one.title == title]
    return found


def test_a_federations_report_is_that_of_its_topics(plant: Path, command: Command, tmp_path: Path) -> None:
    """Protects whoever judges a federation by its page: error, yardstick and bytes are those of the topics,
    counted by hand."""
    assert command("report", plant / "client.toml", "--out", tmp_path / "r.html")[0] == 0
    shown = tiles(tmp_path / "r.html")
    with closing(connect(f"sqlite://{plant}/plant.db")) as bus:
        told = {one["sample"]: one["prediction"] for one in rows(bus, "plant.predictions")}
    labels: dict[str, list[float]] = {device: [] for device in DEVICES}
    errors, means = [], []
    for one in readings():
        before = labels[one["device"]]
        if before:
            errors.append((told[one["id"]] - one["lever"]) ** 2)
            means.append((sum(before) / len(before) - one["lever"]) ** 2)
        before.append(one["lever"])
    assert float(shown["RMSE, units of the label"]) == pytest.approx(np.sqrt(np.mean(errors)), rel=1e-3)
    assert float(shown["running mean"]) == pytest.approx(np.sqrt(np.mean(means)), rel=1e-3)
    assert shown["predictions read"] == str(READINGS * len(DEVICES))
    remembered = json.loads(command("inspect", plant / "client.toml", "--format", "json")[1])["clients"]
    regret = sum(one["scaled_regret"] for one in remembered) / sum(one["labels"] for one in remembered)
    assert float(shown["regret per sample, labels scaled to 0..1"]) == pytest.approx(regret, abs=1e-5)


def test_a_report_changes_nothing(plant: Path, command: Command, tmp_path: Path) -> None:
    """Protects a federation that runs: whoever makes a report commits no offset and writes no record."""

    def everything() -> object:
        with closing(connect(f"sqlite://{plant}/plant.db")) as bus:
            topics = (
                "readings",
                "plant.predictions",
                "plant.updates",
                "plant.model",
                "plant.pofmkl-client.state",
            )
            return [bus.offsets(topic, math.inf) for topic in topics], bus.committed("plant.pofmkl-client")

    before = everything()
    for kind in ("client", "server"):
        assert command("report", plant / f"{kind}.toml", "--out", tmp_path / "r.html")[0] == 0
    assert everything() == before


def test_a_report_that_is_cut_short_says_so(plant: Path, command: Command, tmp_path: Path) -> None:
    """Protects whoever reads a page of a large federation: figures over a part are not taken for those of
    all."""
    assert command("report", plant / "client.toml", "--out", tmp_path / "r.html", "--limit", "10")[0] == 0
    assert tiles(tmp_path / "r.html")["predictions read"] == "10"
    assert "Of plant.predictions the newest 10 records are shown at most" in (tmp_path / "r.html").read_text()


def test_reading_ends_in_its_time(
    plant: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects whoever waits for a page: topics that go on for hours are left after --seconds, and the page
    says so."""
    seconds = itertools.count()
    monkeypatch.setattr("streamfl.cli.report.time", SimpleNamespace(monotonic=lambda: float(next(seconds))))
    assert command("report", plant / "client.toml", "--out", tmp_path / "r.html", "--seconds", "30")[0] == 0
    assert "Reading ended after 30 seconds, in plant.predictions" in (tmp_path / "r.html").read_text()
    assert int(tiles(tmp_path / "r.html")["predictions read"]) < READINGS


def test_a_system_without_pages_has_one(
    plant: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects systems of one's own: without a report in the manifest, predictions over time and what is
    remembered are shown."""
    monkeypatch.setattr("streamfl.cli.report.systems_with", lambda _part: {})
    assert command("report", plant / "client.toml", "--out", tmp_path / "r.html")[0] == 0
    assert tiles(tmp_path / "r.html") == {"predictions read": str(READINGS * len(DEVICES))}
    assert "<td>press-1</td>" in (tmp_path / "r.html").read_text()


def test_a_simulations_report_is_that_of_its_trace(command: Command, tmp_path: Path) -> None:
    """Protects the page of a simulation: curves end at the figures that the simulation printed, the bound is
    Theorem 1's."""
    generator = np.random.default_rng(3)
    inputs = generator.uniform(-1, 1, size=(90, 2))
    np.savez(tmp_path / "data.npz", X=inputs, y=np.sin(3 * inputs[:, 0]) + inputs[:, 1])
    (tmp_path / "client.toml").write_text(PAPER)
    simulate = (
        "simulate",
        tmp_path / "client.toml",
        "--data",
        tmp_path / "data.npz",
        "--clients",
        3,
        "--format",
        "json",
    )
    code, told, _ = command(*simulate, "--trace", tmp_path / "trace")
    assert code == 0
    figures = json.loads(told)
    assert command("report", tmp_path / "trace", "--out", tmp_path / "r.html")[0] == 0
    told = float(tiles(tmp_path / "r.html")["regret per sample, labels scaled to 0..1"])
    assert told == pytest.approx(figures["scaled_regret_mean"] / 30, abs=1e-5)
    with np.load(tmp_path / "trace" / "trace.npz") as arrays:
        assert REPORTS.of_trace is not None
        page = REPORTS.of_trace(dict(arrays))
        kernels = arrays["kernel_predictions"].shape[2]
    errors = {line.name: line.y[-1] for line in chart(page, "Error so far").lines}
    assert errors["federation"] == pytest.approx(figures["rmse"])
    assert errors["running mean"] == pytest.approx(figures["rmse_running_mean"])
    assert errors["each client on its own"] == pytest.approx(figures["rmse_local_only"])
    regret, regularised, bound = chart(page, "Regret against its bound").lines
    assert regret.y[-1] == pytest.approx(figures["scaled_regret_mean"])
    assert np.all(regularised.y <= bound.y)
    # The parameters are small at first, and grow.
    assert abs(regularised.y[-1] - regret.y[-1]) > abs(regularised.y[1] - regret.y[1]) > 0
    np.testing.assert_allclose(bound.y, [math.log(kernels) / 0.2 + 0.2 * t / 2 for t in range(1, 31)])
    assert np.all(regret.y <= bound.y)
    assert chart(page, "Bytes sent by clients").lines[0].y[-1] == figures["uplink_bytes"]
    shares = sum(line.y for line in chart(page, "Kernel weights").lines)
    np.testing.assert_allclose(shares, 1.0)


def test_regret_with_the_regularisation_counts_the_penalties_by_the_weights_that_predicted() -> None:
    """Protects the line with the regularisation: the mixture pays for each kernel by its weight before the
    label was learnt."""
    rate, label = 0.5, 1.0
    kernels = np.array([[0.0, 2.5], [0.5, 3.0]])
    penalties = np.array([[0.1, 0.4], [0.2, 0.9]])
    mixed = np.array([1.2, 0.7])
    lost = (kernels - label) ** 2 + penalties
    after = -rate * np.cumsum(lost, axis=0)
    first, second = math.exp(-rate * lost[0, 0]), math.exp(-rate * lost[0, 1])
    share = first / (first + second)
    own = [0.2**2 + (0.1 + 0.4) / 2, 0.3**2 + share * 0.2 + (1 - share) * 0.9]
    expected = [own[0] - lost[0].min(), sum(own) - lost.sum(axis=0).min()]
    # A trace has weights but for a factor.
    trace = {"labels": np.ones((2, 1)), "predictions": mixed[:, None], "kernel_predictions": kernels[:, None]}
    trace |= {
        "kernel_log_weights": (after - after.max(axis=1, keepdims=True))[:, None],
        "rate": np.array(rate),
    }
    assert regularised_regret(trace, loss_named("square")).tolist() == pytest.approx(expected)


@pytest.fixture(scope="module")
def small_trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The least that a page of a trace needs: 4 rounds of 2 clients with 3 kernels."""
    generator = np.random.default_rng(3)
    each, kernels = generator.uniform(size=(4, 2)), generator.uniform(-1, 0, size=(4, 2, 3))
    told = {
        "loss": np.array("square"),
        "preset": np.array("paper"),
        "rate": np.array(0.5),
        "system": np.array("pofmkl"),
    }
    told["label_unit"] = np.array(2.0)
    of_rounds = {
        name: np.arange(4.0) + 1 for name in ("uplink_bytes", "budget_bytes", "staleness", "challengers/x")
    }
    of_samples = dict.fromkeys(("predictions", "labels", "published", "local_squared_errors"), each)
    return told | of_rounds | of_samples | {"kernel_predictions": kernels, "kernel_log_weights": kernels}


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("labels", np.full((4, 2), np.nan)),
        ("labels", np.zeros((0, 2))),
        ("published", np.full((4, 2), "1")),
        ("kernel_predictions", np.zeros((4, 2, 2))),
        ("kernels", np.array(["a", "b"])),
        ("staleness", np.full(4, np.nan)),
        ("budget_bytes", np.zeros(4)),
        ("challengers/x", np.zeros(1)),
        ("rate", np.array(0.0)),
        ("loss", np.array("strange")),
    ],
)
def test_a_trace_whose_arrays_do_not_fit_is_refused(
    name: str, array: Any, small_trace: dict[str, Any], command: Command, tmp_path: Path
) -> None:
    """Protects whoever got a trace from somebody else: exit code 5 and the array's name, no traceback."""
    np.savez(tmp_path / "trace.npz", **{**small_trace, name: array})
    code, _, said = command("report", tmp_path, "--out", tmp_path / "r.html")
    assert (code, repr(name) in said, "Traceback" in said) == (5, True, False), said


class Said:
    """A federation's topics with what a test puts there; the rest is empty."""

    def __init__(self, settings: PofmklSettings, **said: list[ReadRecord]) -> None:
        self.settings: RoleSettings = settings
        self._said = said

    def said(self, name: str) -> list[ReadRecord]:
        return self._said.get(name, [])

    def messages(self, channel: str) -> list[ReadRecord]:
        return []

    def remembered(self) -> None:
        """Nothing."""


def page_of(topics: Said) -> Page:
    assert REPORTS.of_topics is not None
    return REPORTS.of_topics(topics)


def test_one_wild_prediction_does_not_blind_the_report(plant: Path) -> None:
    """Protects the error from whoever may write predictions: what nobody can compute with is left out, and
    the page says so."""
    pairs: list[tuple[Any, Any]] = [(1.0, 1.5), (1e300, -1e300), (10**400, 1.0), (2.0, True), (2.0, None)]
    pairs += [(2.0, math.nan), (2.0, 3.0)]
    told = [
        ReadRecord(1.0, 0, 9, {"client": "a", "label": label, "prediction": prediction})
        for label, prediction in pairs
    ]
    page = page_of(Said(load_settings(plant / "client.toml", PofmklSettings), predictions=told))
    assert dict(page.figures)["RMSE, units of the label"] == "1.000"
    assert page.notes[0].startswith("5 predictions are not in the error")
    assert html(page)


def test_budget_and_staleness_are_those_of_the_topics(plant: Path) -> None:
    """Protects whoever looks whether clients keep their budget and hear of the model: both are counted by
    hand here."""
    update = [(10.0, "a", 0, 400), (12.0, "b", 3, 100), (14.0, "a", 1, 50)]
    updates = [
        ReadRecord(at, 0, size, {"client": name, "version": version}) for at, name, version, size in update
    ]
    model = [
        ReadRecord(at, 0, 1, {"shard": 0, "model_version": version}) for at, version in ((9.0, 2), (13.0, 5))
    ]
    page = page_of(Said(load_settings(plant / "client.toml", PofmklSettings), updates=updates, model=model))
    sent, budget = chart(page, "Bytes sent by clients").lines
    assert sent.y.tolist() == [400, 500, 550]
    # 1e6 bytes a second, 2 clients, and those of a second at once.
    assert budget.y.tolist() == [2e6 * seconds for seconds in (1, 3, 5)]
    [staleness] = chart(page, "Staleness of updates").lines
    assert staleness.y.tolist() == [2, 0, 4]


def test_a_bus_without_the_federation_is_refused(plant: Path, command: Command, tmp_path: Path) -> None:
    """Protects whoever mistypes the bus or the name: an empty page would look like a federation that does
    nothing."""
    text = (plant / "client.toml").read_text()
    for wrong in (text.replace("plant.db", "never.db"), text.replace('name = "plant"', 'name = "plan"')):
        (tmp_path / "client.toml").write_text(wrong)
        code, _, said = command("report", tmp_path / "client.toml", "--out", tmp_path / "r.html")
        assert code == 2
        assert "bus.url and federation.name" in said
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_the_bound_at_its_best_is_the_lowest_of_all_rates(count: int) -> None:
    """Protects the yardstick of other presets: no learning rate gives a lower bound."""
    rates = np.geomspace(1e-4, 10, 20_000)
    lowest = min(np.log(24) / rates + rates * count / 2)
    assert bound_over_time(np.array(count), 24, None) == pytest.approx(lowest, rel=1e-6)
