"""``streamfl reset``: a role, or one of its clients, begins anew. State and positions change together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from streamfl.cli.named_topics import users_channels
from streamfl.cli.preflight import Configured, read_configuration
from streamfl.cli.rekey import StreamName, rekeying
from streamfl.cli.unreadable import opened
from streamfl.contract.role import ConfigurationError
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Bus
from streamfl.runtime.kinds import build_repair, build_reset
from streamfl.runtime.repair import require_stopped
from streamfl.terminal.console import ConfigArgument, FormatOption, OutputFormat, print_json, say
from streamfl.terminal.progress import progress
from streamfl.terminal.words import counted

__all__ = ["reset"]

PLACES = {"earliest": -math.inf, "latest": math.inf}


def reset(
    config: ConfigArgument,
    client: Annotated[
        str | None, typer.Option(help="Only this client, as its samples carry its name.")
    ] = None,
    all_of_it: Annotated[bool, typer.Option("--all", help="All that the role remembers.")] = False,
    to: Annotated[
        str | None,
        typer.Option(
            help="Where to read again: earliest, latest, or a time such as 2026-11-20T08:00Z or seconds "
            "since 1970."
        ),
    ] = None,
    stream: Annotated[
        StreamName | None,
        typer.Option("--stream", help="With --all: not the role, but `streamfl rekey` for this section."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    format: FormatOption = OutputFormat.TABLE,
) -> None:
    """Begin anew: forget what was learnt, and read your topics again, in one step. Stop the role's workers
    first.

    --all: your topics are read again from --to on; without --to from their beginning. Older messages of peers
    are not read again, unless the role reads nothing else and --to is given. Records that are read again are
    predicted again.
    --client: it is forgotten. With --to its samples from there on are learnt again at once; other clients
    stay as they are.

    --stream: the role stays as it is, and `streamfl rekey` writes the section's topic from --to on again,
    behind its present end."""
    if all_of_it == (client is not None) or (stream is not None and client is not None):
        raise ConfigurationError("say --client NAME, or --all, the latter also with --stream")
    at = None if to is None else _time(to)
    configured = read_configuration(config)
    if stream is not None:
        configured = rekeying(configured, stream.value)
    kind = configured.kind
    if not kind.may_begin_anew(configured.settings):
        raise ConfigurationError(
            f"a {kind.name} of these settings cannot be reset: its state depends on messages that it sent to "
            "others, or on a privacy promise (docs/changing.md says which can). To start over, use another "
            "federation.name at every member"
        )
    url = configured.settings.bus.url
    with progress(f"asking {url}") as work, opened(configured) as bus:
        require_stopped(bus, configured.settings.group)
        own = None if stream is None else kind
        work.begin("forgetting and reading again")
        result = (
            _client(configured, bus, client, at, dry_run)
            if client
            else _all(configured, bus, at, dry_run, own)
        )
    if format is OutputFormat.JSON:
        print_json({"dry_run": dry_run, **result})
    else:
        _tell(configured, result, dry_run)


def _all(
    configured: Configured, bus: Bus, at: float | None, dry_run: bool, kind: RoleKind[Any] | None
) -> dict[str, object]:
    """Forget everything; returns what was done. kind: None takes the kind of the settings' role."""
    users = set(users_channels(configured).values())
    offsets = {
        source.topic: bus.offsets(source.topic, _begin(source.topic in users, bool(users), at))
        for source in configured.kind.channels(configured.settings).inputs.values()
    }
    forgotten = None if dry_run else build_reset(configured.settings, bus, kind).begin_anew(offsets)
    return {"forgotten": forgotten, "offsets": _by_text(offsets)}


def _client(
    configured: Configured, bus: Bus, client: str, at: float | None, dry_run: bool
) -> dict[str, object]:
    """Forget a client, and learn it again if a time is given; returns what was done."""
    offsets = (
        {} if at is None else {topic: bus.offsets(topic, at) for topic in users_channels(configured).values()}
    )
    if at is not None and not offsets:
        raise ConfigurationError(
            f"--to: a {configured.kind.name} has no topics of yours that a client could be learnt from again"
        )
    result: dict[str, object] = {"client": client, "offsets": _by_text(offsets)}
    if dry_run:
        return result
    if at is None:
        partitions, taken = build_repair(configured.settings, bus).forget(client), 0
    else:
        partitions, taken = build_reset(configured.settings, bus).learn_again(client, offsets)
    if not partitions and not taken:
        raise ConfigurationError(
            f"--client {client!r}: no partition of this {configured.kind.name} remembers it"
        )
    return result | {"partitions": partitions, "learnt_again": taken}


def _begin(of_user: bool, any_of_user: bool, at: float | None) -> float:
    if of_user:
        return -math.inf if at is None else at
    # Older messages of peers were for the role's earlier life, so it reads only new ones.
    return math.inf if at is None or any_of_user else at


def _by_text(offsets: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): offset for partition, offset in found.items()}
        for topic, found in offsets.items()
    }


def _tell(configured: Configured, result: Mapping[str, object], dry_run: bool) -> None:
    kind, would = configured.kind.name, "would " if dry_run else ""
    offsets = result["offsets"]
    assert isinstance(offsets, dict)
    if "client" in result:
        say(
            f"{would}forget client {result['client']!r}" if dry_run else f"forgot client {result['client']!r}"
        )
        if not dry_run and offsets:
            say(
                f"learnt {counted(int(str(result['learnt_again'])), 'record')} of it again; other clients "
                "are as they were"
            )
    elif dry_run:
        say(f"would forget all that this {kind} remembers")
    else:
        say(f"forgot all that this {kind} remembered: {counted(int(str(result['forgotten'])), 'record')}")
    for topic, found in offsets.items():
        places = (
            f"{offset} in partition {partition}"
            for partition, offset in sorted(found.items(), key=lambda one: int(one[0]))
        )
        say(f"{would}read {topic} on from offset {', '.join(places)}")


def _time(text: str) -> float:
    """The time in seconds since 1970, or an infinity for earliest and latest. ConfigurationError if it is
    none of these.

    A time without a zone is in UTC.
    """
    if text in PLACES:
        return PLACES[text]
    try:
        seconds = float(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigurationError(
                f"--to {text!r}: earliest, latest, a time such as 2026-11-20T08:00Z, or seconds since 1970 "
                "are expected"
            ) from None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= seconds < 1e11:
        raise ConfigurationError(f"--to {text!r}: these are no seconds since 1970")
    return seconds
