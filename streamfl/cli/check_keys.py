"""Part of ``streamfl check``: whether the other members have keys while this one has none."""

from __future__ import annotations

from collections.abc import Iterator

from streamfl.cli.check_shape import spread
from streamfl.cli.findings import Finding
from streamfl.cli.preflight import Configured
from streamfl.contract.channels import Channels
from streamfl.contract.role import Record
from streamfl.identity import is_sealed
from streamfl.runtime.bus import Bus, Unreadable
from streamfl.terminal.printable import utc_time

__all__ = ["look_at_keys"]

# The last record of a partition is enough: what counts is how its writer writes now.
LOOKED_AT = 1


def look_at_keys(configured: Configured, bus: Bus, channels: Channels) -> Iterator[Finding]:
    """Of a member without keys that writes to others: whether any record between members that it may see is
    sealed or signed. Members with keys refuse all that it writes, and most of them never answer it.
    """
    if not channels.receivers:
        return
    others = configured.kind.channel_table(configured.settings).between_members - set(
        channels.outputs.values()
    )
    sealed = [record for record in _last_records(bus, sorted(others)) if is_sealed(record)]
    if not sealed:
        yield Finding("identity", True, "no keys: members that have keys refuse what this one writes")
        return
    last = max(sealed, key=lambda record: record.timestamp)
    yield Finding(
        "identity",
        False,
        f"no keys, but other members have them: {last.topic}-{last.partition}-{last.offset} of "
        f"{utc_time(last.timestamp)} is sealed or signed. Members that have keys refuse "
        "what this one writes",
        "give this member a key: streamfl members init, and [identity] and federation.members in its "
        "settings. If nobody has keys any more, this passes once they write without",
    )


def _last_records(bus: Bus, topics: list[str]) -> Iterator[Record]:
    """The last record of some partitions of each topic, as far as this member may read them."""
    for name, state in bus.describe(topics).items():
        if state.error is not None:
            continue
        try:
            records = bus.peek(name, spread(state.partitions), LOOKED_AT)
        except Unreadable:
            continue
        last = {one.partition: one for one in sorted(records, key=lambda record: record.offset)}
        yield from last.values()
