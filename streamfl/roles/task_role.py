"""A role that has one task for each partition: how it opens, restores and remembers them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from streamfl.contract.refusals import NOTICES, Reason
from streamfl.contract.role import BadRecord, ConfigurationError, OperatorNotice, StateChange
from streamfl.encoding.changelog_checks import UNDECODABLE
from streamfl.roles.notices import Notices
from streamfl.roles.reply_deadline import ReplyDeadline
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import ClockGuard

__all__ = ["AwaitingRole", "PartsTask", "RememberedTask", "TaskRole"]


class RememberedTask(Protocol):
    """What a partition remembers."""

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Keys and values of what changed since the last call; None forgets the key."""

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore one changelog key. BadRecord or ValueError for state that the task cannot have written."""


class PartsTask:
    """A task whose owners of state share ``parts``."""

    parts: ChangedParts

    def changed_state(self) -> Iterable[tuple[bytes, bytes | None]]:
        return self.parts.changed_state()

    def restore(self, key: bytes, value: bytes) -> None:
        self.parts.restore(key, value)


Task = TypeVar("Task", bound=RememberedTask)


class TaskRole(Generic[Task]):
    """The part of a role that does not depend on its messages. A subclass has ``receive``, ``wake_at`` and
    ``measure``.

    make: builds the task of a partition, without state.
    whose: the member's state in the text of a refusal.
    declared: the role's notices with their meanings.
    """

    prompt = False

    def __init__(
        self, make: Callable[[int], Task], whose: str, declared: Mapping[str, Reason] = NOTICES
    ) -> None:
        self._make = make
        self._whose = whose
        self._tasks: dict[int, Task] = {}
        self._clock_guard = ClockGuard()
        self._notices = Notices(declared)

    @property
    def full(self) -> Collection[int]:
        return ()

    @property
    def waiting(self) -> Mapping[str, int]:
        return {}

    @property
    def trouble(self) -> str | None:
        return None

    def open(self, partition: int) -> None:
        self._clock_guard.opened()
        self._tasks[partition] = self._make(partition)

    def close(self, partition: int) -> None:
        del self._tasks[partition]

    def restore(self, change: StateChange) -> None:
        if change.value is None:
            return
        try:
            self._tasks[change.partition].restore(change.key, change.value)
        except UNDECODABLE as error:
            raise BadRecord("malformed", f"{self._whose}: {error}") from None

    def changed_state(self) -> Iterable[StateChange]:
        for partition, task in self._tasks.items():
            for key, value in task.changed_state():
                yield StateChange("state", partition, key, value)

    def notices(self) -> Iterable[OperatorNotice]:
        return self._notices.collect()

    def forget(self, name: str) -> bool:
        raise ConfigurationError(
            f"{name!r} cannot be forgotten: this role forgets no single client or entity: peers rely "
            "on what it remembers of one, or a privacy promise does (docs/changing.md). Leave its records "
            "out from now on"
        )


class AwaitingRole(TaskRole[Task]):
    """A role with one deadline for the answers that all its tasks wait for. patience: seconds."""

    def __init__(
        self,
        make: Callable[[int], Task],
        whose: str,
        patience: float,
        declared: Mapping[str, Reason] = NOTICES,
    ) -> None:
        super().__init__(make, whose, declared)
        self._reply_deadline = ReplyDeadline(patience)

    def close(self, partition: int) -> None:
        super().close(partition)
        if not self._tasks:
            self._reply_deadline.answered()
