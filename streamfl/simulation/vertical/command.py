"""What the systems' ``streamfl simulate`` share: the settings of a member, the table, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from streamfl.records.entities import EntitySamplesSection
from streamfl.simulation.learning_curves import curve_arrays
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.vertical.table import DealtTable
from streamfl.terminal.console import say
from streamfl.terminal.progress import Progress

__all__ = ["head_content", "party_content", "report", "say_dropped", "table_figures"]


def head_content(kind: str, label: str) -> dict[str, Any]:
    """The role and the labels of a member for which ``simulate`` checks the settings. The data replace its
    topics."""
    return {"role": {"kind": kind}, "labels": {"topic": "labels", "label": label, "label_range": (0.0, 1.0)}}


def party_content(kind: str, party: str, label: str) -> dict[str, Any]:
    """The same for a party that knows the labels."""
    # A whole section, not keys of it: `features` beside the file's own [[samples.inputs]] would be refused.
    samples = EntitySamplesSection(topic="samples", features="columns", dimension=1)
    return {**head_content(kind, label), "party": {"name": party}, "samples": samples}


def say_dropped(dealt: DealtTable, more: str = "") -> None:
    """Say how many rows are left out, if any are. more: text after it."""
    if dealt.dropped:
        say(f"{dealt.dropped} rows have no number in some column, or too large a one, and are left out{more}")


def table_figures(
    dealt: DealtTable, epochs: int | None, label_delay: int | None, **more: Any
) -> dict[str, Any]:
    """How the table was scaled and passed through, for programs. epochs: None: one pass in the table's
    order."""
    passes = {"epochs": epochs, "label_delay": label_delay or 0}
    return {"label_range": dealt.label_range, **more, **passes, "dropped_rows": dealt.dropped}


def report(
    asked: SimulationOptions,
    work: Progress,
    title: str,
    rows: Sequence[tuple[str, str]],
    figures: Mapping[str, Any],
    trace: Mapping[str, NDArray[Any]],
) -> Report:
    """The report, with the learning curves where a trace is asked for."""
    arrays = {**trace, **curve_arrays(figures["history"])} if asked.trace else {}
    return Report(f"{title} {asked.data}", rows, figures, arrays=arrays, interrupted=work.interrupted)
