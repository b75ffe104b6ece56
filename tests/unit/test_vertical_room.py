"""What vertical systems share in their tools: a member's sections, figures over a run, rows to print."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streamfl.contract.role import DataError
from streamfl.simulation.vertical.figures import (
    Course,
    VerticalFigures,
    class_figures,
    counts_by_reason,
    number_figures,
)
from streamfl.simulation.vertical.members import (
    columns_content,
    member_sections,
    samples_topic,
)


@pytest.mark.parametrize("columns", [2, ["age", "income"]])
def test_a_record_of_columns_is_what_the_section_reads(columns: int | list[str]) -> None:
    """Protects every simulated federation: a party reads the fields that are written for it."""
    section = member_sections("party", "bank", columns)["samples"]
    assert section.topic == samples_topic("bank")
    fields = [section.features] if isinstance(section.features, str) else section.features
    assert list(columns_content(columns, [1.0, 2.0])) == fields


def test_a_run_is_looked_at_evenly_and_ends_when_it_is_asked_to() -> None:
    """Protects learning curves: one look at the beginning, then at most one for each twentieth, and the last
    at the end."""
    shares: list[float] = []
    course = Course(lambda: VerticalFigures(len(shares), loss=1.0), lambda share: share >= 0.5)
    for number in range(1, 101):
        shares.append(share := number / 100)
        if course.passed(share):
            break
    course.end("less", seconds=7.0)
    assert course.interrupted
    assert len(shares) == 50
    assert [one.seconds for one in course.history] == [0, *range(5, 55, 5), 7.0]


def test_a_federation_that_diverged_is_told_of() -> None:
    """Protects a user from a report of numbers that are none."""
    course = Course(lambda: VerticalFigures(0.0), lambda share: False)
    with pytest.raises(DataError, match=r"diverged.*choose a smaller step"):
        course.end("a smaller step", 0.0)


def test_figures_are_those_of_their_definition() -> None:
    """Protects accuracy, AUC and squared error; with labels of one class there is no AUC."""
    labels, scores = np.array([0.0, 1.0, 1.0, 0.0]), np.array([-1.0, 2.0, -0.5, 0.5])
    figures = class_figures(3.0, scores > 0, labels, 0.25, scores)
    assert (figures.accuracy, figures.auc, figures.loss) == (0.5, 0.75, 0.25)
    assert class_figures(3.0, scores > 0, np.ones(4), 0.25, scores).auc is None
    assert number_figures(3.0, scores, labels).measures["scaled_mse"] == pytest.approx(
        np.mean((scores - labels) ** 2)
    )
    assert math.isnan(VerticalFigures(3.0).loss)
    assert counts_by_reason({"late": 0, "gone": 1200}) == "gone 1,200"
    assert counts_by_reason({"late": 0}) == "0"
