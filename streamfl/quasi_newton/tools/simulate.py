"""``streamfl simulate`` for one table: its columns are dealt to parties that learn a scorecard under
encryption."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from pydantic import model_validator

from streamfl.configuration.settings import SettingsSource, load_settings
from streamfl.quasi_newton.config import GUEST, QuasiNewtonSettings
from streamfl.quasi_newton.tools.commands import Precision
from streamfl.quasi_newton.tools.run import CurvatureOutcome, run_curvature
from streamfl.simulation.baseline import say_where_useless
from streamfl.simulation.parties import check_delay
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.vertical.command import party_content, report, say_dropped
from streamfl.simulation.vertical.table import checked_options, deal_table, labels_as_classes
from streamfl.terminal.console import say
from streamfl.terminal.progress import progress

__all__ = ["curvature_rows", "simulate"]

MEASURES = {
    "auc": "AUC",
    "ks": "KS",
    "accuracy": "Accuracy",
    "loss": "Log loss",
    "taylor_loss": "Taylor loss",
}


USELESS = (
    "If its AUC is near 0.5 too, these columns say nothing about the label: learn from more rows, or from "
    "other columns"
)


class _Members(QuasiNewtonSettings):
    """The settings of any member, without checks between sections: the guest's settings are made from them
    and checked later."""

    def unfit(self) -> Iterator[str]:
        return iter(())

    @model_validator(mode="after")
    def _is_a_whole_member(self) -> _Members:
        return self

    @model_validator(mode="after")
    def _hides_what_it_should(self) -> _Members:
        return self

    @model_validator(mode="after")
    def _batches_are_large_enough(self) -> _Members:
        return self


def simulate(
    asked: SimulationOptions,
    split: str | None,
    precision: Precision | None,
    network_delay: float | None,
    epochs: int | None,
    test_fraction: float | None,
) -> Report:
    """Run guest, hosts and coordinator on the memory bus, and say how well and at what cost they learnt."""
    settings = _read(asked.config, asked.label, precision, epochs, asked.seed)
    names = settings.federation.parties
    split, fraction = checked_options(names, split, None, False, None, test_fraction)
    check_delay("--network-delay", network_delay)
    dealt = deal_table(asked.data, asked.label, split, names, fraction, square=False)
    dealt = labels_as_classes(dealt, asked.data, asked.label)
    say_dropped(dealt)
    with progress("iterations", stops=True) as work:
        outcome = run_curvature(
            settings, dealt.table, network_delay=network_delay or 0.0, trace=asked.trace, watch=work
        )
    _tell(outcome)
    figures = {**outcome.summary(), "dropped_rows": dealt.dropped}
    return report(asked, work, "Scorecard on", curvature_rows(outcome), figures, outcome.trace)


def curvature_rows(outcome: CurvatureOutcome) -> list[tuple[str, str]]:
    """The names and values of the results, ready to print."""
    summary = outcome.summary()
    encrypted = summary["precision"] == "paillier"
    hidden = f"Paillier, {summary['key_bits']} bits" if encrypted else "none: plain numbers"
    rows = [
        (
            "Entities",
            f"{outcome.entities:,} of {len(outcome.parties)} parties in {outcome.batches:,} batches, "
            f"{outcome.held_out:,} held out, {outcome.waiting:,} fill no batch, {outcome.test_entities:,} "
            "more to measure on",
        ),
        ("Encryption", hidden),
    ]
    for title, figures in (
        ("test entities", asdict(outcome.final)),
        ("the guest alone", summary["guest_alone"]),
    ):
        for name, text in MEASURES.items():
            if figures is not None and figures[name] is not None:
                rows.append((f"{text}, {title}", f"{figures[name]:.4f}"))
    ended = "two losses agree" if outcome.converged else "the most there may be"
    steps = ", ".join(f"{step} {seconds:.1f}" for step, seconds in outcome.seconds_by_step.items())
    rows += [
        ("Epochs", f"{summary['epochs']}: {ended}"),
        (
            "Iterations",
            f"{outcome.iterations:,}, {outcome.pairs[1]} of {outcome.pairs[0]} curvature pairs kept",
        ),
        ("Ciphertexts" if encrypted else "Numbers in place of ciphertexts", f"{summary['ciphertexts']:,}"),
        ("Messages between members", f"{summary['messages']:,}, {summary['bytes']:,} bytes"),
        ("Seconds", f"{outcome.seconds:.1f}"),
        ("Seconds of the processor", steps),
        ("Virtual time", f"{outcome.virtual_seconds:,.1f} s"),
    ]
    return rows


def _tell(outcome: CurvatureOutcome) -> None:
    """Warn about results that may surprise a user: useless columns, columns left out, muted rows."""
    say_where_useless([("the test entities", outcome.final.loss, outcome.constant_loss)], USELESS)
    left_out = {
        name: own["columns_left_out"] for name, own in outcome.parties.items() if own["columns_left_out"]
    }
    if left_out:
        told = ", ".join(f"{name} {count}" for name, count in left_out.items())
        say(
            f"columns with fewer than learning.min_support = {outcome.settings.learning.min_support} rows of "
            f"their own in a batch are not learnt from: {told}"
        )
    muted = ", ".join(
        f"{name} {own['muted_rows']}" for name, own in outcome.parties.items() if own["muted_rows"]
    )
    if muted:
        say(
            "rows that have more than learning.largest_leverage = "
            f"{outcome.settings.learning.largest_leverage:g} of a batch's gradient to themselves are learnt "
            f"from with zeros: {muted}"
        )


def _read(
    config: SettingsSource, label: str, precision: Precision | None, epochs: int | None, seed: int | None
) -> QuasiNewtonSettings:
    """The settings in ``config``, of any member, checked as the guest's."""
    own: dict[str, Any] = {} if seed is None else {"seed": seed}
    encryption: dict[str, Any] = {} if precision is None else {"precision": precision.value}
    sections: dict[str, Any] = {"federation": own, "bus": {"url": "memory://"}, "encryption": encryption}
    if epochs is not None:
        sections["learning"] = {"epochs": epochs}
    members = load_settings(config, _Members, sections)
    federation = members.federation
    # Keys and secrets are made up, and a member's own settings follow from the data. Shared settings are
    # checked as for `run`.
    made_up = {
        "key_fingerprint": "0" * 64,
        "secret_file": "",
        "link_secret_file": dict.fromkeys(federation.hosts, ""),
    }
    sections |= {
        "encryption": {**encryption, **made_up},
        **party_content(GUEST, federation.guest_party, label),
    }
    return load_settings(config, QuasiNewtonSettings, sections)
