"""Which lines of kafka-python's log reach the operator: failures, but not problems that the library solves
itself."""

from __future__ import annotations

import logging

import pytest
from streamfl_connectors.kafka import failures
from streamfl_connectors.kafka.failures import quieten
from streamfl_connectors.outage_log import OneLine

HARMLESS = [
    (
        "kafka.coordinator",
        "Marking the coordinator dead (node coordinator-1) for group plant: [Error 16] NotCoordinatorError.",
    ),
    ("kafka.coordinator", "Error sending FindCoordinatorRequest to node 1 [Cancelled]"),
    ("kafka.cluster", "Metadata refresh: failed Cancelled"),
    ("kafka.coordinator.heartbeat", "Heartbeat failed for group g: generation id is not  current."),
    (
        "kafka.coordinator.heartbeat",
        "Heartbeat: local member_id was not recognized; this consumer needs to re-join",
    ),
    ("kafka.coordinator.consumer", "OffsetFetch failed: [Error 88] UnstableOffsetCommitError"),
    (
        "kafka.net.selector",
        "Task <Task> ran for 0.114s (>0.100s threshold). It is blocking the event loop -- likely a tight "
        "loop",
    ),
]
GRAVE = [
    ("kafka.coordinator", "Group Coordinator Request failed: [Error 30] GroupAuthorizationFailedError: g"),
    ("kafka.coordinator.heartbeat", "Heartbeat session expired, marking coordinator dead"),
    ("kafka.coordinator.heartbeat", "Heartbeat thread caught fenced group_instance_id worker-1 error"),
    ("kafka.net.selector", "IO loop crashed (client_id=x)"),
    ("kafka.cluster", "Metadata refresh: failed [Error 29] TopicAuthorizationFailedError"),
    ("kafka.producer.sender", "Aborting producer batches due to fatal error: ProducerFencedError"),
    ("kafka.net.connection", "SaslHandshake failed: UnsupportedSaslMechanismError"),
]


@pytest.fixture(autouse=True)
def _nothing_logged_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests had logged within a minute would count as the same outage."""
    monkeypatch.setattr(failures, "ONE_LINE", OneLine())


def test_only_failures_reach_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    """Protects a newcomer from lines that look like failures at every start, and an operator from losing real
    ones."""
    quieten()
    caplog.set_level(logging.WARNING, "kafka")
    for name, text in HARMLESS + GRAVE:
        logging.getLogger(name).warning(text)
    assert [(record.name, record.getMessage()) for record in caplog.records] == GRAVE


def test_everything_is_there_for_who_asks_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """Protects debugging of the client library: with log.level = "debug" nothing is hidden."""
    quieten()
    quieten()
    caplog.set_level(logging.WARNING, "kafka")
    caplog.set_level(logging.DEBUG, "streamfl")
    for name, text in HARMLESS:
        logging.getLogger(name).warning(text)
    assert len(caplog.records) == len(HARMLESS)


@pytest.mark.parametrize(
    ("name", "text", "raised", "reaches"),
    [
        ("selector", "Unhandled exception in task <One>:", "Invalid file descriptor: -1", False),
        (
            "selector",
            "Unhandled exception in task <Reading>:",
            "'NoneType' object has no attribute 'data_received'",
            False,
        ),
        ("selector", "Unhandled exception in task <Other>:", "no memory", True),
        (
            "transport",
            "<Transport>: Error receiving network data closing socket",
            "'NoneType' object has no attribute 'recv'",
            False,
        ),
    ],
)
def test_a_closed_connection_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture, name: str, text: str, raised: str, reaches: bool
) -> None:
    """Protects an operator whose worker ends for a missing right: a traceback of the library stood before the
    line that names the right. So did one in the log of a worker that was told to stop."""
    quieten()
    caplog.set_level(logging.WARNING, "kafka")
    try:
        raise ValueError(raised)
    except ValueError:
        logging.getLogger(f"kafka.net.{name}").exception(text)
    assert bool(caplog.records) == reaches
