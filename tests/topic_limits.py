"""Lowers a topic's limit after the bus has read it."""

from __future__ import annotations

import time
import uuid
from contextlib import closing

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError

__all__ = ["lower_limit"]

SECONDS = 30.0


def lower_limit(address: str | list[str], name: str, size: int) -> None:
    """Make the topic refuse records above ``size`` bytes, and wait until it does. The cluster applies the
    change with a delay.

    The attempts are aborted, so no reader sees them.
    """
    limit = ConfigResource(ConfigResourceType.TOPIC, name, configs={"max.message.bytes": str(size)})
    with closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.alter_configs([limit])
    deadline = time.monotonic() + SECONDS
    with closing(
        KafkaProducer(bootstrap_servers=address, transactional_id=f"limit-{uuid.uuid4().hex}")
    ) as producer:
        producer.init_transactions()
        while _accepts(producer, name, size + 1):
            assert time.monotonic() < deadline, f"{name} still accepts more than {size} bytes"


def _accepts(producer: KafkaProducer, name: str, size: int) -> bool:
    producer.begin_transaction()
    try:
        producer.send(name, bytes(size), partition=0).get(SECONDS)
    except MessageSizeTooLargeError:
        return False
    finally:
        producer.abort_transaction()
    return True
