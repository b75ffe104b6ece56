"""The vertical part of ``streamfl simulate``: one table, its columns dealt to parties that learn from it together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from streamfl.cli.datasets import input_names, numbers, read_data, unread_columns
from streamfl.cli.output import OutputFormat, print_json, print_table, say
from streamfl.cli.preflight import read_configuration
from streamfl.role import ConfigurationError
from streamfl.samples import DataError
from streamfl.simulation.vertical import Delay
from streamfl.simulation.vertical_run import VerticalOutcome, VerticalTable, run_vertical
from streamfl.vafl.config import COORDINATOR, VaflSettings
from streamfl.vafl.roles import output_loss

__all__ = [
    "DelayDistribution",
    "DelayDistributionOption",
    "DelaysOption",
    "EpochsOption",
    "LabelDelayOption",
    "OnlineOption",
    "SplitOption",
    "TestFractionOption",
    "VerticalOptions",
    "run_with_bar",
    "simulate_vertical",
    "split_columns",
    "vertical_rows",
]

TEST_FRACTION = 0.2
FEWEST_SHARES = 2
SHORTEST_DELAY, LONGEST_DELAY = 1e-6, 1_000_000


class DelayDistribution(StrEnum):
    """How long a party takes from one upload to the next."""

    CONSTANT = "constant"
    EXPONENTIAL = "exponential"


SplitOption = Annotated[
    str | None,
    typer.Option(help="VAFL: which input columns each party has, half-open ranges or names: 'bank=0:5,shop=age+income'."),
]
DelaysOption = Annotated[
    str | None, typer.Option(help="VAFL: mean virtual seconds between a party's uploads, 'bank=1,shop=10'; left out: 1.")
]
DelayDistributionOption = Annotated[DelayDistribution | None, typer.Option(help="VAFL: left out: constant.")]
EpochsOption = Annotated[int | None, typer.Option(min=1, help="VAFL: passes, each in a random order by seed; left out: 1.")]
OnlineOption = Annotated[bool, typer.Option("--online", help="VAFL: one pass in the order of the file, labels as they come.")]
LabelDelayOption = Annotated[
    int | None, typer.Option(min=0, help="VAFL, with --online: by how many entities a label comes later; left out: 0.")
]
TestFractionOption = Annotated[
    float | None, typer.Option(help=f"VAFL: share of the rows, the last ones, to measure on; left out: {TEST_FRACTION}.")
]


@dataclass(frozen=True)
class VerticalOptions:
    """What only a vertical simulation can be told; None, or False: not given."""

    split: str | None = None
    delays: str | None = None
    delay_distribution: DelayDistribution | None = None
    epochs: int | None = None
    online: bool = False
    label_delay: int | None = None
    test_fraction: float | None = None

    @property
    def given(self) -> list[str]:
        """The options, as they are written, that were given."""
        return [f"--{name.replace('_', '-')}" for name, value in vars(self).items() if value is not None and value is not False]


def simulate_vertical(
    config: Path, data: str, label: str, seed: int | None, options: VerticalOptions, trace: Path | None, format: OutputFormat
) -> None:
    """Run coordinator and parties on the memory bus, and say how well and at what cost they learnt."""
    settings = _read(config, label, seed)
    names = settings.federation.parties
    if options.split is None:
        raise ConfigurationError(f"--split is missing: say which columns each of {', '.join(names)} has, such as {names[0]}=0:5")
    if options.online and options.epochs is not None:
        raise ConfigurationError("--epochs has no meaning with --online, which is one pass in the order of the file")
    if not options.online and options.label_delay is not None:
        raise ConfigurationError("--label-delay has no meaning without --online: in epochs all labels are there from the beginning")
    fraction = TEST_FRACTION if options.test_fraction is None else options.test_fraction
    if not 0 < fraction < 1:
        raise ConfigurationError(f"--test-fraction {fraction:g}: a number between 0 and 1 is expected")
    delays = _delays(options.delays, options.delay_distribution or DelayDistribution.CONSTANT, names)
    table, scales, dropped = _table(settings, data, label, options.split, fraction)
    if dropped:
        say(f"{dropped} rows have no number in some column and are left out")
    epochs = None if options.online else options.epochs or 1
    outcome = run_with_bar(settings, table, delays, epochs, options.label_delay or 0, trace is not None)
    if trace is not None:
        try:
            trace.mkdir(parents=True, exist_ok=True)
            np.savez(trace / "trace.npz", allow_pickle=False, **outcome.trace)
        except OSError as error:
            raise ConfigurationError(f"--trace {trace}: cannot be written: {error.strerror or error}") from None
    if keys := _keys_to_raise(outcome):
        say(f"the coordinator forgot entities before it learnt from them ({_by_reason(outcome.forgotten)}): raise {keys}")
    if format is OutputFormat.TABLE:
        print_table(f"Vertical federation on {data}", ("measure", "value"), vertical_rows(outcome))
        return
    low, high = scales.label_range
    mse = outcome.final.mse
    print_json(
        {
            **outcome.summary(),
            "mse_original_units": None if mse is None else mse * (high - low) ** 2,
            "label_range": scales.label_range,
            "input_norms": dict(zip(names, scales.input_norms, strict=True)),
            "epochs": epochs,
            "label_delay": options.label_delay or 0,
            "dropped_rows": dropped,
        }
    )


def run_with_bar(
    settings: VaflSettings, table: VerticalTable, delays: Sequence[Delay], epochs: int | None, label_delay: int, trace: bool = False
) -> VerticalOutcome:
    """Run the federation, with a bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("entities", total=1.0)
        return run_vertical(
            settings,
            table,
            delays=delays,
            epochs=epochs,
            label_delay=label_delay,
            trace=trace,
            watch=lambda share: bar.update(task, completed=share),
        )


def vertical_rows(outcome: VerticalOutcome) -> list[tuple[str, str]]:
    """What was measured and its value, ready to print."""
    summary = outcome.summary()
    rows = [("Entities", f"{outcome.entities:,} of {len(outcome.parties)} parties, {outcome.test_entities:,} more to measure on")]
    for title, figures in (
        ("test entities", summary),
        ("test entities, embeddings with noise", summary["noisy"]),
        ("before each label", summary["progressive"]),
        *((f"test entities, {name} absent", figures) for name, figures in summary["absent"].items()),
    ):
        for text, name in (("Accuracy", "accuracy"), ("AUC", "auc"), ("MSE", "mse")):
            if figures is not None and figures[name] is not None:
                rows.append((f"{text}, {title}", f"{figures[name]:.4f}"))
    rows += [
        ("Virtual time", f"{outcome.seconds:,.1f} s"),
        ("Embeddings sent", f"{summary['uploads']:,}, {summary['uplink_bytes']:,} bytes"),
        ("Gradients and requests sent", f"{summary['downlink_bytes']:,} bytes"),
        ("Newer embeddings asked for", f"{outcome.requests:,}"),
        ("Entities forgotten", _by_reason(outcome.forgotten)),
        ("Staleness in steps", f"{outcome.staleness_mean:.2f} on average, {outcome.staleness_largest} at most"),
    ]
    if outcome.mu is not None:
        rows.append(("Privacy, mu of one party", f"{outcome.mu:.3f}, all parties together {summary['mu_all_parties']:.3f}"))
    if outcome.mu_per_release is not None:
        rows.append(("mu of an entity's own embeddings (no guarantee)", f"{outcome.mu_per_release:.3f}"))
    return rows


def _by_reason(forgotten: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in forgotten.items() if count) or "0"


def _keys_to_raise(outcome: VerticalOutcome) -> str:
    """What lets entities be remembered until they are learnt from; nothing if all were."""
    forgotten, alignment = outcome.forgotten, outcome.settings.alignment
    keys = []
    if any(forgotten[reason] for reason in ("no_label", "no_embedding", "no_quorum")):
        keys.append(f"alignment.expiry_seconds = {alignment.expiry_seconds:g}, to more virtual seconds than labels are late")
    if forgotten["displaced"]:
        keys.append(f"alignment.limit = {alignment.limit}, to more entities than wait at a time")
    return "; and ".join(keys)


@dataclass(frozen=True)
class _Scales:
    """input_norms: by party, what its inputs were divided by. label_range: what became 0 and 1."""

    input_norms: list[float]
    label_range: tuple[float, float]


def _read(config: Path, label: str, seed: int | None) -> VaflSettings:
    """The settings of ``config``, whichever member's they are, checked as a coordinator's."""
    # What a member needs for itself comes from the data here; what all share is checked as it is for ``run``.
    sections: dict[str, Any] = {
        "role": {"kind": COORDINATOR},
        "labels": {"topic": "labels", "label": label, "label_range": (0.0, 1.0)},
    }
    if seed is not None:
        sections["federation"] = {"seed": seed}
    settings = read_configuration(config, sections).settings
    assert isinstance(settings, VaflSettings)
    return settings


def _table(
    settings: VaflSettings, location: str, label: str, split: str, fraction: float
) -> tuple[VerticalTable, _Scales, int]:
    """The table as the parties have it; DataError if it cannot be learnt from."""
    table = read_data(location)
    offered = input_names(table, None, (label,), location)
    own = split_columns(split, settings.federation.parties, offered, list(table.columns), label)
    unread_columns(table, offered, (label,))
    used = list(dict.fromkeys(name for names in own for name in names))
    if label not in table.columns:
        raise DataError(f"{location}: no column {label} (there are: {', '.join(table.columns)})")
    inputs, labels = numbers(table, used, location), numbers(table, [label], location)[:, 0]
    present = np.isfinite(inputs).all(axis=1) & np.isfinite(labels)
    inputs, labels = inputs[present], labels[present]
    test = math.ceil(fraction * len(labels))
    learnt = len(labels) - test
    if learnt < FEWEST_SHARES:
        raise DataError(f"{location}: {len(labels)} usable rows leave {learnt} to learn from, {test} to measure on")
    label_range = (0.0, 1.0)
    if settings.learning.loss == "square":
        label_range = float(labels[:learnt].min()), float(labels[:learnt].max())
        if label_range[0] == label_range[1]:
            raise DataError(f"{location}: the label {label} is {label_range[0]:g} in every row: there is nothing to learn")
        labels = (labels - label_range[0]) / (label_range[1] - label_range[0])
    loss = output_loss(settings)
    for value in np.unique(labels):
        if not loss.accepts(float(value)):
            expected = f"one of 0 .. {max(loss.outputs, 2) - 1}"
            raise DataError(
                f"{location}: the label {label} is {value:g} somewhere, {expected} is expected with "
                f'learning.loss = "{settings.learning.loss}"'
            )
    columns, norms = [], []
    for names in own:
        part = inputs[:, [used.index(name) for name in names]]
        norms.append(_norm(part[:learnt]))
        columns.append(part / norms[-1])
    return VerticalTable(columns, labels, test), _Scales(norms, label_range), int((~present).sum())


def _norm(inputs: NDArray[np.float64]) -> float:
    """The root of the mean square, so that an input is about one."""
    with np.errstate(over="ignore"):
        norm = float(np.sqrt(np.square(inputs).mean()))
    return norm if norm and math.isfinite(norm) else 1.0


def split_columns(
    text: str, parties: Sequence[str], offered: Sequence[str], columns: Sequence[str], label: str
) -> list[list[str]]:
    """By party, in the order of ``parties``, the names of its columns."""
    own: dict[str, list[str]] = {}
    for party, value in _pairs("--split", text, parties):
        names: list[str] = []
        for part in value.split("+"):
            found = re.fullmatch(r"(\d+):(\d+)", part)
            if found is None:
                if part not in columns:
                    raise ConfigurationError(
                        f"--split {party}={value}: {part!r} is neither a range such as 0:5 nor a column "
                        f"(there are: {', '.join(columns)})"
                    )
                names.append(part)
                continue
            begin, end = int(found[1]), int(found[2])
            if not begin < end <= len(offered):
                raise ConfigurationError(f"--split {party}={value}: {part} is no range within the {len(offered)} input columns")
            names += offered[begin:end]
        if label in names:
            raise ConfigurationError(f"--split {party}={value}: {label} is the label, which no party may be shown")
        own[party] = list(dict.fromkeys(names))
    missing = [party for party in parties if party not in own]
    if missing:
        raise ConfigurationError(f"--split {text}: nothing is said of {', '.join(missing)}, which federation.parties has too")
    return [own[party] for party in parties]


def _delays(text: str | None, distribution: DelayDistribution, parties: Sequence[str]) -> list[Delay]:
    means = dict.fromkeys(parties, 1.0)
    for party, value in _pairs("--delays", text, parties) if text is not None else ():
        try:
            means[party] = float(value)
        except ValueError:
            means[party] = math.nan
        if not SHORTEST_DELAY <= means[party] <= LONGEST_DELAY:
            raise ConfigurationError(
                f"--delays {party}={value}: a positive number of seconds, {SHORTEST_DELAY:g} to {LONGEST_DELAY:,}, is expected"
            )
    return [Delay(mean, distribution.value) for mean in means.values()]


def _pairs(option: str, text: str, parties: Sequence[str]) -> list[tuple[str, str]]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        party, separator, value = part.strip().partition("=")
        if not separator or not value:
            raise ConfigurationError(f"{option} {text}: PARTY=… is expected, with commas between them, not {part!r}")
        if party not in parties:
            raise ConfigurationError(f"{option} {text}: {party!r} is none of federation.parties ({', '.join(parties)})")
        if party in pairs:
            raise ConfigurationError(f"{option} {text}: {party} is there twice")
        pairs[party] = value
    return list(pairs.items())
