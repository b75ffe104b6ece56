"""``streamfl check``: would it run? Looks at everything, writes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import typer

from streamfl.cli.output import (
    BUS_UNAVAILABLE,
    CHECK_FAILED,
    CONFIGURATION,
    FormatOption,
    OutputFormat,
    print_json,
    print_table,
)
from streamfl.cli.preflight import ConfigArgument, Configured, counted, inspect_topics, read_configuration
from streamfl.identity import Member, load_identity
from streamfl.role import Channels, ConfigurationError, PeerError, Received, Rejection, Role, Send
from streamfl.runtime.bus import Bus, BusUnavailable
from streamfl.runtime.kinds import build_channels

__all__ = ["check"]

SAMPLE_RECORDS = 10
LONGEST_EXAMPLE = 200


@dataclass(frozen=True)
class _Finding:
    check: str
    passed: bool
    detail: str
    remedy: str = ""


def check(config: ConfigArgument, format: FormatOption = OutputFormat.TABLE) -> None:
    """Look at settings, cluster, topics and a few records, and say what to do. Exit code 0, 2 (settings), 3 (cluster) or 4."""
    findings: list[_Finding] = []
    code = _look(config, findings)
    if format is OutputFormat.JSON:
        print_json({"ok": code == 0, "checks": [asdict(found) for found in findings]})
    else:
        rows = [(found.check, "pass" if found.passed else "FAIL", found.detail, found.remedy) for found in findings]
        print_table(f"Check of {config}", ("check", "result", "found", "what to do"), rows)
    if code:
        raise typer.Exit(code)


def _look(config: ConfigArgument, findings: list[_Finding]) -> int:
    try:
        configured = read_configuration(config)
        role = configured.kind.build(configured.settings)
        channels = build_channels(configured.settings)
        identity = load_identity(configured.settings)
    except ConfigurationError as error:
        findings.append(_Finding("configuration", False, str(error), f"correct {config} or the environment"))
        return CONFIGURATION
    findings.append(_Finding("configuration", True, f"{configured.settings.role.kind} of {config}"))
    if identity is not None:
        findings.append(_Finding("identity", True, _who(identity.member)))
    url = configured.settings.bus.url
    try:
        with closing(configured.connect()) as bus:
            topics = _topics(configured, bus)
            findings.append(_Finding("bus", True, f"{url} answers"))
            findings += topics
            findings += _records(configured, bus, role, channels)
    except BusUnavailable as error:
        findings.append(_Finding("bus", False, str(error), "see that it runs and that bus.url and bus.options are right"))
        return BUS_UNAVAILABLE
    except ConfigurationError as error:
        findings.append(_Finding("bus", False, str(error), "correct [bus] or ask for the right"))
        return CONFIGURATION
    return 0 if all(found.passed for found in findings) else CHECK_FAILED


def _topics(configured: Configured, bus: Bus) -> list[_Finding]:
    findings = []
    for found in inspect_topics(configured, bus):
        state = found.state
        detail = found.problem or (counted(state.partitions, "partition") if state else "")
        findings.append(_Finding(f"topic {found.spec.name}", found.problem is None, detail, found.remedy))
    return findings


def _who(member: Member) -> str:
    own = f", and speaks for {', '.join(member.speaks_for)}" if member.speaks_for else ""
    return f"{member.name} may be {', '.join(member.roles)}{own}"


def _records(configured: Configured, bus: Bus, role: Role, channels: Channels) -> list[_Finding]:
    """A few records of every input, decoded, and what a role without any state would make of them."""
    findings: list[_Finding] = []
    batch: list[Received] = []
    existing = bus.describe([source.topic for source in channels.inputs.values()])
    for channel, source in channels.inputs.items():
        if source.topic not in existing or existing[source.topic].error is not None:
            continue
        wrong: list[str] = []
        records = list(bus.read(source.topic, SAMPLE_RECORDS))
        for record in records:
            try:
                batch.append(Received(channel, source.decode(record), record))
            except PeerError as error:
                wrong.append(f"{record.topic}-{record.partition}-{record.offset} {error}")
        readable = f"{len(records) - len(wrong)} of {counted(len(records), 'record')} readable" if records else "no records yet"
        detail = "; ".join([readable, *wrong])
        remedy = f"such records go to {configured.settings.dead_letters}: correct them or the settings"
        findings.append(_Finding(f"records of {source.topic}", not wrong, detail, remedy if wrong else ""))
    if batch:
        findings += _would_produce(role, channels, batch)
    return findings


def _would_produce(role: Role, channels: Channels, batch: Sequence[Received]) -> list[_Finding]:
    for partition in sorted({received.partition for received in batch}):
        role.open(partition)
    sent: dict[str, list[Send]] = {topic: [] for topic in channels.outputs.values()}
    findings: list[_Finding] = []
    for reply in role.receive(batch, max(received.record.timestamp for received in batch)):
        if isinstance(reply, Rejection):
            findings.append(_Finding("processing", False, str(reply.error), "see the sender of this record"))
        else:
            sent[channels.outputs[reply.channel]].append(reply)
    for topic, sends in sent.items():
        detail = f"{counted(len(sends), 'record')} from these"
        if sends:
            detail += f", the first: {_example(sends[0].value)}"
        findings.append(_Finding(f"would write to {topic}", True, detail))
    return findings


def _example(value: bytes) -> str:
    if len(value) <= LONGEST_EXAMPLE:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return f"{len(value)} bytes"
