"""Detects a silent server: updates were sent or labels wait, and no new version of the model comes.

After a tenth of the patience clients take steps of their own on a copy of the model
(:mod:`streamfl.pofmkl.learning.own_steps`). Before the first version they do so at once. After the whole
patience, clients no longer wait. A new version ends both. A version that was known when the silence began is
not new, however often it is read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from streamfl.contract.role import Measurement, OperatorNotice, StateChange
from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.pofmkl.learning.section import LearningSection
from streamfl.pofmkl.metrics import UplinkMetrics
from streamfl.pofmkl.state import SILENCE
from streamfl.state.clock_guard import earliest

__all__ = ["ALONE", "ServerSilence"]

# The share of the patience after which clients take steps of their own.
UNANSWERED = 0.1
ALONE = (
    "no new version of the model has come for learning.catch_up_patience_seconds = {:g}: clients learn alone "
    "until one comes, and no backlog waits for one. Start the pofmkl-server, or check what its log says "
    "about this client's updates"
)


class _Silence(msgspec.Struct, array_like=True):
    """The silence of a partition.

    versions: of the model's shards at the first request without an answer; None: all are answered.
    since: when that request was made.
    unanswered: a tenth of the patience is spent.
    alone: all of it.
    """

    versions: tuple[Count, ...] | None = None
    since: Time = 0.0
    unanswered: bool = False
    alone: bool = False


class ServerSilence:
    """Tracks for each partition since when the server owes an answer. patience: seconds; infinite: clients
    never learn alone."""

    def __init__(self, learning: LearningSection) -> None:
        self.patience = learning.catch_up_patience_seconds if learning.staleness == "async" else math.inf
        self._partitions: dict[int, _Silence] = {}
        self._changed: set[int] = set()
        self._versions: tuple[int, ...] = ()
        # Times that the patience was spent since this was created, and whether the last of them is logged.
        self._spent, self._told_spent = 0, True

    def open(self, partition: int) -> None:
        self._partitions[partition] = _Silence()

    def close(self, partition: int) -> None:
        del self._partitions[partition]
        self._changed.discard(partition)

    def is_alone(self, partition: int) -> bool:
        """Whether the partition's clients learn without waiting for the model."""
        return self._partitions[partition].alone

    def is_unanswered(self, partition: int) -> bool:
        """Whether the partition's clients take steps of their own."""
        return self.patience < math.inf and (
            self._partitions[partition].unanswered or not any(self._versions)
        )

    def hear(self, versions: tuple[int, ...]) -> list[int]:
        """Take the model's current versions. Returns the partitions whose clients took own steps on other
        versions."""
        if versions != self._versions:
            self._versions = versions
        before_any = (0,) * len(versions)
        answered = []
        for number, silence in self._partitions.items():
            if (before_any if silence.versions is None else silence.versions) != versions:
                answered.append(number)
                if silence.versions is not None:
                    self._partitions[number] = _Silence()
                    self._changed.add(number)
        return answered

    def ask(self, partition: int, now: float) -> None:
        """Note a request: an update was sent that a new version will hold, or a label waits for one."""
        silence = self._partitions[partition]
        if silence.versions is None and self.patience < math.inf:
            silence.versions, silence.since = self._versions, now
            self._changed.add(partition)

    def look(self, now: float) -> bool:
        """Let time pass. Returns whether a partition became unanswered or alone by that."""
        alone = self.alone
        due = [
            number
            for number, silence in self._partitions.items()
            if (at := self._due_at(silence)) is not None and at <= now
        ]
        for number in due:
            silence = self._partitions[number]
            silence.unanswered, silence.alone = True, now >= silence.since + self.patience
        if self.alone and not alone:
            # Counted once, not again for each partition that follows.
            self._spent, self._told_spent = self._spent + 1, False
        self._changed.update(due)
        return bool(due)

    def _due_at(self, silence: _Silence) -> float | None:
        """When the next part of the patience is spent."""
        if silence.versions is None or silence.alone or self.patience == math.inf:
            return None
        return silence.since + self.patience * (1.0 if silence.unanswered else UNANSWERED)

    @property
    def wake_at(self) -> float | None:
        return earliest(*map(self._due_at, self._partitions.values()))

    @property
    def alone(self) -> bool:
        """Whether clients of any partition learn alone."""
        return any(silence.alone for silence in self._partitions.values())

    @property
    def alone_since(self) -> float | None:
        """When the first unanswered request of the partitions that learn alone was made; None: no partition
        is alone."""
        return min((silence.since for silence in self._partitions.values() if silence.alone), default=None)

    def set_back(self, now: float) -> None:
        """Set times after ``now`` back to ``now``: the clock was ahead."""
        for number, silence in self._partitions.items():
            if silence.since > now:
                silence.since = now
                self._changed.add(number)

    def changed_state(self) -> Iterable[StateChange]:
        for number in sorted(self._changed):
            yield StateChange(
                "state", number, SILENCE.prefix, msgspec.msgpack.encode(self._partitions[number])
            )
        self._changed = set()

    def restore(self, partition: int, _: bytes, value: bytes) -> None:
        """Restore the silence of a partition."""
        self._partitions[partition] = msgspec.msgpack.decode(value, type=_Silence)

    def notices(self) -> Iterable[OperatorNotice]:
        told, self._told_spent = self._told_spent, True
        return [] if told else [OperatorNotice("alone", ALONE.format(self.patience))]

    def measure(self) -> Iterable[Measurement]:
        yield UplinkMetrics.alone(float(self.alone))
        yield UplinkMetrics.patience_spent(self._spent)
