"""``streamfl repartition``: moves a role's state to where its clients' records come since partitions were
added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from streamfl.cli.preflight import read_configuration, wrong_topics
from streamfl.cli.rekey import StreamName, rekeying
from streamfl.cli.unreadable import opened
from streamfl.contract.role import ConfigurationError
from streamfl.runtime.kinds import build_repartition
from streamfl.runtime.repair import require_stopped
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.terminal.progress import progress
from streamfl.terminal.words import counted

__all__ = ["repartition"]


def repartition(
    config: ConfigArgument,
    stream: Annotated[
        StreamName | None,
        typer.Option("--stream", help="Not the role's state, but that of `streamfl rekey` for this section."),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Move the state to where clients' records come since partitions were added. Stop the role's workers
    first.

    First give every topic that the role reads, and the topic of its state, the same number of partitions;
    then wait until your producers have noticed (metadata.max.age.ms, five minutes). Unread records of the old
    partitions are predicted and learnt first, before any state moves. If the command is killed, run it again:
    no worker begins before it is done. docs/changing.md describes it step by step.
    """
    configured = read_configuration(config)
    own = None
    if stream is not None:
        configured = rekeying(configured, stream.value)
        own = configured.kind
    kind, settings = configured.kind, configured.settings
    if kind.channels(settings).dealt is None:
        raise ConfigurationError(
            f"what a {kind.name} remembers does not belong to single clients, and cannot be spread over "
            "other partitions (docs/changing.md says what can be done)"
        )
    with progress(f"asking {settings.bus.url}") as work, opened(configured) as bus:
        require_stopped(bus, configured.settings.group)
        # For a wrong number of partitions the remedy names this same command.
        if wrong := wrong_topics(configured, bus):
            raise ConfigurationError("\n".join(wrong))
        work.begin("reading the state")

        def tell(of: str, done: float, total: float) -> None:
            if work.of != of:
                work.begin(of)
            work(done, total)

        result = build_repartition(settings, bus, own).deal_anew(tell)
    if format is OutputFormat.JSON:
        print_json(asdict(result))
    elif result.before == result.now:
        say(f"nothing to do: the state is spread over {result.now} partitions, as many as there are")
    else:
        say(f"read {counted(result.drained, 'record')} that were in the {result.before} old partitions")
        for counts, became in (
            (result.dead_letters, f"became dead letters (see streamfl dead-letters {config})"),
            (result.passed_over, "were passed over"),
            (result.deleted_unread, "had been deleted unread"),
        ):
            if counts:
                each = ", ".join(f"{label} {count}" for label, count in sorted(counts.items()))
                say(f"of these, {sum(counts.values())} {became}: {each}")
        say(
            f"moved {result.moved} of {counted(result.clients, 'client')}: all are spread over {result.now} "
            "partitions now"
        )
        say("start the workers. They forward records that producers still write to old partitions")
