"""Tells a role that learns a backlog in step with its peers how long it is, and limits how much the role
takes at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from streamfl.contract.further_interfaces import BalancesInputs, CatchesUp, Waits
from streamfl.contract.role import Role
from streamfl.runtime.bus import Session, TopicPartition

__all__ = ["Backlog"]


class Backlog:
    """Between a worker and its role. max_records: the most input records in one commit, whatever the role
    would take."""

    def __init__(self, role: Role, max_records: int) -> None:
        self._any_role = role
        # Checked once, because isinstance with a protocol takes longer than the call.
        self._role = role if isinstance(role, CatchesUp) else None
        self._balancing = role if isinstance(role, BalancesInputs) else None
        self._waits = role if isinstance(role, Waits) else None
        self._max_records = max_records
        # What the cluster said of inputs from which nothing was fetched yet.
        self._asked: Mapping[TopicPartition, int] = {}

    @property
    def most_records(self) -> int:
        """The most input records in one commit."""
        wanted = None if self._role is None else self._role.most_records
        return self._max_records if wanted is None else min(self._max_records, wanted)

    @property
    def prompt(self) -> bool:
        """Whether the worker commits without waiting for the whole commit interval."""
        return self._any_role.prompt or (self._role is not None and self._role.urgent)

    @property
    def told(self) -> str | None:
        """A sentence on what the role waits for or works off; None: nothing."""
        return None if self._waits is None else self._waits.backlog

    @property
    def paused(self) -> Collection[tuple[str, int]]:
        """The inputs, by channel and partition, that wait until others were read further."""
        return () if self._balancing is None else self._balancing.paused

    def tell(self, session: Session, channels: Mapping[str, str], partitions: Iterable[int]) -> None:
        """Tell the role how many unread records follow the polled ones, by partition and input.

        channels: of the inputs, by topic.
        partitions: of all tasks. A client library knows the end of an input only after it fetched from it:
        before that the cluster is asked. If a partition were told without an input, the records of this would
        look later as if they had come just then.
        """
        if self._role is None:
            return
        places = {
            number: {channel: (topic, number) for topic, channel in channels.items()} for number in partitions
        }
        known = session.unread()
        missing = [place for inputs in places.values() for place in inputs.values() if place not in known]
        if not self._asked.keys() >= set(missing):
            self._asked = session.lag()
        # Nothing was read there since.
        self._asked = {place: self._asked[place] for place in missing if place in self._asked}
        known = {**self._asked, **known}
        self._role.unread(
            {
                number: {channel: known[place] for channel, place in inputs.items()}
                for number, inputs in places.items()
                if all(place in known for place in inputs.values())
            }
        )
