"""A party whose changelogs were rolled back or cut off, and that receives other messages than before: it may
release nothing new.

Its ledger file has come further than its state. Its users' records come again with other values, and the
server asks other things in place of its earlier asks. Whatever the party sends then, it has sent before, or
sends in place of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from dp_frank_wolfe.proof.observed_messages import messages_of
from dp_frank_wolfe.proof.scenario import NAME, DPFrankWolfeScenario

from streamfl.contract.role import BadRecord, Received, Record, StateChange, receive_at_once
from streamfl.contract.seeding import rng_for
from streamfl.dp_frank_wolfe.messages import Ask, Message, OtherRows, content_of, read_content
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.runtime.kinds import find_kind
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.simulation.vertical.members import LABELS, samples_topic
from streamfl.testing.faults.cluster import FaultyBus

__all__ = ["RestoredFromBackup", "check_rolled_back", "other_asks", "state_until"]

# A virtual time after everything else.
LATER = 1e7
CUTS = 2


class RestoredFromBackup:
    """A party that is restored from the content of changelogs, by channel and key."""

    def __init__(self, settings: Any, state: Mapping[tuple[str, bytes], bytes]) -> None:
        kind = find_kind(settings.role.kind)
        role = kind.build(settings)
        assert isinstance(role, PartitionedRole)
        self.role = role
        self._inputs = {
            one.topic: (channel, one.decode) for channel, one in kind.channels(settings).inputs.items()
        }
        self._now = LATER
        role.open(0)
        for (channel, key), value in state.items():
            role.restore(StateChange(channel, 0, key, value))
        self.tick()

    def tick(self) -> None:
        """Lets a second pass."""
        self._now += 1.0
        receive_at_once(self.role, [], self._now)
        list(self.role.changed_state())

    def hear(self, topic: str, key: bytes | None, value: bytes) -> None:
        """Takes a record of one of the party's inputs, whether it is refused or not."""
        channel, decode = self._inputs[topic]
        record = Record(topic, 0, 0, key, value, (), self._now)
        try:
            received = Received(channel, decode(record), record)
        except BadRecord:
            return
        receive_at_once(self.role, [received], self._now)
        list(self.role.changed_state())


def check_rolled_back(bus: FaultyBus, chosen: DPFrankWolfeScenario) -> None:
    """Restores some parties from earlier moments. What they send and draw is noted, and checked with
    everything else."""
    draws = rng_for(chosen.seed, "simulation", "DP Frank-Wolfe rolled back")
    for _ in range(CUTS):
        party = chosen.parties[int(draws.integers(len(chosen.parties)))]
        settings = chosen.of(party)
        changelogs = find_kind(settings.role.kind).channels(settings).changelogs
        moments = sorted({record.timestamp for topic in changelogs.values() for record in bus.read(topic)})
        if not moments:
            # The party never wrote any state.
            continue
        cuts = {channel: float(draws.choice(moments)) for channel in changelogs}
        if draws.random() < 0.7:
            # All changelogs from one moment, as in a backup of a cluster. Otherwise one goes further than
            # another.
            cuts = dict.fromkeys(cuts, min(cuts.values()))
        try:
            restored = RestoredFromBackup(settings, state_until(bus, changelogs, cuts))
        except BadRecord:
            # The changelogs do not fit together.
            continue
        for topic, key, content in _users_records(chosen, party):
            restored.hear(topic, key, msgspec.msgpack.encode(content))
        restored.tick()
        asks = f"{NAME}.{party}.asks"
        for one in messages_of(bus, asks):
            for other in other_asks(one):
                restored.hear(asks, None, msgspec.msgpack.encode(other))
            restored.hear(asks, None, msgspec.msgpack.encode(one))
            restored.tick()


def state_until(
    bus: FaultyBus, changelogs: Mapping[str, str], cuts: Mapping[str, float]
) -> dict[tuple[str, bytes], bytes]:
    """By channel and key, what each changelog held at its moment in ``cuts``."""
    found: dict[tuple[str, bytes], bytes | None] = {}
    for channel, topic in changelogs.items():
        for record in bus.read(topic):
            key = record.key or b""
            if record.timestamp <= cuts[channel] and not key.startswith(POSITION_KEY):
                found.pop((channel, key), None)
                found[channel, key] = record.value
    return {place: value for place, value in found.items() if value is not None}


def other_asks(message: Message) -> Iterator[Message]:
    """What a dishonest server could ask instead."""
    if message.kind == "ask":
        ask: Ask = read_content(message.content, Ask)
        others = np.frombuffer(ask.others, "<f8")
        other = Ask(ask.columns, ask.weights, (others * 0.5 + 100.0).astype("<f8").tobytes())
        yield msgspec.structs.replace(message, content=content_of(other))
    elif message.kind == "rows":
        rows: OtherRows = read_content(message.content, OtherRows)
        yield msgspec.structs.replace(message, content=content_of(OtherRows(bytes(len(rows.rows)))))


def _users_records(chosen: DPFrankWolfeScenario, party: str) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """All records that the party's users write, with other values."""
    for (whose, name), contents in chosen.known.items():
        if whose == party:
            other = (
                [-0.5 * one for one in contents[0]]
                if isinstance(contents[0], list)
                else [0.25] * chosen.columns[party]
            )
            yield samples_topic(party), name.encode(), {"id": name, "x": other}
    for name, contents in chosen.labels.items():
        yield (
            LABELS,
            name.encode(),
            {"id": name, "y": -contents[0] if isinstance(contents[0], float) else 0.75},
        )
