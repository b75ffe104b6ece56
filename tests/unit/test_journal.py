"""The log's first line for each event and then a rate, and its progress line: what an operator sees without
metrics."""

from __future__ import annotations

from typing import Any

from clock import Clock

from streamfl.contract.role import BadRecord, Measurement, OperatorNotice, Record
from streamfl.runtime.journal import MOST_KINDS, Journal
from streamfl.runtime.progress import ProgressLine


class Book:
    """A journal with a fixed clock, and its lines."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines: list[dict[str, Any]] = []
        self.journal = Journal(self._write, self.clock)

    def _write(self, event: str, **facts: Any) -> None:
        self.lines.append({"event": event, **facts})

    def refuse(
        self, offset: int, reason: str = "malformed", text: str = "not JSON", topic: str = "readings"
    ) -> None:
        record = Record(topic, 3, offset, b"pump", b"{")
        self.journal.refused(record, BadRecord(reason, text), dead_letter=topic == "readings")


def test_the_first_refusal_is_told_at_once_with_its_place_and_what_to_do() -> None:
    """Protects the operator of a federation that refuses everything: the log names the record, the reason and
    the remedy."""
    book = Book()
    book.refuse(17, text="sensor_3 is missing")
    [line] = book.lines
    assert line["record"] == "readings-3-17"
    assert line["reason"] == "malformed"
    assert line["text"] == "sensor_3 is missing"
    assert "streamfl dead-letters CONFIG" in line["remedy"]


def test_sixty_refusals_are_two_lines_and_every_one_is_counted() -> None:
    """Protects the log from a flood, and its reader from thinking that only one record was refused."""
    book = Book()
    for offset in range(60):
        book.clock.now = offset / 2
        book.refuse(offset)
        book.journal.catch_up()
    assert len(book.lines) == 1
    book.clock.now = 60.0
    book.journal.catch_up()
    book.journal.catch_up()
    assert [line.get("more") for line in book.lines] == [None, 59]
    assert book.lines[1]["record"] == "readings-3-59"
    assert book.lines[1]["within_seconds"] == 60


def test_each_topic_and_reason_has_its_own_first() -> None:
    """Protects a new mistake from being hidden by an old one."""
    book = Book()
    for topic, reason in (
        ("readings", "malformed"),
        ("readings", "label"),
        ("model", "malformed"),
        ("readings", "label"),
    ):
        book.refuse(0, reason, topic=topic)
    book.journal.notice(OperatorNotice("late_round", "the round closed without 'pump'"))
    assert [(line["reason"], line.get("record", "")[:5]) for line in book.lines] == [
        ("malformed", "readi"),
        ("label", "readi"),
        ("malformed", "model"),
        ("late_round", ""),
    ]
    assert "dead-letters" not in book.lines[2]["remedy"]


def test_what_went_on_is_told_every_minute_and_what_ended_begins_anew() -> None:
    """Protects against a rate that is never logged, or logged for ever after one mistake."""
    book = Book()
    for second in range(181):
        book.clock.now = float(second)
        if second < 100:
            book.refuse(second)
        book.journal.catch_up()
    assert [line.get("more") for line in book.lines] == [None, 59 + 1, 39]
    book.clock.now = 500.0
    book.journal.catch_up()
    book.refuse(500)
    assert "more" not in book.lines[-1]
    assert book.lines[-1]["record"] == "readings-3-500"


def test_what_was_counted_is_told_at_the_end() -> None:
    """Protects the last minute of a worker that is stopped."""
    book = Book()
    for offset in range(5):
        book.refuse(offset)
    book.journal.close()
    assert [line.get("more") for line in book.lines] == [None, 4]


def test_invented_reasons_fill_neither_memory_nor_log() -> None:
    """Protects a worker if a sender could choose the reason."""
    book = Book()
    for number in range(10 * MOST_KINDS):
        book.refuse(number, f"reason-{number}")
    assert len(book.lines) <= MOST_KINDS + 1
    assert len(book.journal._kinds) <= MOST_KINDS + 1
    book.journal.close()
    assert sum(line.get("more", 1) for line in book.lines) == 10 * MOST_KINDS


def test_a_strangers_text_stays_on_its_line() -> None:
    """Protects the log's reader: no name in a record can forge a line or move the cursor."""
    book = Book()
    book.refuse(0, text="client 'a\nERROR all is lost\x1b[2J' " + "x" * 10_000)
    text = book.lines[0]["text"]
    assert text.isprintable()
    assert len(text) < 1100
    assert "\\n" in text


def counter(name: str, value: float, reason: str | None = None, headline: bool = True) -> Measurement:
    return Measurement(name, "counter", "", value, () if reason is None else (("reason", reason),), headline)


def test_progress_tells_what_was_added_and_how_things_stand() -> None:
    """Protects a newcomer's first minute: samples, refusals by reason, lag and error in one line, counted
    since the last one."""
    clock = Clock()
    progress = ProgressLine(60.0, clock)
    clock.now = 9.9
    assert not progress.due()
    clock.now = 10.0
    assert progress.due()

    def stand(samples: float, refused: float) -> dict[str, Any]:
        lag = [
            Measurement("consumer_lag_records", "gauge", "", 2.0, (("partition", str(number)),), True)
            for number in range(3)
        ]
        error = Measurement("mse_windowed", "gauge", "", 0.0123456, (), True)
        hidden = counter("secret", 5.0, headline=False)
        counts = [
            counter("samples", samples),
            counter("dead_letters", refused, "label"),
            counter("dead_letters", 1.0, "malformed"),
        ]
        return progress.line([*counts, *lag, error, hidden])

    first = {"samples": 40, "dead_letters": 8, "consumer_lag_records": 6, "mse_windowed": 0.01235}
    assert stand(40.0, 7.0) == {
        **first,
        "seconds": 10,
        "dead_letters_by_reason": {"label": 7, "malformed": 1},
    }
    assert not progress.due()
    clock.now = 70.0
    assert progress.due()
    second = {"samples": 0, "dead_letters": 2, "consumer_lag_records": 6, "mse_windowed": 0.01235}
    assert stand(40.0, 9.0) == {**second, "seconds": 60, "dead_letters_by_reason": {"label": 2}}


def test_progress_can_be_turned_off_and_never_waits_longer_than_asked() -> None:
    """Protects log.progress_seconds: 0 turns it off, and a short interval applies from the start."""
    clock = Clock()
    off, often = ProgressLine(0.0, clock), ProgressLine(2.0, clock)
    clock.now = 2.0
    assert often.due()
    clock.now = 1e6
    assert not off.due()


def test_a_cluster_that_refuses_connections_is_a_line_a_minute() -> None:
    """Protects the log in an outage: behind a proxy that accepts and closes, a worker tries twice a
    second."""
    book = Book()
    for attempt in range(240):
        book.clock.now = attempt / 2
        book.journal.unavailable(ConnectionError(f"attempt {attempt}: socket disconnected"))
        book.journal.catch_up()
    assert [(line["event"], line["reason"], line.get("more")) for line in book.lines] == [
        ("the bus is unavailable", "bus", None),
        ("the bus is unavailable", "bus", 120),
    ]
    assert "attempt 0" in book.lines[0]["cause"]
