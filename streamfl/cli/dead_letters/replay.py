"""The replay of dead letters: each goes back to the topic and partition that it came from, once.

A replay reads the dead letters as the consumer group ``<federation>.dead-letters-replay``. One transaction
holds the records that go back, the group's offset, and a note of what went back.

A note is in the dead letters' topic, in the partition of its letters and after them. So retention deletes a
letter before its note, and no second topic is needed. Unlike an offset a note does not expire, and it can
leave out letters that were not chosen.

The offset only grows, and is in the note too. A replay that takes a partition over waits until it can read
the note of the last commit. A replay that lost the partition cannot commit.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import takewhile

import msgspec

from streamfl.cli.dead_letters.letters import REPLAYED, Letter, place_of, read_letter, read_note
from streamfl.cli.preflight import Configured
from streamfl.cli.rekey import inputs_of, rekeyings
from streamfl.contract.role import ConfigurationError, Record
from streamfl.encoding.wire import record_size
from streamfl.runtime.bus import (
    Bus,
    BusUnavailable,
    CommitRefused,
    Outgoing,
    Polled,
    Session,
    Step,
    Subscription,
    new_transactional_id,
)
from streamfl.runtime.repair import UNREADABLE
from streamfl.terminal.console import OutputFormat, print_json, say
from streamfl.terminal.words import counted

__all__ = ["Replay", "ReplayOutcome", "report"]

# The header of a record that was replayed.
REPLAYED_FROM = "replayed_from"

# The most letters and bytes in one transaction of a replay.
STEP_LETTERS = 500
STEP_BYTES = 4_000_000
TURN_SECONDS = 0.2


@dataclass
class ReplayOutcome:
    """The result of a replay.

    replayed: the number of letters that went back.
    passed: the number of letters that stay, by cause.
    elsewhere: partitions that another replay has.
    """

    replayed: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    elsewhere: Sequence[int] = ()


class Replay:
    """One run of ``--replay``.

    reasons: only letters of these reasons go back; empty: all.
    limit: the most letters that go back; None: all.
    """

    def __init__(self, configured: Configured, bus: Bus, reasons: frozenset[str], limit: int | None) -> None:
        settings = configured.settings
        self._bus = bus
        self._topic = configured.settings.dead_letters
        self._reasons = reasons
        self._limit = limit
        self._patience = settings.bus.connect_timeout_seconds
        inputs = [topic for one in (configured, *rekeyings(configured)) for topic in inputs_of(one)]
        described = bus.describe([self._topic, *inputs])
        if self._topic not in described:
            raise ConfigurationError(
                f"topic {self._topic} does not exist: streamfl topics {configured.path} --create"
            )
        # A letter's header may name any topic, but letters go only to topics that this role reads.
        self._partitions = {name: described[name].partitions for name in inputs if name in described}
        self._own_partitions = described[self._topic].partitions
        group = f"{settings.federation.name}.dead-letters-replay"
        self._subscription = Subscription(group, (self._topic,), transactional_id=new_transactional_id(group))
        self._outcome = ReplayOutcome()
        self._to_do: set[int] = set()
        self._done: set[int] = set()
        self._joined = False

    def run(self) -> ReplayOutcome:
        """Replay the partitions that the group assigns. After BusUnavailable run it again: uncommitted writes
        stay invisible."""
        with closing(self._bus.session(self._subscription)) as session:
            # Letters are read from the beginning of each partition, not from the group's offset.
            session.pause([(self._topic, partition) for partition in range(self._own_partitions)])
            deadline = time.monotonic() + self._patience
            while self._to_do or (not self._joined and time.monotonic() < deadline):
                self._heed(session.poll(0.0 if self._to_do else TURN_SECONDS, 1))
                if self._to_do:
                    self._replay_partition(session, min(self._to_do))
        self._outcome.elsewhere = sorted(set(range(self._own_partitions)) - self._done)
        return self._outcome

    def _heed(self, polled: Polled) -> None:
        self._to_do.difference_update(polled.revoked)
        self._to_do.update(set(polled.assigned) - self._done)
        self._joined |= bool(polled.assigned)

    def _replay_partition(self, session: Session, partition: int) -> None:
        replayed, position = self._look(session, partition)
        passed: Counter[str] = Counter()

        def seen(record: Record, end: int = position) -> bool:
            # A record that is refused again during this replay becomes a new letter, for a later replay.
            return record.offset < end

        try:
            for step in self._steps(
                takewhile(seen, session.restore(self._topic, partition)), replayed, passed
            ):
                position += 1
                note = Outgoing(
                    self._topic,
                    None,
                    msgspec.json.encode([letter.record.offset for letter in step]),
                    partition,
                    ((REPLAYED, str(position).encode()),),
                )
                session.commit(Step({(self._topic, partition): position}, [*map(self._again, step), note]))
                self._outcome.replayed += len(step)
                polled = session.poll(0.0, 1)
                self._heed(polled)
                if partition in polled.revoked:
                    # Even if it is assigned again at once, another replay may have handled its letters
                    # meanwhile.
                    return
        except CommitRefused:
            # The next poll says which partitions are still ours.
            return
        self._outcome.passed += passed
        self._to_do.remove(partition)
        self._done.add(partition)

    def _look(self, session: Session, partition: int) -> tuple[set[int], int]:
        """The offsets of letters that were replayed, and a position that no commit has had."""
        committed = session.committed(self._topic, partition) or 0
        deadline = time.monotonic() + self._patience
        while True:
            replayed: set[int] = set()
            noted, first, end = 0, None, 0
            for record in session.restore(self._topic, partition):
                first = record.offset if first is None else first
                end = record.offset + 1
                note = read_note(record)
                if note is not None:
                    noted = max(noted, note.position)
                    replayed.update(note.offsets)
            # A commit's letters are before its position. If retention has deleted these, its note may be gone
            # too.
            if noted >= committed or first is None or first >= committed:
                return replayed, max(end, committed)
            if time.monotonic() >= deadline:
                raise BusUnavailable(
                    f"the last replay's note cannot be read yet in partition {partition} of {self._topic}"
                )
            time.sleep(0.05)

    def _steps(
        self, records: Iterable[Record], replayed: set[int], passed: Counter[str]
    ) -> Iterator[list[Letter]]:
        """The letters to replay, one list for each transaction; counts the others in ``passed``."""
        step: list[Letter] = []
        size = 0
        for record in records:
            if record.offset in replayed or read_note(record):
                continue
            letter = read_letter(record)
            if letter is not None and self._reasons and letter.reason not in self._reasons:
                continue
            obstacle = self._obstacle(letter)
            if letter is None or obstacle:
                passed[obstacle] += 1
                continue
            if self._limit is not None and self._outcome.replayed + len(step) >= self._limit:
                passed["limit"] += 1
                continue
            if step and (len(step) == STEP_LETTERS or size + record_size(record) > STEP_BYTES):
                yield step
                step, size = [], 0
            step.append(letter)
            size += record_size(record)
        if step:
            yield step

    def _obstacle(self, letter: Letter | None) -> str:
        if letter is None:
            return "not_a_letter"
        if letter.reason == UNREADABLE:
            return "unreadable"
        if letter.truncated_from is not None:
            return "truncated"
        return "" if letter.partition < self._partitions.get(letter.topic, 0) else "other_topic"

    def _again(self, letter: Letter) -> Outgoing:
        # To its old partition, whatever partitioner the producer uses: a client's records and its state are
        # there.
        headers = tuple(header for header in letter.headers if header[0] != REPLAYED_FROM)
        mark = (REPLAYED_FROM, place_of(letter.record).encode())
        return Outgoing(
            letter.topic, letter.record.key, letter.record.value, letter.partition, (*headers, mark)
        )


PASSED = {
    "limit": "beyond --limit",
    "truncated": "cut short when they were refused: the rest of the record is lost",
    "other_topic": "from a topic or partition that this role does not read: use the configuration of the "
    "role that does",
    "unreadable": "a damaged batch as it was in the topic: it cannot become a record",
    "not_a_letter": "not written by streamfl",
}


def report(outcome: ReplayOutcome, format: OutputFormat) -> None:
    """Print what a replay did, and why letters stay."""
    if format is OutputFormat.JSON:
        print_json(
            {
                "replayed": outcome.replayed,
                "not_replayed": {name: outcome.passed[name] for name in PASSED},
                "partitions_elsewhere": list(outcome.elsewhere),
            }
        )
    else:
        say(f"replayed {counted(outcome.replayed, 'dead letter')}")
    for name, text in PASSED.items():
        if outcome.passed[name]:
            say(f"{outcome.passed[name]} not replayed, {text}")
    if outcome.elsewhere:
        say(
            f"another replay is running and has partitions {list(outcome.elsewhere)}: run the command again "
            "when it has ended"
        )
