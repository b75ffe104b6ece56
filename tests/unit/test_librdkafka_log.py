"""Which lines of librdkafka's log reach the operator."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from streamfl_connectors.librdkafka.log import LOG, EndTxnAnswers
from streamfl_connectors.outage_log import ONE_LINE, OneLine

HARMLESS = [
    "GETPID [rdkafka#producer-6] [thrd:main]: Failed to acquire idempotence PID from broker NAME/1: "
    "Broker: Coordinator load in progress: retrying",
    "GETPID [rdkafka#producer-1] [thrd:main]: Failed to acquire transactional PID from broker NAME/1: "
    "Broker: Not coordinator: retrying",
]
GRAVE = [
    "GETPID [rdkafka#producer-2] [thrd:main]: Failed to acquire transactional PID from broker NAME/1: "
    "Broker: Transactional Id authorization failed",
    "FAIL [rdkafka#producer-3] [thrd:x]: x: Connect to ipv4#x failed: Connection refused (after 0ms)",
]


@pytest.fixture(autouse=True)
def _nothing_logged_before() -> Iterator[None]:
    """What other tests had logged within a minute would count as the same outage."""
    own = OneLine()
    LOG.removeFilter(ONE_LINE)
    LOG.addFilter(own)
    yield
    LOG.removeFilter(own)
    LOG.addFilter(ONE_LINE)


def test_only_failures_reach_the_operator(caplog: pytest.LogCaptureFixture) -> None:
    """Protects a newcomer from a line that looks like a failure at the first start on a cluster, and an
    operator from losing real ones. With log.level = "debug" nothing is hidden."""
    for text in HARMLESS + GRAVE:
        LOG.warning(text)
    assert [record.getMessage() for record in caplog.records] == GRAVE
    caplog.clear()
    caplog.set_level(logging.DEBUG, "streamfl")
    for text in HARMLESS:
        LOG.warning(text)
    assert [record.getMessage() for record in caplog.records] == HARMLESS


def test_a_broker_that_hangs_is_not_said_to_be_too_old(caplog: pytest.LogCaptureFixture) -> None:
    """Protects an operator whose broker or network hangs from looking for an upgrade: the library guesses a
    version before 0.10."""
    LOG.warning(
        "%s [rdkafka#consumer-5] %s",
        "FAIL",
        "host/bootstrap: ApiVersionRequest failed: Local: Timed out: probably due to broker version < 0.10 "
        "(see api.version.request configuration) (after 10038ms in state APIVERSION_QUERY)",
    )
    assert [record.getMessage() for record in caplog.records] == [
        "FAIL [rdkafka#consumer-5] host/bootstrap: ApiVersionRequest failed: Local: Timed out "
        "(after 10038ms in state APIVERSION_QUERY)"
    ]


def test_a_producer_that_fails_for_good_is_not_critical(caplog: pytest.LogCaptureFixture) -> None:
    """Protects whoever is called up by critical lines: the connector replaces such a producer, and one that
    was replaced fails as soon as its line to the broker is back."""
    heard = EndTxnAnswers()
    heard.log(
        logging.CRITICAL,
        "%s [%s] %s",
        "FATAL",
        "rdkafka#producer-6",
        "Fatal error: fenced by a newer instance",
    )
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert heard.fatal == "Fatal error: fenced by a newer instance"
