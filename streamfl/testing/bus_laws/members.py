"""What the laws do with a bus: topics and groups of their own, members that poll, and waiting with an end."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

from streamfl.role import Record, TopicSpec
from streamfl.runtime.bus import Bus, Polled, Session, Subscription

__all__ = [
    "QUIET",
    "TURN",
    "Owned",
    "eventually",
    "joined",
    "new_name",
    "new_topic",
    "opened",
    "poll_until",
    "polls",
    "records_from",
    "records_of",
    "together",
    "until",
    "values",
]

# No law waits for longer, in seconds.
PATIENCE = 90.0
# A poll waits for at most this long.
TURN = 0.2
# When nothing came for this long nothing comes.
QUIET = 2.0


class Owned:
    """A member that polls, and what it has been told and given."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.partitions: set[int] = set()
        self.records: list[Record] = []

    def poll(self) -> None:
        """Poll once."""
        polled = self.session.poll(TURN, 100)
        self.partitions = (self.partitions - set(polled.revoked)) | set(polled.assigned)
        self.records += polled.records


def new_name(prefix: str) -> str:
    """A name that nobody else uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def new_topic(bus: Bus, partitions: int = 1, compacted: bool = False) -> str:
    """The name of a new topic."""
    name = new_name("topic")
    bus.create([TopicSpec(name, partitions, compacted)])
    return name


@contextmanager
def opened(bus: Bus, subscription: Subscription) -> Iterator[Session]:
    """A session, closed at the end."""
    session = bus.session(subscription)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def joined(bus: Bus, *inputs: str, tables: tuple[str, ...] = (), group: str | None = None) -> Iterator[tuple[Session, str]]:
    """A member of a group, and the name of the group: a new one if none is given."""
    group = group or new_name("group")
    with opened(bus, Subscription(group, inputs, tables)) as session:
        yield session, group


def values(records: Iterator[Record] | Sequence[Record]) -> list[bytes]:
    """What the records hold."""
    return [record.value or b"" for record in records]


def polls(session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[Owned] = ()) -> Iterator[Polled]:
    """Poll after poll until ``enough`` of all of them together has come."""
    whole = Polled()
    deadline = monotonic() + PATIENCE
    while not enough(whole):
        assert monotonic() < deadline, f"polling for {PATIENCE:g} s brought only {whole}"
        polled = session.poll(TURN, most)
        for other in others:
            other.poll()
        yield polled
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.tables += polled.tables
        whole.records += polled.records


def until(session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[Owned] = ()) -> Polled:
    """What all polls until ``enough`` brought together."""
    whole = Polled()
    for polled in polls(session, enough, most, others):
        whole.revoked += polled.revoked
        whole.assigned += polled.assigned
        whole.tables += polled.tables
        whole.records += polled.records
    return whole


def records_of(session: Session, count: int, most: int = 100) -> list[Record]:
    """The next input records, at least ``count``."""
    return until(session, lambda seen: len(seen.records) >= count, most).records


def records_from(session: Session, topic: str, offset: int, count: int) -> list[Record]:
    """What comes after a seek. A group may share its partitions out again at any time: who gets one again seeks again."""
    while True:
        session.seek(topic, 0, offset)
        seen = until(session, lambda seen: len(seen.records) >= count or bool(seen.revoked))
        if not seen.revoked:
            return seen.records


def together(members: Sequence[Owned], enough: Callable[[], bool]) -> None:
    """Let members take turns until ``enough``."""
    deadline = monotonic() + PATIENCE
    while True:
        for member in members:
            member.poll()
        if enough():
            return
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {[(m.partitions, m.records) for m in members]}"


def eventually(look: Callable[[], object], expected: object) -> None:
    """A commit is decided before every partition has heard of it, so what was committed may take a moment to be seen."""
    deadline = monotonic() + PATIENCE
    while (found := look()) != expected:
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {found!r}, expected {expected!r}"
        sleep(0.02)


def poll_until(session: Session, enough: Callable[[], bool]) -> None:
    """Poll until ``enough``, whatever comes."""
    deadline = monotonic() + PATIENCE
    while not enough():
        assert monotonic() < deadline, f"after {PATIENCE:g} s: lag is {dict(session.lag())}"
        session.poll(TURN, 100)
