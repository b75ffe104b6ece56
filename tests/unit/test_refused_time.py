"""A topic that refuses the timestamp of a record, with either Kafka library."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError
from kafka.errors import InvalidTimestampError
from streamfl_connectors.kafka.failures import translated
from streamfl_connectors.librdkafka.failures import told

from streamfl.contract.role import ConfigurationError


def test_a_time_that_a_topic_refuses_is_the_operators_to_change() -> None:
    """Protects a federation from waiting for ever for a cluster that refuses the same step each time."""
    with pytest.raises(ConfigurationError, match="event_time"), translated("writing"):
        raise InvalidTimestampError("out of range")
    found = told("writing", KafkaError(KafkaError.INVALID_TIMESTAMP))
    assert isinstance(found, ConfigurationError)
    assert "message.timestamp.before.max.ms" in str(found)
