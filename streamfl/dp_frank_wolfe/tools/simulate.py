"""``streamfl simulate``: deals one table's columns to parties, which fit a sparse model with privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from streamfl.configuration.settings import SettingsSource, load_settings
from streamfl.contract.role import ConfigurationError
from streamfl.dp_frank_wolfe.config import SERVER, DPFrankWolfeSettings
from streamfl.dp_frank_wolfe.tools.draws import mean_and_deviation
from streamfl.dp_frank_wolfe.tools.fit_outcome import FitOutcome
from streamfl.dp_frank_wolfe.tools.run import clipped_shares, run_fits
from streamfl.simulation.baseline import say_where_useless
from streamfl.simulation.parties import check_delay
from streamfl.simulation.system_tools import Report, SimulationOptions
from streamfl.simulation.vertical.command import report, say_dropped
from streamfl.simulation.vertical.table import DealtTable, checked_options, deal_table
from streamfl.terminal.console import say
from streamfl.terminal.progress import progress
from streamfl.terminal.words import first_of

__all__ = ["fit_rows", "simulate"]

LABORATORY = "not private, laboratory only"
DRAWS = 5
# A column of which more than this is beyond its bounds is told; so many are named.
MUCH, NAMED = 0.1, 5
USELESS = (
    "Its noise is too much for so few rows: take more of them or a larger privacy.epsilon, or the best party "
    "alone"
)
TOO_NOISY = (
    'serving.mode = "private" adds noise to each single prediction: compute predictions from '
    "<federation>.model where the columns are, or raise privacy.epsilon or serving.share"
)


class _Members(DPFrankWolfeSettings):
    """Settings of any member. What the member needs for itself alone is not checked."""

    def unfit(self) -> Iterator[str]:
        return iter(())


def simulate(
    asked: SimulationOptions,
    split: str | None,
    windows: int | None,
    epsilon: float | None,
    draws: int | None,
    network_delay: float | None,
) -> Report:
    """Run the parties and the server on the memory bus, and report how well they learnt, for which epsilon,
    and at what cost."""
    settings = _read(asked, epsilon)
    names = settings.federation.parties
    split, _ = checked_options(names, split, None, False, None, None)
    check_delay("--network-delay", network_delay)
    dealt = deal_table(asked.data, asked.label, split, names, 0.0, square=False)
    _check_columns(settings, {name: len(own) for name, own in zip(names, dealt.columns, strict=True)})
    say_dropped(dealt, "; `streamfl run` takes them as rows of zeros")
    _say_clipped(settings, dealt, asked.label)
    if asked.trace and not settings.privacy.insecure_test_noise:
        raise ConfigurationError(
            "--trace tells what noise was drawn from, which is a secret: set privacy.insecure_test_noise = "
            "true in a file for experiments, whose noise comes from federation.seed"
        )
    with progress(
        "iterations" if settings.learning.estimator == "frank-wolfe" else "fits", stops=True
    ) as work:
        outcome = run_fits(
            settings,
            dealt.table,
            windows or 1,
            network_delay=network_delay or 0.0,
            draws=draws or DRAWS,
            trace=asked.trace,
            watch=work,
        )
    if outcome.r2 is not None:
        # R^2 is 1 minus this error. The labels' mean has an error of 1.
        error = 1 - math.fsum(outcome.r2_draws) / len(outcome.r2_draws)
        say_where_useless([(f"{outcome.summary()['r2_of']}, 1 - R^2", error, 1.0)], USELESS)
    if outcome.served_r2 is not None:
        served = "predictions with their noise, 1 - R^2"
        say_where_useless([(served, 1 - outcome.served_r2, 1.0)], TOO_NOISY)
    figures = {**outcome.summary(), "dropped_rows": dealt.dropped}
    return report(asked, work, "Sparse model of", fit_rows(outcome), figures, outcome.trace)


def _say_clipped(settings: DPFrankWolfeSettings, dealt: DealtTable, label: str) -> None:
    """Warn of columns of which the bounds cut much off: a server's file has no bounds of columns."""
    shares, label_share = clipped_shares(settings, dealt.table)
    found = {
        name: share
        for names, of_party in zip(dealt.columns, shares, strict=True)
        for name, share in zip(names, of_party.tolist(), strict=True)
    } | {label: label_share}
    cut = [f"{name} ({share:.0%})" for name, share in found.items() if share > MUCH]
    if cut:
        say(
            "values beyond bounds.centre +- bounds.bound are clipped, and here these are many: "
            f"{first_of(cut, NAMED)}. Give bounds that your columns and labels keep, or simulate with a "
            "party's file"
        )


def fit_rows(outcome: FitOutcome) -> list[tuple[str, str]]:
    """What was measured and its values, ready to print."""
    summary = outcome.summary()
    columns = sum(own["columns"] for own in outcome.parties.values())
    return [
        (
            "Rows",
            f"{outcome.rows:,} in {_counted(outcome.windows, 'window')}, {outcome.test_rows:,} held out",
        ),
        ("Columns", f"{columns:,} of {len(outcome.parties)} parties"),
        ("Estimator", summary["estimator"]),
        (f"R^2 of {summary['r2_of']} ({LABORATORY})", _explained(outcome)),
        *(
            []
            if outcome.served_r2 is None
            else [("The same of predictions with their noise (serving.mode)", _served(outcome))]
        ),
        ("The same of the best party alone, without privacy", _alone(outcome)),
        (
            "The same of all columns in one place, without privacy",
            "none" if outcome.pooled is None else f"{outcome.pooled:.3f}",
        ),
        (f"Objective ({LABORATORY})", f"{summary['objective']:.6f}"),
        (f"Duality gap ({LABORATORY})", f"{summary['gap']:.6f}"),
        ("Columns with a weight", f"{summary['support']:,}"),
        (
            "Sum of absolute weights",
            f"{summary['l1_norm']:.4f}, at most {outcome.settings.learning.radius:g}",
        ),
        ("Privacy of an entity", _promise(outcome)),
        ("Numbers sent up", f"{outcome.uplink_numbers:,}, at most {outcome.uplink_most:,}"),
        ("Messages between members", f"{summary['messages']:,}, {summary['bytes']:,} bytes"),
        ("Iterations", f"{outcome.iterations:,}"),
        ("Seconds", f"{outcome.seconds:.1f}"),
        ("Virtual time", f"{outcome.virtual_seconds:,.1f} s"),
    ]


def _explained(outcome: FitOutcome) -> str:
    if outcome.r2 is None:
        return "none: one label"
    if len(outcome.r2_draws) == 1:
        return f"{outcome.r2:.3f}"
    return (
        f"{mean_and_deviation(outcome.r2_draws)}, mean and deviation of {len(outcome.r2_draws)} draws; this "
        f"one {outcome.r2:.3f}"
    )


def _served(outcome: FitOutcome) -> str:
    return f"{outcome.served_r2:.3f}; the noise has a deviation of {outcome.prediction_noise:.4g}"


def _alone(outcome: FitOutcome) -> str:
    found = {party: r2 for party, r2 in outcome.alone.items() if r2 is not None}
    best = max(found, key=found.__getitem__, default=None)
    return "none" if best is None else f"{found[best]:.3f}, {best}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _promise(outcome: FitOutcome) -> str:
    privacy = outcome.settings.privacy
    if not math.isfinite(outcome.epsilon):
        return "none: epsilon = inf, and there is no noise"
    uncovered = "; predictions are not covered" if outcome.settings.serving.mode == "exact" else ""
    told = (
        f"epsilon {outcome.epsilon_spent:.4g} of {outcome.epsilon:.4g}, delta {privacy.delta:g}, over all "
        f"parties{uncovered}"
    )
    return f"none: insecure_test_noise; with a secret, {told}" if privacy.insecure_test_noise else told


def _read(asked: SimulationOptions, epsilon: float | None) -> DPFrankWolfeSettings:
    """The settings of any member's file, checked as the server's."""
    if epsilon is not None and not epsilon > 0:
        raise ConfigurationError(f"--epsilon {epsilon:g}: a number above 0, or inf, is expected")
    sections: dict[str, Any] = {"bus": {"url": "memory://"}}
    if asked.seed is not None:
        sections["federation"] = {"seed": asked.seed}
    if epsilon is not None:
        sections["privacy"] = {"epsilon": epsilon}
    settings = load_settings(asked.config, _Members, sections)
    _check_bounds(asked.config, settings)
    content = settings.model_dump(exclude={"party", "samples", "labels"})
    return DPFrankWolfeSettings(**{**content, "role": {"kind": SERVER}})


def _check_bounds(config: SettingsSource, settings: _Members) -> None:
    """Checks bounds of columns: they are each party's own, but one file serves for all parties."""
    total = sum(settings.federation.columns.values())
    for key in ("centre", "bound"):
        given = getattr(settings.bounds, key)
        if isinstance(given, list) and (settings.party is not None or len(given) != total):
            raise ConfigurationError(
                f"{config}: bounds.{key} is a list, and other parties' bounds are not known from it: for a "
                f"simulation give one number, or in a file without [party] one for each of all {total} "
                "columns, in the order of federation.parties"
            )


def _check_columns(settings: DPFrankWolfeSettings, found: dict[str, int]) -> None:
    wrong = [
        f"{name} {count}, not {found[name]}"
        for name, count in settings.federation.columns.items()
        if count != found[name]
    ]
    if wrong:
        raise ConfigurationError(
            f"federation.columns has other numbers than --split deals: {', '.join(wrong)}"
        )
