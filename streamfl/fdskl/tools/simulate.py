"""``streamfl simulate`` of one table whose columns are dealt to parties that learn a kernel model of it by
masked sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import model_validator

from streamfl.configuration.settings import SettingsSource, load_settings
from streamfl.fdskl.config import FEWEST_ENTITIES, WORKER, FdsklSettings
from streamfl.fdskl.tools.run import KernelOutcome, run_kernel
from streamfl.simulation.parties import check_delay
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.vertical.command import party_content, report, say_dropped, table_figures
from streamfl.simulation.vertical.figures import counts_by_reason, in_label_units
from streamfl.simulation.vertical.table import checked_options, deal_table, labels_as_classes
from streamfl.terminal.console import say
from streamfl.terminal.progress import progress

__all__ = ["kernel_rows", "simulate"]


USELESS = (
    "These labels are noisy for so few rows: raise learning.regularisation and "
    "learning.bandwidth_multiplier, and learn from more rows or in more passes"
)


class _Members(FdsklSettings):
    """Settings from any member's file, or from none, which are not checked yet: which party is active is read
    from them first."""

    def unfit(self) -> Iterator[str]:
        return iter(())

    @model_validator(mode="after")
    def _is_a_whole_member(self) -> _Members:
        return self


def simulate(
    asked: SimulationOptions,
    split: str | None,
    active: str | None,
    network_delay: float | None,
    epochs: int | None,
    online: bool,
    label_delay: int | None,
    test_fraction: float | None,
) -> Report:
    """Run all parties on the memory bus, and say how well and at what cost they learnt."""
    settings = _read(asked.config, asked.label, active, asked.seed)
    names = settings.federation.parties
    split, fraction = checked_options(names, split, epochs, online, label_delay, test_fraction)
    check_delay("--network-delay", network_delay)
    loss = settings.learning.loss
    dealt = deal_table(asked.data, asked.label, split, names, fraction, loss == "square")
    if loss != "square":
        dealt = labels_as_classes(dealt, asked.data, asked.label, f' with learning.loss = "{loss}"')
    say_dropped(dealt)
    passes = None if online else epochs or 1
    with progress("labels", stops=True) as work:
        outcome = run_kernel(
            settings,
            dealt.table,
            dealt.columns,
            epochs=passes,
            label_delay=label_delay or 0,
            network_delay=network_delay or 0.0,
            trace=asked.trace,
            watch=work,
        )
    _tell(outcome)
    low, high = dealt.label_range
    summary = in_label_units(outcome.summary(), high - low)
    figures = {**summary, **table_figures(dealt, passes, label_delay)}
    return report(asked, work, "Kernel federation on", kernel_rows(outcome, summary), figures, outcome.trace)


def kernel_rows(outcome: KernelOutcome, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What was measured and its value, ready to print. summary: the outcome's figures."""
    rows = outcome.entity_rows(summary)
    if outcome.regret is not None:
        scaled = "" if summary.get("rmse") is None else ", labels scaled to 0..1"
        rows.append((f"Regret an entity{scaled}", f"{outcome.regret / outcome.entities:.4f}"))
    bandwidth = "not known yet" if outcome.bandwidth is None else f"{outcome.bandwidth:.4g}"
    rows += [
        ("Iterations", f"{outcome.iterations:,}"),
        (
            "Random features",
            f"{outcome.features:,} kept, {outcome.features_dropped:,} dropped, bandwidth {bandwidth}",
        ),
        ("Virtual time", f"{outcome.seconds:,.1f} s"),
        ("Rounds", f"{outcome.rounds:,} of {summary['hops']} hops, {summary['abandoned']:,} abandoned"),
        ("Messages between parties", f"{summary['messages']:,}, {summary['bytes']:,} bytes"),
        ("Entities forgotten", counts_by_reason(outcome.forgotten)),
    ]
    return rows


def _tell(outcome: KernelOutcome) -> None:
    """Print notes on what would surprise a user."""
    settings, forgotten = outcome.settings, outcome.forgotten
    if not outcome.iterations:
        learning = settings.learning
        say(
            f"nothing was learnt: {outcome.entities:,} labels came, and the first iteration takes "
            f"{learning.first_block:,}, by learning.first_instances and learning.block_instances = "
            f"{learning.block_instances:,}, and at least {FEWEST_ENTITIES} where learning.bandwidth is left "
            "out"
        )
    else:
        outcome.say_where_useless(USELESS)
    if forgotten["displaced"]:
        say(
            f"{forgotten['displaced']:,} entities were dropped for newer ones before they were learnt from: "
            f"raise alignment.limit = {settings.alignment.limit} to more entities than wait for their label "
            "at a time"
        )


def _read(config: SettingsSource, label: str, active: str | None, seed: int | None) -> FdsklSettings:
    """The settings of ``config``, whichever member's they are, checked as the active party's."""
    own: dict[str, Any] = {} if seed is None else {"seed": seed}
    if active is not None:
        own["active"] = active.split(",") if "," in active else active
    members = load_settings(config, _Members, {"federation": own, "bus": {"url": "memory://"}})
    # Sections of a single member come from the data here. Sections that all share are checked as for ``run``.
    sections: dict[str, Any] = {
        "federation": own,
        "bus": {"url": "memory://"},
        **party_content(WORKER, members.federation.active_party, label),
    }
    return load_settings(config, FdsklSettings, sections)
