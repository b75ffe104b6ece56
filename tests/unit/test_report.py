"""The page of ``streamfl report``: self-contained, faithful to its input, and safe against code in texts."""

from __future__ import annotations

import io
import math
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from command_line import Command

from streamfl.contract.system import load, systems_with
from streamfl.records.labels import Label
from streamfl.simulation.drawing import svg
from streamfl.simulation.html import html
from streamfl.simulation.learning_curves import curve_arrays
from streamfl.simulation.page import Chart, Line, Page, ReadRecord, Table

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
VERTICAL = sorted(name for name, system in systems_with("report").items() if system.rank)


def line(*values: float, name: str = "a") -> Line:
    return Line(name, np.arange(len(values)), np.array(values))


def drawn(chart: Chart) -> list[list[tuple[float, float]]]:
    """The points of each curve in the picture."""
    found = [
        one.get("points", "") for one in ElementTree.fromstring(svg(chart)).iter() if one.tag == "polyline"
    ]
    return [
        [(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())] for points in found
    ]


def chart(*lines: Line, **more: bool) -> Chart:
    return Chart("title", "says", lines, "horizontal", "vertical", **more)


@pytest.mark.parametrize("more", [{}, {"stacked": True}, {"bars": True}])
def test_what_topics_say_is_never_code(more: dict[str, bool]) -> None:
    """Protects readers of a report: a client's or kernel's name is only text, and nothing is executed."""
    picture = Chart(
        ATTACK, ATTACK, [line(1.0, 2.0, name=ATTACK), line(2.0, 1.0, name=ATTACK)], ATTACK, ATTACK, **more
    )
    table = Table(ATTACK, [ATTACK], [[ATTACK]])
    page = html(Page(ATTACK, ATTACK, [(ATTACK, ATTACK)], [picture], [table], [ATTACK]))
    assert "<script" not in page
    assert "<img" not in page
    assert "default-src 'none'" in page
    ElementTree.fromstring(svg(picture))


def test_a_page_needs_nothing_beside_it() -> None:
    """Protects a reader without a network: nothing is loaded from elsewhere."""
    page = html(Page("t", "s", [("a", "1")], [chart(line(1.0, 2.0))], [Table("t", ["a"], [["b"]])], ["n"]))
    assert not re.search(r"https?:|src=|href=|@import|url\(", page)


def test_curves_stand_where_their_values_are() -> None:
    """Protects the proportions: on a linear scale equal steps are equally high, on a logarithmic one equal
    factors."""
    [even] = drawn(chart(line(1.0, 2.0, 3.0)))
    assert even[0][1] - even[1][1] == pytest.approx(even[1][1] - even[2][1], abs=0.11)
    assert even[2][1] < even[0][1]
    assert even[1][0] - even[0][0] == pytest.approx(even[2][0] - even[1][0], abs=0.11)
    [factors] = drawn(chart(line(0.01, 0.1, 1.0), logarithmic=True))
    assert factors[0][1] - factors[1][1] == pytest.approx(factors[1][1] - factors[2][1], abs=0.11)


def test_what_is_no_number_is_a_gap() -> None:
    """Protects a curve over a diverged or unmeasured stretch: it is interrupted there."""
    assert [len(piece) for piece in drawn(chart(line(1.0, 2.0, np.nan, 3.0, np.inf, 4.0, 5.0)))] == [2, 2, 2]
    assert [len(piece) for piece in drawn(chart(line(1.0, 2.0, 0.0, 3.0, 4.0), logarithmic=True))] == [2, 2]


@pytest.mark.parametrize(
    "values",
    [
        (),
        (np.nan,),
        (0.0, 0.0),
        (5.0,),
        (-3.0, -3.0),
        (1e-300, 1e300),
        (7e9, 7e9),
        (-1.7e308, 1.7e308),
        (1e-310,),
        (1e18, 1e18),
    ],
)
@pytest.mark.parametrize("logarithmic", [False, True])
def test_any_numbers_can_be_drawn(values: tuple[float, ...], logarithmic: bool) -> None:
    """Protects a page from failing for one chart: nothing, one point, level lines, and values of all
    magnitudes."""
    for times in (False, True):
        ElementTree.fromstring(svg(chart(line(*values), logarithmic=logarithmic, times=times)))
        across = Line("a", np.array(values), np.arange(len(values)))
        ElementTree.fromstring(svg(chart(across, logarithmic=logarithmic, times=times)))


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    """Protects the size of a page and its last value: of many points some hundred stay, with the last
    one."""
    values = np.linspace(0.0, 1.0, 20_000)
    [points] = drawn(chart(Line("a", np.arange(len(values)), values)))
    assert len(points) <= 500
    assert points[-1][1] == min(y for _, y in points)


@pytest.mark.parametrize("name", sorted(systems_with("report")))
def test_a_trace_of_an_earlier_release_is_refused_with_what_to_do(
    name: str, command: Command, tmp_path: Path
) -> None:
    """Protects users of an old trace without the page's arrays: exit code 5 and a sentence, no traceback."""
    np.savez(tmp_path / "trace.npz", system=np.array(name), labels=np.zeros((2, 2)))
    code, _, said = command("report", tmp_path, "--out", tmp_path / "r.html")
    assert code == 5
    assert "simulate again" in said


@pytest.mark.parametrize("name", VERTICAL)
def test_a_vertical_course_is_shown(name: str) -> None:
    """Protects the pages of vertical systems: each measure of a run's history has its curve, and its last
    value is a figure."""
    arrays = curve_arrays(
        [{"seconds": 0.0, "loss": 0.7, "auc": None}, {"seconds": 2.0, "loss": 0.25, "auc": None}]
    )
    page = load(systems_with("report")[name].report or "").of_trace(arrays)
    assert page.figures == [("Loss", "0.25")]
    [one] = page.charts
    assert one.lines[0].x.tolist() == [0.0, 2.0]
    assert one.lines[0].y.tolist() == [0.7, 0.25]


class Read:
    """The topics of a vertical federation: predictions and labels, each with its time."""

    def __init__(
        self, predictions: list[tuple[float, str, float]], labels: list[tuple[float, str, float]]
    ) -> None:
        self.settings = SimpleNamespace(
            federation=SimpleNamespace(name="loans"), labels=SimpleNamespace(label_range=(10.0, 20.0))
        )
        self._predictions = [
            ReadRecord(at, 0, 1, {"entity": entity, "prediction": value}) for at, entity, value in predictions
        ]
        self._labels = [ReadRecord(at, 0, 1, Label(entity, entity, value)) for at, entity, value in labels]

    def said(self, name: str) -> list[ReadRecord]:
        return self._predictions if name == "predictions" else []

    def messages(self, channel: str) -> list[ReadRecord]:
        return self._labels if channel == "labels" else []

    def remembered(self) -> None:
        """Nothing."""


def test_a_vertical_federation_is_judged_by_what_it_said_before_the_label() -> None:
    """Protects the error from being too small: a prediction after its entity's label may have learnt it. It
    does not count if there is an earlier one."""
    told = [(1.0, "a", 11.0), (2.0, "a", 13.0), (9.0, "a", 15.0), (4.0, "b", 18.0), (5.0, "c", 1e9)]
    reports = load(systems_with("report")[VERTICAL[0]].report or "")
    page = reports.of_topics(Read(told, [(3.0, "a", 0.5), (3.5, "b", 0.5)]))
    shown = {one.name: one.y.tolist() for one in page.charts[0].lines}
    assert shown["RMSE, units of the label"] == pytest.approx(
        [2.0, math.sqrt(((13 - 15) ** 2 + (18 - 15) ** 2) / 2)]
    )
    assert shown["running mean's"][1] == pytest.approx(math.sqrt((15**2 + 0) / 2))


@pytest.mark.parametrize("value", [10**400, 1e300, -1e300, math.nan, True, "1"])
def test_one_wild_prediction_does_not_blind_a_vertical_report(value: Any) -> None:
    """Protects the error from any writer of predictions: values that cannot be computed with do not count."""
    reports = load(systems_with("report")[VERTICAL[0]].report or "")
    page = reports.of_topics(Read([(1.0, "a", 13.0), (1e30, "b", value)], [(3.0, "a", 0.5), (3.0, "b", 0.5)]))
    assert dict(page.figures)["RMSE, units of the label"] == "2"
    assert html(page)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2)), np.array(1.0), np.array(["a"]), np.zeros(0), np.zeros(3)]
)
def test_a_vertical_course_that_does_not_fit_is_refused(array: Any, command: Command, tmp_path: Path) -> None:
    """Protects users of somebody else's trace: exit code 5 and the measure's name, no traceback."""
    np.savez(
        tmp_path / "trace.npz",
        **{"system": np.array(VERTICAL[0]), "course/seconds": np.arange(2.0), "course/loss": array},
    )
    code, _, said = command("report", tmp_path, "--out", tmp_path / "r.html")
    assert (code, "course/loss" in said, "Traceback" in said) == (5, True, False), said


def test_files_that_are_no_trace_are_refused(command: Command, tmp_path: Path) -> None:
    """Protects users of somebody else's trace: nothing is unpickled, and an invalid file ends with exit code
    5."""
    np.savez(tmp_path / "pickled.npz", system=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npz").write_text("no trace")
    np.savez(tmp_path / "unnamed.npz", labels=np.zeros(2))
    np.savez(tmp_path / "unknown.npz", system=np.array("nobody"))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**14,)})
    with zipfile.ZipFile(tmp_path / "boasting.npz", "w") as archive:
        archive.writestr("labels.npy", header.getvalue())
    for name in ("pickled", "text", "unnamed", "unknown", "boasting"):
        code, _, said = command("report", tmp_path / f"{name}.npz", "--out", tmp_path / "r.html")
        assert (code, "Traceback" in said) == (5, False), name
    assert command("report", tmp_path / "missing.npz")[0] == 2
    assert not (tmp_path / "r.html").exists()
