"""``streamfl check``: would it run? Looks at everything, writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict

import typer

from streamfl.cli.access import rights
from streamfl.cli.check_inputs import CannotBegin, look_at_inputs
from streamfl.cli.check_keys import look_at_keys
from streamfl.cli.check_state import (
    ChangelogContents,
    look_at_deleted,
    look_at_offsets,
    look_at_standing,
    look_at_state,
    look_at_tables,
)
from streamfl.cli.findings import Finding
from streamfl.cli.preflight import (
    Configured,
    TopicFinding,
    inspect_topics,
    namesake_problem,
    namesakes,
    read_configuration,
)
from streamfl.cli.rekey import rekeyings
from streamfl.cli.unreadable import remedy as remedy_of
from streamfl.contract.role import ConfigurationError
from streamfl.identity import Member, load_identity
from streamfl.runtime.bus import Bus, BusUnavailable, TopicState, Unreadable
from streamfl.runtime.kinds import build_channels
from streamfl.runtime.rights import Guarded
from streamfl.terminal.console import (
    ConfigArgument,
    FormatOption,
    OutputFormat,
    print_json,
    print_list,
    until_nobody_reads,
)
from streamfl.terminal.exit_codes import ExitCode
from streamfl.terminal.progress import progress
from streamfl.terminal.words import counted

__all__ = ["check"]

# Restoring takes seconds or minutes; Kafka's default is a day.
LEAST_TOMBSTONE_SECONDS = 3_600


def check(config: ConfigArgument, format: FormatOption = OutputFormat.TABLE) -> None:
    """Look at settings, cluster, topics and a few records, and say what to do. Exit code 0, 2 (settings), 3
    (cluster) or 4."""
    findings: list[Finding] = []
    code = _look(config, findings)
    with until_nobody_reads():
        if format is OutputFormat.JSON:
            print_json({"ok": code == 0, "checks": [asdict(found) for found in findings]})
        else:
            print_list(f"Check of {config}", as_list(findings))
    if code:
        raise typer.Exit(code)


def as_list(findings: Iterable[Finding]) -> Iterator[tuple[str, str]]:
    """The findings as a list, because four columns would not fit a terminal."""
    for found in findings:
        text = f"{found.check}: {found.detail}" if found.detail else found.check
        yield found.result, f"{text}\nTo do: {found.remedy}" if found.remedy else text


def _look(config: ConfigArgument, findings: list[Finding]) -> int:
    try:
        configured = read_configuration(config)
        role = configured.kind.build(configured.settings)
        channels = build_channels(configured.settings)
        identity = load_identity(configured.settings)
    except ConfigurationError as error:
        findings.append(Finding("configuration", False, str(error), f"correct {config} or the environment"))
        return ExitCode.CONFIGURATION
    findings.append(Finding("configuration", True, f"{configured.settings.role.kind} of {config}"))
    if identity is not None:
        findings.append(Finding("identity", True, _who(identity.member)))
    url = configured.settings.bus.url
    try:
        with progress(f"asking {url}"), closing(configured.connect()) as bus:
            topics = _topics(configured, bus)
            findings.append(Finding("bus", True, f"{url} answers"))
            if codecs := bus.codecs():
                findings.append(Finding("compressions", True, f"{', '.join(codecs)} were tried"))
            findings += topics
            findings += _rights(configured, bus)
            for own in rekeyings(configured):
                findings += _rekeyed(own, bus)
            if found := namesakes(configured, bus):
                findings.append(
                    Finding(
                        "federation.name", False, namesake_problem(configured, found), "give one another name"
                    )
                )
            if identity is None:
                findings += look_at_keys(configured, bus, channels)
            remembered = ChangelogContents()
            findings += look_at_state(configured, bus, channels, remembered)
            findings += look_at_offsets(configured, bus, channels, remembered)
            findings += look_at_deleted(bus, channels, remembered)
            findings += look_at_tables(bus, role, channels)
            findings += look_at_inputs(configured, bus, role, channels, remembered)
            findings += look_at_standing(configured, bus, channels, remembered)
    except KeyboardInterrupt:
        findings.append(Finding("interrupted", False, "", "run check again: the rest was not checked"))
        return ExitCode.INTERRUPTED
    except Unreadable as failure:
        findings.append(
            Finding(f"records of {failure.topic}", False, str(failure), remedy_of(configured, failure))
        )
        return ExitCode.CHECK_FAILED
    except BusUnavailable as error:
        findings.append(
            Finding("bus", False, str(error), "check that it runs and that bus.url and bus.options are right")
        )
        return ExitCode.BUS_UNAVAILABLE
    except CannotBegin as error:
        findings.append(
            Finding("start of the role", False, str(error), f"correct {config} or the environment")
        )
        return ExitCode.CONFIGURATION
    except ConfigurationError as error:
        findings.append(Finding("bus", False, str(error), "correct [bus] or ask for the right"))
        return ExitCode.CONFIGURATION
    return 0 if all(found.passed for found in findings) else ExitCode.CHECK_FAILED


def _topics(configured: Configured, bus: Bus) -> list[Finding]:
    findings = []
    for found in inspect_topics(configured, bus):
        state = found.state
        detail = found.problem or (counted(state.partitions, "partition") if state else "")
        findings.append(Finding(f"topic {found.spec.name}", found.problem is None, detail, found.remedy))
        if found.unused:
            findings.append(_further_partitions(found))
        if found.spec.compacted and state is not None:
            findings += _tombstones(state)
    return findings


def _further_partitions(found: TopicFinding) -> Finding:
    """Partitions that somebody added to a topic of the federation alone."""
    return Finding(
        f"further partitions of {found.spec.name}",
        True,
        f"{counted(found.partitions or 0, 'partition')} of it {'is' if found.partitions == 1 else 'are'} "
        "used. The others stay empty, and nothing is lost: members name the partition that they write to",
        "nothing: Kafka removes no partitions. If a topic of yours is to have more, see docs/changing.md",
        warns=True,
    )


def _tombstones(state: TopicState) -> Iterator[Finding]:
    """Whether compaction may delete a tombstone while a worker reads the topic from its beginning: if it read
    the key's value before, the key would be back."""
    kept = state.options.get("delete.retention.ms", "")
    if kept.isdigit() and int(kept) < 1000 * LEAST_TOMBSTONE_SECONDS:
        yield Finding(
            f"tombstones of {state.name}",
            True,
            f"delete.retention.ms={kept}: a worker that restores state from this topic for longer may take "
            "back what was deleted there, such as a sample that was predicted already",
            "set delete.retention.ms=86400000 on the topic",
            warns=True,
        )


def _rights(configured: Configured, bus: Bus) -> list[Finding]:
    """Whether the role has all rights that it needs, with arguments that grant the missing ones; nothing if
    the bus cannot tell."""
    if not isinstance(bus, Guarded):
        return []
    needed = [right for one in (*rekeyings(configured), configured) for right in rights(one, "User:NAME")]
    if not (lacking := bus.missing_rights(needed)):
        return [Finding("rights", True, f"none is missing of {counted(len(needed), 'resource')}")]
    return [
        Finding(
            f"rights on {right.resource} {right.name}",
            False,
            f"missing: {', '.join(right.operations)}",
            f"kafka-acls.sh --bootstrap-server … --add {right.arguments}",
        )
        for right in lacking
    ]


def _rekeyed(own: Configured, bus: Bus) -> list[Finding]:
    """The findings for `streamfl rekey`, on topics that the role itself does not read."""
    role = own.kind.build(own.settings)
    channels = own.kind.channels(own.settings)
    return [*_topics(own, bus), *look_at_inputs(own, bus, role, channels, ChangelogContents())]


def _who(member: Member) -> str:
    own = f", and speaks for {', '.join(member.speaks_for)}" if member.speaks_for else ""
    return f"{member.name} may be {', '.join(member.roles)}{own}"
