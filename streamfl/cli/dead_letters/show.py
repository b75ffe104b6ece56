"""Shows dead letters as a table, as lines, or as one JSON object a letter."""

from __future__ import annotations

import base64
import heapq
from collections.abc import Iterator

from streamfl.cli.dead_letters.letters import Letter, place_of, read_letter, read_note
from streamfl.cli.preflight import Configured
from streamfl.connection import Connection
from streamfl.contract.role import Record
from streamfl.runtime.bus import Bus
from streamfl.terminal.console import OutputFormat, print_json, print_line, print_table
from streamfl.terminal.printable import printable, valid_date

__all__ = ["SHOWN", "show"]

SHOWN = 100
LONGEST_PREVIEW = 80
COLUMNS = ("time", "where it lay", "key", "reason", "text", "replayed", "value")


def show(
    configured: Configured, bus: Bus, reasons: frozenset[str], limit: int, follow: bool, format: OutputFormat
) -> None:
    """Print the newest letters, the oldest of them first.

    reasons: only letters of these reasons; empty: all.
    limit: the most letters.
    follow: then go on with records that are refused from now on, until Ctrl-C.
    """
    topic = configured.settings.dead_letters
    replayed: set[tuple[int, int]] = set()
    ends: dict[int, int] = {}

    def chosen(record: Record) -> Letter | None:
        letter = read_letter(record)
        return letter if letter is not None and (not reasons or letter.reason in reasons) else None

    def letters() -> Iterator[Letter]:
        for record in bus.read(topic):
            ends[record.partition] = record.offset + 1
            note = read_note(record)
            if note is not None:
                replayed.update((record.partition, offset) for offset in note.offsets)
            if (letter := chosen(record)) is not None:
                yield letter

    newest = heapq.nlargest(
        limit, letters(), key=lambda one: (one.record.timestamp, one.record.partition, one.record.offset)
    )
    found = [
        (letter, (letter.record.partition, letter.record.offset) in replayed) for letter in reversed(newest)
    ]
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
            group = f"{configured.settings.federation.name}.dead-letters"
            for record in Connection(bus).records(topic, ends, group=group):
                if (following := chosen(record)) is not None:
                    (_print_object if format is OutputFormat.JSON else _print_line)(following, False)
        except KeyboardInterrupt:
            return


def _as_row(letter: Letter, replayed: bool) -> tuple[str, ...]:
    key, value = letter.record.key, letter.record.value
    return (
        _time(letter),
        printable(f"{letter.topic}-{letter.partition}-{letter.offset}"),
        "" if key is None else _preview(key),
        printable(letter.reason),
        printable(letter.text),
        "yes" if replayed else "",
        "" if value is None else _preview(value),
    )


def _print_line(letter: Letter, replayed: bool) -> None:
    print_line(*_as_row(letter, replayed))


def _print_object(letter: Letter, replayed: bool) -> None:
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
        "letter": place_of(record),
        **_as_text("value", record.value),
    }
    print_json(content)


def _as_text(name: str, content: bytes | None) -> dict[str, str | None]:
    """The bytes as text under ``name`` if they are UTF-8, in Base64 under ``<name>_base64`` if not."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


def _preview(content: bytes) -> str:
    text = printable(content[: 4 * LONGEST_PREVIEW].decode(errors="backslashreplace"))
    return text if len(text) <= LONGEST_PREVIEW else text[: LONGEST_PREVIEW - 3] + "..."


def _time(letter: Letter) -> str:
    return valid_date(letter.record.timestamp).isoformat(timespec="milliseconds")
