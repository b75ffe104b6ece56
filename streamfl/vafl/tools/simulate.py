"""``streamfl simulate`` for one table: its columns are dealt to parties that learn together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.configuration.settings import SettingsSource, load_settings
from streamfl.contract.role import DataError
from streamfl.simulation.parties import DelayDistribution, check_delay, delays_of
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.vertical.command import head_content, report, say_dropped, table_figures
from streamfl.simulation.vertical.figures import counts_by_reason, in_label_units
from streamfl.simulation.vertical.table import DealtTable, checked_options, deal_table
from streamfl.terminal.console import say
from streamfl.terminal.progress import progress
from streamfl.vafl.config import COORDINATOR, VaflSettings
from streamfl.vafl.functions.models import output_loss
from streamfl.vafl.tools.run import VerticalOutcome, run_vertical

__all__ = ["simulate", "vertical_rows"]

USELESS = (
    "Learn from more rows or in more passes, try another learning.learning_rate, and with [privacy] less "
    "noise"
)


def simulate(
    asked: SimulationOptions,
    split: str | None,
    delays: str | None,
    delay_distribution: DelayDistribution | None,
    network_delay: float | None,
    coordinator_delay: float | None,
    epochs: int | None,
    online: bool,
    label_delay: int | None,
    test_fraction: float | None,
) -> Report:
    """Run coordinator and parties on the memory bus, and say how well and at what cost they learnt."""
    settings = _read(asked.config, asked.label, asked.seed)
    names = settings.federation.parties
    split, fraction = checked_options(names, split, epochs, online, label_delay, test_fraction)
    own_delays = delays_of(delays, delay_distribution or DelayDistribution.CONSTANT, names)
    for option, value in (("--network-delay", network_delay), ("--coordinator-delay", coordinator_delay)):
        check_delay(option, value)
    dealt, norms = _table(settings, asked, split, fraction)
    say_dropped(dealt)
    passes = None if online else epochs or 1
    with progress("entities", stops=True) as work:
        outcome = run_vertical(
            settings,
            dealt.table,
            delays=own_delays,
            network_delay=network_delay or 0.0,
            coordinator_delay=coordinator_delay or 0.0,
            epochs=passes,
            label_delay=label_delay or 0,
            trace=asked.trace,
            watch=work,
        )
    if keys := _keys_to_raise(outcome):
        say(
            "the coordinator forgot entities before it learnt from them "
            f"({counts_by_reason(outcome.forgotten)}): raise {keys}"
        )
    noisy = None if outcome.noisy is None else outcome.noisy.loss
    outcome.say_where_useless(
        USELESS, ("the test entities, embeddings with noise", noisy, outcome.constant_loss)
    )
    low, high = dealt.label_range
    summary = in_label_units(outcome.summary(), high - low)
    own = {"input_norms": dict(zip(names, norms, strict=True))}
    figures = {**summary, **table_figures(dealt, passes, label_delay, **own)}
    return report(
        asked, work, "Vertical federation on", vertical_rows(outcome, summary), figures, outcome.trace
    )


def vertical_rows(outcome: VerticalOutcome, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the measurements, ready to print. summary: the outcome's figures."""
    rows = outcome.entity_rows(summary, ("test entities, embeddings with noise", summary["noisy"]))
    rows += [
        ("Virtual time", f"{outcome.seconds:,.1f} s"),
        ("Embeddings sent", f"{summary['uploads']:,}, {summary['uplink_bytes']:,} bytes"),
        ("Gradients and requests sent", f"{summary['downlink_bytes']:,} bytes"),
        (
            "Newer embeddings asked for",
            f"{outcome.requests:,}; {outcome.outdated:,} too old and not to be had",
        ),
        ("Learnt from below the quorum", f"{outcome.below_quorum:,} times"),
        ("Entities forgotten", counts_by_reason(outcome.forgotten)),
        (
            "Staleness in steps",
            f"{outcome.staleness_mean:.2f} on average, {outcome.staleness_largest} at most",
        ),
    ]
    if outcome.mu is not None:
        rows.append(
            (
                "Privacy, mu of one party",
                f"{outcome.mu:.3f}, all parties together {summary['mu_all_parties']:.3f}",
            )
        )
    if outcome.mu_per_release is not None:
        rows.append(("mu of an entity's own embeddings (no guarantee)", f"{outcome.mu_per_release:.3f}"))
    if outcome.label_mu is not None:
        rows.append(("mu of an entity's label", f"{outcome.label_mu:.3f}"))
    return rows


def _keys_to_raise(outcome: VerticalOutcome) -> str:
    """The settings to raise so that entities are remembered until they are learnt from; empty if all were."""
    forgotten, alignment = outcome.forgotten, outcome.settings.alignment
    keys = []
    if any(forgotten[reason] for reason in ("no_label", "no_embedding", "no_quorum")):
        keys.append(
            f"alignment.expiry_seconds = {alignment.expiry_seconds:g}, to more virtual seconds than labels "
            "are late"
        )
    if forgotten["displaced"]:
        keys.append(f"alignment.limit = {alignment.limit}, to more entities than wait at a time")
    return "; and ".join(keys)


def _read(config: SettingsSource, label: str, seed: int | None) -> VaflSettings:
    """The settings of ``config``, of any member, checked as a coordinator's."""
    sections = head_content(COORDINATOR, label)
    if seed is not None:
        sections["federation"] = {"seed": seed}
    return load_settings(config, VaflSettings, sections)


def _table(
    settings: VaflSettings, asked: SimulationOptions, split: str, fraction: float
) -> tuple[DealtTable, list[float]]:
    """The table with its columns dealt to the parties, and the divisor of each party's inputs; DataError for
    wrong labels."""
    dealt = deal_table(
        asked.data,
        asked.label,
        split,
        settings.federation.parties,
        fraction,
        settings.learning.loss == "square",
    )
    table = dealt.table
    loss = output_loss(settings)
    for value in np.unique(table.labels):
        if not loss.accepts(float(value)):
            expected = f"one of 0 .. {max(loss.outputs, 2) - 1}"
            raise DataError(
                f"{asked.data}: the label {asked.label} is {value:g} somewhere, {expected} is expected with "
                f'learning.loss = "{settings.learning.loss}"'
            )
    norms = [_norm(part[: table.learnt]) for part in table.inputs]
    columns = [part / norm for part, norm in zip(table.inputs, norms, strict=True)]
    return replace(dealt, table=replace(table, inputs=columns)), norms


def _norm(inputs: NDArray[np.float64]) -> float:
    """Root mean square of the inputs: divided by it, an input is about one."""
    with np.errstate(over="ignore"):
        norm = float(np.sqrt(np.square(inputs).mean()))
    return norm if norm and math.isfinite(norm) else 1.0
