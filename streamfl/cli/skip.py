"""``streamfl skip``: passes over a batch or a record at which the workers stop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamfl.cli.preflight import read_configuration
from streamfl.cli.rekey import inputs_of, rekeyings
from streamfl.cli.unreadable import opened
from streamfl.runtime.kinds import build_repair
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say

__all__ = ["skip"]


def skip(
    config: ConfigArgument,
    topic: Annotated[str, typer.Option(help="One of the topics that the role reads as a stream.")],
    partition: Annotated[int, typer.Option(min=0, help="Its partition.")],
    offset: Annotated[int, typer.Option(min=0, help="Where the workers stop, as their error says.")],
    to: Annotated[
        int | None,
        typer.Option(
            min=0, help="Where to read on; left out: behind the batch, or one further if that is not known."
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Move an unreadable batch, or one record, to the dead letters, and pass over it. Stop the role's workers
    first.

    The role reads on behind it. The batch goes to the dead letters unchanged, in the same transaction.
    """
    configured = read_configuration(config)
    with opened(configured) as bus:
        # A topic that streamfl rekey reads has a group of its own.
        own = next((one for one in rekeyings(configured) if topic in inputs_of(one)), None)
        settings, kind = (configured.settings, None) if own is None else (own.settings, own.kind)
        skipped = build_repair(settings, bus, kind).skip(topic, partition, offset, to)
    if format is OutputFormat.JSON:
        print_json({**asdict(skipped), "dead_letters": configured.settings.dead_letters})
    else:
        what = f"which cannot be read ({skipped.cause})" if skipped.cause else "a record"
        say(
            f"passed over {topic}-{partition}, offset {skipped.offset} to {skipped.following - 1}, {what}: "
            f"{skipped.kept} bytes of it went to {configured.settings.dead_letters}"
        )
