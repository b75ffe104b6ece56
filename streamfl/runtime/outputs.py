"""A worker's outputs: how a role's messages become records."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from streamfl.contract.channels import Channels
from streamfl.contract.role import Send
from streamfl.runtime.bus import Outgoing

__all__ = ["Outputs"]

CHANNEL = attrgetter("channel")


class Outputs:
    """The outputs of a role. What follows from the output alone is looked up once for the messages in a row
    that go to it."""

    def __init__(self, channels: Channels) -> None:
        # By output: its topic, the seal of its records, and what finds their time.
        seals, times = channels.seals, channels.times
        self._routes = {
            name: (topic, seals.get(name), times.get(name)) for name, topic in channels.outputs.items()
        }

    def records(self, sends: Iterable[Send]) -> list[Outgoing]:
        """The records of these messages, in order."""
        records: list[Outgoing] = []
        for channel, group in groupby(sends, CHANNEL):
            topic, seal, time_of = self._routes[channel]
            if seal is None and time_of is None:
                records += [
                    Outgoing(topic, send.key, send.value, send.partition, send.headers) for send in group
                ]
                continue
            for send in group:
                headers = send.headers
                at = None if time_of is None else time_of(headers)
                if seal is not None:
                    headers += seal(send.key, send.value, send.partition)
                records.append(Outgoing(topic, send.key, send.value, send.partition, headers, at))
        return records
