"""``streamfl forget``: removes a client from a role's state."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfl.cli.preflight import read_configuration
from streamfl.cli.unreadable import opened
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.kinds import build_repair
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.terminal.words import counted

__all__ = ["forget"]


def forget(
    config: ConfigArgument,
    client: Annotated[str, typer.Option(help="The client's name, as its samples or updates carry it.")],
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Remove a client from the role's state, as if it had never been there. Stop the role's workers first.

    Its place among federation.clients is free again. If its messages still come, it is a new client. Exit
    code 2: no partition remembers it.
    """
    configured = read_configuration(config)
    with opened(configured) as bus:
        partitions = build_repair(configured.settings, bus).forget(client)
    kind = configured.settings.role.kind
    if not partitions:
        raise ConfigurationError(f"--client {client!r}: no partition of this {kind} remembers it")
    if format is OutputFormat.JSON:
        print_json({"client": client, "partitions": partitions})
    else:
        say(
            f"forgot client {client!r}, which {counted(len(partitions), 'partition')} of this {kind} "
            f"remembered: {partitions}"
        )
