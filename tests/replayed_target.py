"""Members that are at any place of a recorded conversation when a wrong message comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, cast

import msgspec

from streamfl.roles.fragment_encoding import MARK
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.testing.fuzz.federations import FuzzedFederation
from streamfl.testing.fuzz.member import PARTITIONS
from streamfl.testing.fuzz.mutations import FuzzedRecord
from streamfl.testing.fuzz.targets import RoleTarget, fingerprint

__all__ = ["ReplayedTarget"]

# One message in this many puts the member at another place.
ANEW = 100
# Share of messages that are the next at that place, with a wrong content.
NEXT = 0.4
USERS = ("samples", "labels")


class ReplayedTarget(RoleTarget):
    """A partitioned role, whose recorded conversation is on its first partition. Its messages have a field
    ``content``."""

    codec: Any

    def __init__(self, name: str, random: Random, federation: FuzzedFederation, member: str) -> None:
        self.at = 0
        super().__init__(name, random, federation, member)

    def chosen(self, heard: list[FuzzedRecord]) -> list[FuzzedRecord]:
        self._places = [place for place, one in enumerate(heard) if one.channel not in USERS]
        return heard

    def begin(self) -> None:
        self.replay(len(self.messages))

    @property
    def task(self) -> Any:
        """The partition of the conversation."""
        return cast(PartitionedRole[Any], self.role).task(0)

    def let_time_pass(self) -> None:
        """Let the member do what it does only when time passes."""
        self.tick()

    def awaits(self, channel: str) -> str:
        """What the member has to have done before a message on this channel comes, in any words; empty:
        nothing."""
        return "" if channel in USERS else "begun"

    def opened(self, message: Any, channel: str) -> bytes:
        """The content of a message as the member reads it."""
        content: bytes = message.content
        return content

    def sealed(self, message: Any, channel: str, content: bytes) -> bytes:
        """What a peer sends in place of the message's content if this is the content."""
        return content

    def take(self, message: FuzzedRecord) -> str | None:
        if self.random.randrange(ANEW) == 0:
            self.replay(self.random.choice(self._places))
        if self.at < len(self.messages) and self.random.random() < NEXT:
            message = self._next(message)
        return super().take(message)

    def replay(self, at: int) -> None:
        """Put the member in its state after the first ``at`` messages of the conversation."""
        for partition in PARTITIONS:
            self.member.begin_anew(partition)
        self.state = {}
        self.at = at
        done = {""}
        for message in self.messages[:at]:
            if (awaited := self.awaits(message.channel)) not in done:
                self.let_time_pass()
                done.add(awaited)
            reason = self.feed(message)
            assert reason is None, f"a good message on {message.channel} is refused: {reason}"
        self.let_time_pass()

    def _next(self, wrong: FuzzedRecord) -> FuzzedRecord:
        """The next message of the conversation, with damaged content, perhaps by part of another message."""
        message = self.messages[self.at]
        if message.channel in USERS or not message.value or message.value[:1] == MARK:
            return wrong
        whole = self.codec.decode(message.value)
        content = self._spoilt(self.opened(whole, message.channel), wrong.value or b"")
        spoilt = msgspec.structs.replace(whole, content=self.sealed(whole, message.channel, content))
        return replace(message, value=self.codec.encode(spoilt))

    def _spoilt(self, content: bytes, other: bytes) -> bytes:
        random = self.random
        place, size = random.randrange(len(content) + 1), random.choice([1, 4, 16, 64])
        ways: list[Callable[[], bytes]] = [
            lambda: content[:place],
            lambda: content[:place] + random.randbytes(size) + content[place + size :],
            lambda: content[:place] + random.choice([b"\0", b"\xff"]) * size + content[place + size :],
            lambda: content[:place] + other[:size] + content[place + size * random.randrange(2) :],
        ]
        return random.choice(ways)()

    def held(self) -> bytes:
        """A digest of all state but the clock, and but the counts, which also count refusals."""
        role = cast(Any, self.role)
        counts, tasks = vars(role.counts).copy(), list(role._tasks.values())
        moments = [getattr(task, "_now", None) for task in tasks]
        vars(role.counts).clear()
        for task in tasks:
            task._now = 0.0
        try:
            return fingerprint([*tasks, role._queue, role._awaited], self.passing)
        finally:
            vars(role.counts).update(counts)
            for task, moment in zip(tasks, moments, strict=True):
                task._now = moment

    def goes_on(self) -> None:
        """Check that the member still takes the whole conversation."""
        self.replay(len(self.messages))
        self._offset = 0
