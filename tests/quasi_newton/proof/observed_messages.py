"""Records what the members of a simulated federation sent and decrypted, committed or not, and reads their
topics."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from quasi_newton.proof.made_up_secrets import made_up_files

from streamfl.contract.role import Headers
from streamfl.quasi_newton import messages
from streamfl.quasi_newton.members.coordinator import CoordinatorTask
from streamfl.quasi_newton.messages import Message
from streamfl.roles.fragment_encoding import MARK, Fragment
from streamfl.roles.partitioned_role import Outbox, OutboxCounts
from streamfl.testing.faults.observed_messages import TopicReader

__all__ = ["Observed", "messages_of", "recorded", "whole_messages"]

# A message's identity: sender, channel, run, round and kind.
Named = tuple[str, str, int, int, str]
_decode = msgspec.msgpack.Decoder(Message).decode
_part = msgspec.msgpack.Decoder(Fragment).decode


@dataclass
class Observed:
    """Observations that no topic shows.

    sent: by a message's identity, digests of all contents that were sent under it.
    opened: by run and round, digests of all that the coordinator decrypted.
    troubles: texts that members reported to their operators.
    """

    sent: dict[Named, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    opened: dict[tuple[int, int], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    troubles: set[str] = field(default_factory=set)

    def sends(self, channel: str, values: list[bytes]) -> None:
        """Note a message that is sent, in one record or several."""
        content = b"".join(_part(value[1:]).content if value[:1] == MARK else value for value in values)
        one = _decode(content)
        self.sent[one.sender, channel, one.run, one.round, one.kind].add(_digest(content))


def whole_messages(values: Iterable[bytes | None]) -> Iterator[Message]:
    """The messages of a topic. Records of strangers are skipped."""
    waiting: dict[bytes, dict[int, bytes]] = defaultdict(dict)
    for value in values:
        content = value or b""
        if content[:1] == MARK:
            part = _part(content[1:])
            parts = waiting[part.digest]
            parts[part.place] = part.content
            if sum(map(len, parts.values())) < part.size:
                continue
            content = b"".join(parts[place] for place in sorted(waiting.pop(part.digest)))
        try:
            yield _decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def messages_of(bus: TopicReader, topic: str, repeated: Iterable[tuple[str, int, int]] = ()) -> list[Message]:
    """The messages of a topic, in order. repeated: places of records that a producer wrote a second time;
    they are skipped."""
    places = set(repeated)
    return list(
        whole_messages(
            one.value for one in bus.read(topic) if (one.topic, one.partition, one.offset) not in places
        )
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


@contextmanager
def recorded(observed: Observed, fragment_bytes: int) -> Iterator[None]:
    """Note in the context all that members of this process send and decrypt. fragment_bytes: bytes of a
    fragment; 0: the usual."""
    send, opens, usual = Outbox.send, CoordinatorTask._open, messages.FRAGMENT_BYTES

    def noted(
        self: Outbox[OutboxCounts], channel: str, values: Iterable[bytes], headers: Headers = ()
    ) -> int:
        found = list(values)
        observed.sends(channel, found)
        return send(self, channel, found, headers)

    def opened(self: CoordinatorTask, content: bytes, *given: Any) -> Any:
        observed.opened[self.run.number, self.run.round].add(_digest(content))
        return opens(self, content, *given)

    places: list[tuple[Any, str, Any]] = [(Outbox, "send", noted), (CoordinatorTask, "_open", opened)]
    places += [(messages, "FRAGMENT_BYTES", fragment_bytes or usual)]
    before = [getattr(owner, name) for owner, name, _ in places]
    for owner, name, function in places:
        setattr(owner, name, function)
    try:
        with made_up_files():
            yield
    finally:
        for (owner, name, _), function in zip(places, before, strict=True):
            setattr(owner, name, function)
