"""``streamfl dead-letters``: the records that were refused, and their replay once the cause is gone."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from streamfl.cli.dead_letters.letters import check_reasons
from streamfl.cli.dead_letters.replay import Replay, report
from streamfl.cli.dead_letters.show import SHOWN, show
from streamfl.cli.preflight import read_configuration
from streamfl.contract.role import ConfigurationError
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat

__all__ = ["dead_letters"]


def dead_letters(
    config: ConfigArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is refused from now on, until Ctrl-C.")
    ] = False,
    reason: Annotated[
        list[str] | None,
        typer.Option(help="Only letters of this reason; give it again for one more. Left out: all."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help=f"Show at most the newest N (left out: {SHOWN}); with --replay: at most N, a partition's "
            "oldest first.",
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            help="Write the letters back to the topic and partition that they came from, each once.",
        ),
    ] = False,
) -> None:
    """Show the records that were refused, or write them back once the cause is corrected. JSON: one object a
    letter."""
    if replay and follow:
        raise ConfigurationError(
            "--follow and --replay cannot be used together: a replay ends at the letters that are there"
        )
    configured = read_configuration(config)
    reasons = frozenset(reason or ())
    with closing(configured.connect()) as bus:
        # With --follow, letters of a reason that is not there yet may still come.
        if reasons and not follow:
            check_reasons(bus, configured.settings.dead_letters, reasons)
        if replay:
            report(Replay(configured, bus, reasons, limit).run(), format)
        else:
            show(configured, bus, reasons, limit or SHOWN, follow, format)
