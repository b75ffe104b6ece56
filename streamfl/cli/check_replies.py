"""Part of ``streamfl check``: gives the records that were looked at to the role, and tells what it would send
and refuse."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from streamfl.cli.check_state import ChangelogContents
from streamfl.cli.findings import Finding
from streamfl.cli.preflight import Configured
from streamfl.contract.channels import Channels
from streamfl.contract.role import Received, Record, Rejection, Role, Send, receive_at_once
from streamfl.terminal.words import counted

__all__ = ["look_at_replies", "read_on"]

LONGEST_EXAMPLE = 200


def read_on(configured: Configured) -> str:
    """What is to be done about records that workers have refused, and read on behind them."""
    return f"nothing: workers have read on; what they refused is in {configured.settings.dead_letters}"


def look_at_replies(
    configured: Configured,
    role: Role,
    channels: Channels,
    batch: Sequence[Received],
    remembered: ChangelogContents,
) -> Iterator[Finding]:
    """Give these records to a role without state, and report what it would send and refuse."""

    def taken(record: Record) -> bool:
        """Whether the role has read the record before, perhaps under other settings."""
        return record.offset < remembered.positions.get((record.topic, record.partition), 0)

    users = {spec.name for spec in configured.kind.topics(configured.settings) if spec.users}
    sent: dict[str, list[Send]] = {topic: [] for topic in channels.outputs.values()}
    refused: dict[str, list[Rejection]] = {}
    for reply in _given(role, batch):
        if isinstance(reply, Send):
            sent[channels.outputs[reply.channel]].append(reply)
        elif reply.received.record.topic in users or (
            reply.error.reason == "configuration" and not taken(reply.received.record)
        ):
            # Other refusals of peers' messages depend on the state, which is not restored here.
            refused.setdefault(reply.error.reason, []).append(reply)
    wrong = [*_refusals(refused), *_notices(role)]
    stray = _stray(configured, batch, users) if wrong else None
    if stray is not None and taken(stray):
        lone = (
            f". Of {counted(len(batch), 'record')} that were looked at, only "
            f"{stray.topic}-{stray.partition}-{stray.offset} has another key than it should"
        )
        wrong = [
            replace(one, passed=True, detail=one.detail + lone, remedy=read_on(configured), warns=True)
            for one in wrong
        ]
    yield from wrong
    for topic, sends in sent.items():
        detail = f"{counted(len(sends), 'record')} from these"
        if sends:
            detail += f", the first: {_example(sends[0].value)}"
        yield Finding(f"would write to {topic}", True, detail)


def _given(role: Role, batch: Sequence[Received]) -> list[Send | Rejection]:
    """What a role without state replies to these records."""
    for partition in sorted({received.partition for received in batch}):
        role.open(partition)
    return list(receive_at_once(role, batch, max(received.record.timestamp for received in batch)))


def _refusals(refused: Mapping[str, Sequence[Rejection]]) -> Iterator[Finding]:
    for rejections in refused.values():
        record = rejections[0].received.record
        detail = (
            f"{counted(len(rejections), 'record')} refused, the first "
            f"{record.topic}-{record.partition}-{record.offset}: "
        )
        yield Finding("processing", False, detail + str(rejections[0].error), "see the sender of this record")


def _notices(role: Role) -> Iterator[Finding]:
    for notice in role.notices():
        # Others depend on the state too, which is not restored here.
        if notice.of_records:
            check = notice.reason.replace("_", " ")
            yield Finding(check, False, notice.text, "correct the topic or the settings")


def _stray(configured: Configured, batch: Sequence[Received], users: set[str]) -> Record | None:
    """The one record of the user's topics without which nothing is wrong; None if more than one is."""

    def wrong(rest: Sequence[Received]) -> bool:
        role = configured.kind.build(configured.settings)
        replies = _given(role, rest) if rest else []
        refused = [one for one in replies if isinstance(one, Rejection)]
        return any(one.received.record.topic in users for one in refused) or any(_notices(role))

    # A notice may also follow from a table.
    suspects = [range(len(batch))] if wrong(batch) else []
    while suspects:
        some = suspects.pop()
        if wrong([*batch[: some.start], *batch[some.stop :]]):
            continue
        if len(some) == 1:
            found = batch[some.start].record
            return found if found.topic in users else None
        middle = len(some) // 2
        suspects += [some[:middle], some[middle:]]
    return None


def _example(value: bytes) -> str:
    if len(value) <= LONGEST_EXAMPLE:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return f"{len(value)} bytes"
