"""``streamfl dead-letters``: the records that were refused, and their replay once the cause is gone.

A replay reads the dead letters as the consumer group ``<federation>.dead-letters-replay``. One transaction holds the records that
go back, the group's offset, and a note of what went back. The notes lie in the dead letters' topic, in the partition of their
letters and after them: retention deletes a letter before its note, and no second topic is needed. Unlike an offset a note does not
expire, and it can leave out the letters that were not chosen. The offset only grows and is in the note too: whoever takes the
partition over waits until the note of the last commit can be read, and a replay that lost the partition cannot commit.
"""

from __future__ import annotations

import base64
import heapq
import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import takewhile
from typing import Annotated

import msgspec
import typer

from streamfl.cli.output import FormatOption, OutputFormat, print_json, print_table, say
from streamfl.cli.preflight import ConfigArgument, Configured, counted, read_configuration
from streamfl.role import ConfigurationError, Record
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
from streamfl.wire import record_size

__all__ = ["dead_letters"]

# Headers of a record that was replayed, and of a note.
REPLAYED_FROM = "replayed_from"
REPLAYED = "replayed"
CAUSE = ("topic", "partition", "offset", "error", "text")
TRUNCATED_FROM = "truncated_from"

SHOWN = 100
MOST_REASONS = 20
LONGEST_PREVIEW = 80
# The last second of the year 9999.
LATEST_TIME = 253_402_300_799.0
COLUMNS = ("time", "where it lay", "key", "reason", "text", "replayed", "value")

# What one transaction of a replay holds at most.
STEP_LETTERS = 500
STEP_BYTES = 4_000_000
TURN_SECONDS = 0.2


def dead_letters(
    config: ConfigArgument,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what is refused from now on, until Ctrl-C.")] = False,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only letters of this reason; give it again for one more. Left out: all.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Show at most the newest N (left out: {SHOWN}); with --replay: at most N, a partition's oldest first."
        ),
    ] = None,
    format: FormatOption = OutputFormat.TABLE,
    replay: Annotated[
        bool, typer.Option("--replay", help="Write the letters back to the topic and partition that they came from, each once.")
    ] = False,
) -> None:
    """Show the records that were refused, or write them back once what was wrong is put right. JSON: one object a letter."""
    if replay and follow:
        raise ConfigurationError("--follow and --replay cannot be used together: a replay ends at the letters that are there")
    configured = read_configuration(config)
    reasons = frozenset(reason or ())
    with closing(configured.connect()) as bus:
        # What follows may still be refused for this reason.
        if reasons and not follow:
            _check_reasons(bus, _topic(configured), reasons)
        if replay:
            _report(_Replay(configured, bus, reasons, limit).run(), format)
        else:
            _show(configured, bus, reasons, limit or SHOWN, follow, format)


@dataclass(frozen=True, slots=True)
class _Letter:
    """A dead letter. ``record``: as it lies among the dead letters; ``headers``: those that the refused record had."""

    record: Record
    topic: str
    partition: int
    offset: int
    reason: str
    text: str
    truncated_from: int | None
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class _Note:
    """What a transaction of a replay sent back: the offsets of letters in the note's own partition."""

    position: int
    offsets: tuple[int, ...]


def _read_letter(record: Record) -> _Letter | None:
    """The letter in ``record``, by the headers at its end: those before them are the sender's and may have any name."""
    headers = record.headers
    truncated = _number(headers[-1][1]) if headers and headers[-1][0] == TRUNCATED_FROM else None
    if truncated is not None:
        headers = headers[:-1]
    own, cause = headers[: -len(CAUSE)], headers[-len(CAUSE) :]
    if tuple(name for name, _ in cause) != CAUSE:
        return None
    topic, partition, offset, reason, text = (content for _, content in cause)
    place = _number(partition), _number(offset)
    if place[0] is None or place[1] is None:
        return None
    said = [content.decode(errors="replace") for content in (topic, reason, text)]
    return _Letter(record, said[0], place[0], place[1], said[1], said[2], truncated, own)


def _read_note(record: Record) -> _Note | None:
    if len(record.headers) != 1 or record.headers[0][0] != REPLAYED:
        return None
    position = _number(record.headers[0][1])
    try:
        offsets = msgspec.json.decode(record.value or b"", type=tuple[int, ...])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if position is None else _Note(position, offsets)


def _number(content: bytes) -> int | None:
    return int(content) if content.isdigit() and len(content) < 20 else None


def _check_reasons(bus: Bus, topic: str, reasons: frozenset[str]) -> None:
    """ConfigurationError if there are letters, and none of one of these reasons: it is mistyped, or nothing is left of it."""
    letters = filter(None, map(_read_letter, bus.read(topic)))
    counts = Counter(letter.reason for letter in letters)
    unknown = sorted(reasons - counts.keys())
    if unknown and counts:
        found = ", ".join(f"{_printable(reason)} ({count})" for reason, count in counts.most_common(MOST_REASONS))
        raise ConfigurationError(f"--reason {', '.join(unknown)}: no letter in {topic} has this reason; there are: {found}")


# ---- showing


def _show(configured: Configured, bus: Bus, reasons: frozenset[str], limit: int, follow: bool, format: OutputFormat) -> None:
    topic = _topic(configured)
    replayed: set[tuple[int, int]] = set()
    ends: dict[int, int] = {}

    def letters() -> Iterator[_Letter]:
        for record in bus.read(topic):
            ends[record.partition] = record.offset + 1
            note = _read_note(record)
            if note is not None:
                replayed.update((record.partition, offset) for offset in note.offsets)
            letter = None if note else _read_letter(record)
            if letter is not None and (not reasons or letter.reason in reasons):
                yield letter

    newest = heapq.nlargest(limit, letters(), key=lambda one: (one.record.timestamp, one.record.partition, one.record.offset))
    found = [(letter, (letter.record.partition, letter.record.offset) in replayed) for letter in reversed(newest)]
    if format is OutputFormat.JSON:
        for letter, again in found:
            _print_object(letter, again)
    elif follow:
        for letter, again in found:
            _print_line(letter, again)
    else:
        print_table("Dead letters", COLUMNS, (_as_row(letter, again) for letter, again in found))
    if follow:
        try:
            for letter in _following(configured, bus, topic, ends):
                if not reasons or letter.reason in reasons:
                    (_print_object if format is OutputFormat.JSON else _print_line)(letter, False)
        except KeyboardInterrupt:
            return


def _following(configured: Configured, bus: Bus, topic: str, ends: Mapping[int, int]) -> Iterator[_Letter]:
    """The letters from ``ends`` on, for ever."""
    # A group of its own that never commits: it sees every partition and leaves nothing behind.
    group = f"{configured.settings.federation.name}.dead-letters-{uuid.uuid4()}"
    with closing(bus.session(Subscription(group, (topic,), guarantee="at_least_once"))) as session:
        while True:
            polled = session.poll(TURN_SECONDS, STEP_LETTERS)
            for partition in polled.assigned:
                if partition in ends:
                    session.seek(topic, partition, ends[partition])
            for record in polled.records:
                letter = None if _read_note(record) else _read_letter(record)
                if letter is not None:
                    yield letter


def _as_row(letter: _Letter, replayed: bool) -> tuple[str, ...]:
    key, value = letter.record.key, letter.record.value
    return (
        _time(letter),
        _printable(f"{letter.topic}-{letter.partition}-{letter.offset}"),
        "" if key is None else _preview(key),
        _printable(letter.reason),
        _printable(letter.text),
        "yes" if replayed else "",
        "" if value is None else _preview(value),
    )


def _print_line(letter: _Letter, replayed: bool) -> None:
    print(*_as_row(letter, replayed), sep="  ", flush=True)


def _print_object(letter: _Letter, replayed: bool) -> None:
    record = letter.record
    content = {
        "time": _time(letter),
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        **_as_text("key", record.key),
        "reason": letter.reason,
        "text": letter.text,
        "headers": [{"name": name, **_as_text("value", content)} for name, content in letter.headers],
        "truncated_from": letter.truncated_from,
        "replayed": replayed,
        "letter": _place(record),
        **_as_text("value", record.value),
    }
    # In ASCII no control character reaches a terminal but DEL, which JSON lets stand.
    sys.stdout.write(json.dumps(content).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()


def _as_text(name: str, content: bytes | None) -> dict[str, str | None]:
    """The bytes as text under ``name`` if they are UTF-8, in Base64 under ``<name>_base64`` if not."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


def _preview(content: bytes) -> str:
    text = _printable(content[: 4 * LONGEST_PREVIEW].decode(errors="backslashreplace"))
    return text if len(text) <= LONGEST_PREVIEW else text[: LONGEST_PREVIEW - 3] + "..."


def _printable(text: str) -> str:
    """The text with everything that is not a visible character escaped: it is a stranger's and goes to a terminal."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def _time(letter: _Letter) -> str:
    # Whoever writes a record may choose its time.
    return datetime.fromtimestamp(min(max(0.0, letter.record.timestamp), LATEST_TIME), UTC).isoformat(timespec="milliseconds")


# ---- replaying


@dataclass
class _Outcome:
    """What a replay did. passed: letters that stay, by why. elsewhere: partitions that another replay has."""

    replayed: int = 0
    passed: Counter[str] = field(default_factory=Counter)
    elsewhere: Sequence[int] = ()


class _Replay:
    """One run of ``--replay``. ``limit``: the most letters, None: all."""

    def __init__(self, configured: Configured, bus: Bus, reasons: frozenset[str], limit: int | None) -> None:
        settings, kind = configured.settings, configured.kind
        self._bus = bus
        self._topic = _topic(configured)
        self._reasons = reasons
        self._limit = limit
        self._patience = settings.bus.connect_timeout_seconds
        inputs = [source.topic for source in kind.channels(settings).inputs.values()]
        described = bus.describe([self._topic, *inputs])
        if self._topic not in described:
            raise ConfigurationError(f"topic {self._topic} does not exist: streamfl topics {configured.path} --create")
        # Whatever a letter says, it goes to a topic that this role reads, or nowhere.
        self._partitions = {name: described[name].partitions for name in inputs if name in described}
        self._own_partitions = described[self._topic].partitions
        group = f"{settings.federation.name}.dead-letters-replay"
        self._subscription = Subscription(group, (self._topic,), transactional_id=new_transactional_id(group))
        self._outcome = _Outcome()
        self._to_do: set[int] = set()
        self._done: set[int] = set()
        self._joined = False

    def run(self) -> _Outcome:
        """Replay the partitions that the group gives us. BusUnavailable: what was not committed is not seen; run it again."""
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
            # A record that is refused again while we are at it is a new letter, for another time.
            return record.offset < end

        try:
            for step in self._steps(takewhile(seen, session.restore(self._topic, partition)), replayed, passed):
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
                    # Even if it came back at once, its letters may have been another's meanwhile.
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
                note = _read_note(record)
                if note is not None:
                    noted = max(noted, note.position)
                    replayed.update(note.offsets)
            # A commit's letters lie before its position: where retention has taken these, its note may be gone too.
            if noted >= committed or first is None or first >= committed:
                return replayed, max(end, committed)
            if time.monotonic() >= deadline:
                raise BusUnavailable(f"the last replay's note cannot be read yet in partition {partition} of {self._topic}")
            time.sleep(0.05)

    def _steps(self, records: Iterable[Record], replayed: set[int], passed: Counter[str]) -> Iterator[list[_Letter]]:
        """The letters to be replayed, a transaction's at a time; the others are counted in ``passed``."""
        step: list[_Letter] = []
        size = 0
        for record in records:
            if record.offset in replayed or _read_note(record):
                continue
            letter = _read_letter(record)
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

    def _obstacle(self, letter: _Letter | None) -> str:
        if letter is None:
            return "not_a_letter"
        if letter.reason == UNREADABLE:
            return "unreadable"
        if letter.truncated_from is not None:
            return "truncated"
        return "" if letter.partition < self._partitions.get(letter.topic, 0) else "other_topic"

    def _again(self, letter: _Letter) -> Outgoing:
        # Its own partition: a client's records and its state lie there, whichever way the producer chose it.
        headers = tuple(header for header in letter.headers if header[0] != REPLAYED_FROM)
        mark = (REPLAYED_FROM, _place(letter.record).encode())
        return Outgoing(letter.topic, letter.record.key, letter.record.value, letter.partition, (*headers, mark))


PASSED = {
    "limit": "beyond --limit",
    "truncated": "cut short when they were refused: the rest of the record is lost",
    "other_topic": "from a topic or partition that this role does not read: use the configuration of the role that does",
    "unreadable": "a batch that could not be read, as it lay in the topic: no record can be made of it",
    "not_a_letter": "not written by streamfl",
}


def _report(outcome: _Outcome, format: OutputFormat) -> None:
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
        say(f"another replay is running and has partitions {list(outcome.elsewhere)}: run the command again when it has ended")


def _topic(configured: Configured) -> str:
    return configured.settings.dead_letters


def _place(record: Record) -> str:
    return f"{record.topic}-{record.partition}-{record.offset}"
