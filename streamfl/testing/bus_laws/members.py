"""Helpers of the laws: own topics and groups, members that poll, and waits with a deadline."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
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

# The longest wait of a law, in seconds.
PATIENCE = 90.0
# The longest wait of one poll, in seconds.
TURN = 0.2
# When nothing came for this long, in seconds, nothing is expected any more.
QUIET = 2.0


class Owned:
    """A member that polls. Keeps its assigned partitions and its records."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.partitions: set[int] = set()
        self.records: list[Record] = []

    def poll(self) -> None:
        polled = self.session.poll(TURN, 100)
        self.partitions = (self.partitions - set(polled.revoked)) | set(polled.assigned)
        self.records += polled.records


def new_name(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def new_topic(bus: Bus, partitions: int = 1, compacted: bool = False) -> str:
    """Creates a topic and returns its name."""
    name = new_name("topic")
    bus.create([TopicSpec(name, partitions, compacted)])
    return name


@contextmanager
def opened(bus: Bus, subscription: Subscription) -> Iterator[Session]:
    """A session that is closed at the end."""
    session = bus.session(subscription)
    try:
        yield session
    finally:
        session.close()


@contextmanager
def joined(
    bus: Bus, *inputs: str, tables: tuple[str, ...] = (), group: str | None = None
) -> Iterator[tuple[Session, str]]:
    """A member of a group, and the group's name. A new group is made if none is given."""
    group = group or new_name("group")
    with opened(bus, Subscription(group, inputs, tables)) as session:
        yield session, group


def values(records: Iterator[Record] | Sequence[Record]) -> list[bytes]:
    return [record.value or b"" for record in records]


def polls(
    session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[Owned] = ()
) -> Iterator[Polled]:
    """Poll until ``enough`` accepts everything that has come so far. Yields each poll."""
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


def until(
    session: Session, enough: Callable[[Polled], bool], most: int = 100, others: Sequence[Owned] = ()
) -> Polled:
    """Everything that the polls until ``enough`` returned, together."""
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
    """The records after a seek. If the partition was revoked meanwhile, seeks again."""
    while True:
        session.seek(topic, 0, offset)
        seen = until(session, lambda seen: len(seen.records) >= count or bool(seen.revoked))
        if not seen.revoked:
            return seen.records


def together(members: Sequence[Owned], enough: Callable[[], bool]) -> None:
    """Poll the members in turn until ``enough``."""
    deadline = monotonic() + PATIENCE
    while True:
        for member in members:
            member.poll()
        if enough():
            return
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {[(m.partitions, m.records) for m in members]}"


def eventually(look: Callable[[], object], expected: object) -> None:
    """Wait for an expected value. A commit is decided before all partitions have its marker, so it may become
    visible later."""
    deadline = monotonic() + PATIENCE
    while (found := look()) != expected:
        assert monotonic() < deadline, f"after {PATIENCE:g} s: {found!r}, expected {expected!r}"
        sleep(0.02)


def poll_until(session: Session, enough: Callable[[], bool]) -> None:
    """Poll until ``enough``, whatever the polls return."""
    deadline = monotonic() + PATIENCE
    while not enough():
        assert monotonic() < deadline, f"after {PATIENCE:g} s: lag is {dict(session.lag())}"
        session.poll(TURN, 100)
