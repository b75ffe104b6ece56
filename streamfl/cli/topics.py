"""``streamfl topics``: shows and creates the topics of a role, and shows the rights that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Annotated

import typer

from streamfl.cli.access import rights
from streamfl.cli.preflight import Configured, TopicFinding, inspect_topics, policy, read_configuration
from streamfl.cli.rekey import rekeyings
from streamfl.configuration.urls import scheme_of
from streamfl.runtime.bus import Bus
from streamfl.runtime.rights import Right
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    print_json,
    print_table,
    print_text,
    say,
)
from streamfl.terminal.exit_codes import ExitCode

__all__ = ["topics"]

KAFKA = "kafka"
PARTITIONS = 4


def topics(
    config: ConfigArgument,
    create: Annotated[
        bool, typer.Option("--create", help="Create streamfl's own topics that do not exist.")
    ] = False,
    create_inputs: Annotated[
        bool,
        typer.Option(
            "--create-inputs",
            help="The same, and your own topics of samples and labels if they do not exist.",
        ),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of a topic to be created that may have any number, the samples' included; left out: as "
            f"many as your own topic has, or else as streamfl's that go with it have, {PARTITIONS} if there "
            "are none.",
        ),
    ] = None,
    principal: Annotated[
        str | None,
        typer.Option(
            help="Who is to get the rights, such as User:plant; left out: User:<the consumer group>."
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Show the role's topics as they are and as they have to be; exit code 4 if one cannot be used as it is.

    On Kafka, or with --principal, the rights follow that the role needs on a cluster with ACLs, each line as
    arguments of kafka-acls.sh --add. Last comes what readers of a topic learn beyond what its name says.
    """
    configured = read_configuration(config)
    # Rekeyings come first, because streamfl creates a topic that it writes anew from another.
    all_of_it = [*rekeyings(configured), configured]
    needed = [right for one in all_of_it for right in rights(one, principal)]
    # A bus in a file or in memory has no ACLs; a user who names a principal asks about another cluster.
    print_rights = principal is not None or scheme_of(configured.settings.bus.url).startswith(KAFKA)
    with closing(configured.connect()) as bus:
        partitions = partitions or _as_the_users(all_of_it, bus)
        findings = _inspect(all_of_it, bus, partitions)
        missing = [found for found in findings if found.missing]
        made = missing if create_inputs else _without_inputs(configured, missing) if create else []
        if made:
            bus.create([replace(found.spec, partitions=found.partitions) for found in made])
            for found in made:
                say(f"created {found.spec.name}")
            findings = _inspect(all_of_it, bus, partitions)
    wrong = [found for found in findings if found.problem]
    cautions = {found.spec.name: found.spec.caution for found in findings if found.spec.caution}
    if format is OutputFormat.JSON:
        created = [found.spec.name for found in made]
        shown = [_as_object(found) for found in findings]
        print_json(
            {"ok": not wrong, "created": created, "topics": shown, **_acls(needed), "cautions": cautions}
        )
    else:
        print_table(
            "Topics", ("topic", "partitions", "cleanup", "state", "what to do"), map(_as_row, findings)
        )
        if print_rights:
            head = "\nACLs, each after kafka-acls.sh --bootstrap-server … --add"
            print_text("\n".join([head, *(right.arguments for right in needed)]))
        for name, caution in cautions.items():
            print_text(f"\nWho reads {name}: {caution}")
    if wrong:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _inspect(all_of_it: Sequence[Configured], bus: Bus, partitions: int) -> list[TopicFinding]:
    """The topics of a role, and of the rekeyings that write its topics anew, each once."""
    found: dict[str, TopicFinding] = {}
    for configured in all_of_it:
        for finding in inspect_topics(configured, bus, partitions):
            found.setdefault(finding.spec.name, finding)
    return [*found.values()]


def _as_the_users(all_of_it: Sequence[Configured], bus: Bus) -> int:
    """The number of partitions of the user's own topic, so that a message with a record's key is in the
    record's partition. Where it is gone, that of the topics that were made for it: state cannot be spread
    anew."""
    users = [spec.name for one in all_of_it for spec in one.kind.topics(one.settings) if spec.users]
    made_for_it = [
        name
        for one in all_of_it
        for name, like in one.kind.partitioned_like(one.settings).items()
        if like in users and name not in users
    ]
    asked = [*users, *made_for_it]
    states = bus.describe(asked)
    return next(
        (states[name].partitions for name in asked if name in states and states[name].error is None),
        PARTITIONS,
    )


def _without_inputs(configured: Configured, missing: Sequence[TopicFinding]) -> list[TopicFinding]:
    """The missing topics without the user's own, whose names may be mistyped, and those that need as many
    partitions as these."""
    inputs = {found.spec.name for found in missing if found.spec.users}
    like = configured.kind.partitioned_like(configured.settings)
    for name in sorted(inputs):
        waiting = [found.spec.name for found in missing if like.get(found.spec.name) == name]
        also = f", nor {', '.join(waiting)}, which need as many partitions" if waiting else ""
        say(
            f"did not create {name}, which is yours{also}: see that its name is right, or say --create-inputs"
        )
    return [found for found in missing if not {found.spec.name, like.get(found.spec.name)} & inputs]


def _acls(needed: Sequence[Right]) -> dict[str, object]:
    return {"acls": [{**asdict(right), "arguments": right.arguments} for right in needed]}


def _as_object(found: TopicFinding) -> dict[str, object]:
    return {
        "name": found.spec.name,
        "partitions": found.state.partitions if found.state else None,
        "partitions_needed": found.partitions,
        "cleanup": found.cleanup,
        "cleanup_needed": policy(found.spec.compacted),
        "problem": found.problem,
        "remedy": found.remedy,
    }


def _as_row(found: TopicFinding) -> tuple[str, ...]:
    number = found.state.partitions if found.state else found.partitions
    return (
        found.spec.name,
        "any" if number is None else str(number),
        policy(found.spec.compacted) if found.missing else found.cleanup or "",
        found.problem or "ok",
        found.remedy,
    )
