"""Which lines of librdkafka's log reach the operator."""

from __future__ import annotations

import logging

import pytest
from streamfl_connectors.librdkafka.log import LOG

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
