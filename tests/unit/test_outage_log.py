"""A log that stays readable in an outage: one line a broker and minute, and the dropped lines are counted."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator

import pytest
from streamfl_connectors.outage_log import OneLine

FAIL = (
    "FAIL [rdkafka#consumer-7] [thrd:%s/bootstrap]: %s/bootstrap: Connect to ipv4#%s failed: Connection "
    "refused (after 0ms)"
)


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture(name="log")
def _log() -> Iterator[tuple[logging.Logger, Kept]]:
    logger, kept, one_line = logging.getLogger("outage"), Kept(), OneLine(seconds=0.5)
    logger.propagate = False
    logger.addFilter(one_line)
    logger.addHandler(kept)
    yield logger, kept
    logger.removeFilter(one_line)
    logger.removeHandler(kept)


def wait_for(kept: Kept, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(kept.texts) < count:
        assert time.monotonic() < deadline, kept.texts
        time.sleep(0.01)


def lines_of(broker: str, kept: Kept) -> int:
    """How many lines about a broker were written or told of as left out."""
    told = [text for text in list(kept.texts) if broker in text]
    left_out = [re.search(r"\[(\d+) more lines were left out in \d+ s\]", text) for text in told]
    return len(told) + sum(int(found[1]) for found in left_out if found)


def test_thousands_of_lines_are_a_line_a_broker(log: tuple[logging.Logger, Kept]) -> None:
    """Protects the log of an outage: librdkafka wrote 8,899 lines a minute. Dropped lines are counted."""
    logger, kept = log
    brokers = ["broker-1.example.com:9092", "127.0.0.1:19092", "[::1]:9092"]
    begun = time.monotonic()
    for _ in range(1000):
        for broker in brokers:
            logger.error(FAIL, broker, broker, broker)
    # On a busy machine a window may end in between.
    windows = 1 + int((time.monotonic() - begun) / 0.5)
    assert len(brokers) <= len(kept.texts) <= len(brokers) * windows
    for broker in brokers:
        # Where the lines took longer than a window, the last of them are told of later.
        deadline = time.monotonic() + 60
        while (counted := lines_of(broker, kept)) < 1000:
            assert time.monotonic() < deadline, kept.texts
            time.sleep(0.01)
        assert counted == 1000


def test_what_names_no_broker_stands_behind_what_names_one(log: tuple[logging.Logger, Kept]) -> None:
    """Protects the same log from kafka-python, which writes four lines for each attempt, none of which names
    a broker."""
    logger, kept = log
    logger.error("<KafkaTCPTransport [127.0.0.1:36659<-58422]>: socket disconnected")
    logger.error("Connection failed: KafkaConnectionError: 111 ECONNREFUSED")
    logger.warning("No node available for metadata refresh - backoff/retry")
    assert len(kept.texts) == 1
    wait_for(kept, 2)
    assert (
        kept.texts[1]
        == "No node available for metadata refresh - backoff/retry [1 more lines were left out in 0 s]"
    )


def test_a_single_line_is_said_at_once_and_as_it_is(log: tuple[logging.Logger, Kept]) -> None:
    """Protects a library's single lines outside an outage, and the cause at the beginning of one."""
    logger, kept = log
    logger.warning("at %s a member was put out at 12:34:56", "noon")
    assert kept.texts == ["at noon a member was put out at 12:34:56"]


def test_a_connection_that_is_reset_is_one_line(log: tuple[logging.Logger, Kept]) -> None:
    """Protects who reads the log of an outage from tracebacks of what is no bug: kafka-python writes one if a
    broker is killed while it answers."""
    logger, kept = log
    for error in (ConnectionResetError(104, "Connection reset by peer"), KeyError("partition")):
        try:
            raise error
        except (OSError, KeyError):
            logger.exception("%s: Error receiving network data", "<KafkaTCPTransport [none]>")
    reset, bug = kept.texts[0], kept.texts[1:]
    assert reset == (
        "<KafkaTCPTransport [none]>: Error receiving network data: ConnectionResetError: [Errno 104] "
        "Connection reset by peer"
    )
    assert [text.splitlines()[-1] for text in bug] == ["KeyError: 'partition'"]
