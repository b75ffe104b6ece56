"""The bus on Apache Kafka, with librdkafka through confluent-kafka:
``kafka+librdkafka://host:port[,host:port…]``.

The package confluent-kafka is an extra, so this module can be imported without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Bus
from streamfl_connectors.addresses import servers

__all__ = ["connect"]

SCHEME = "kafka+librdkafka"


def connect(url: str, options: Mapping[str, Any]) -> Bus:
    """The Kafka cluster at ``url`` (``kafka+librdkafka://host:port[,host:port…]``).

    options: librdkafka's, by its own names; ``connect_timeout_seconds`` (default 30) is ours.

    ConfigurationError if confluent-kafka is not installed or the url or an option is wrong; BusUnavailable if
    no broker answers in that time.
    """
    if find_spec("confluent_kafka") is None:
        raise ConfigurationError(
            f"bus.url = {SCHEME}://…: the package 'confluent-kafka' is missing: pip install "
            "'streamfl[librdkafka]'"
        )
    from streamfl_connectors.librdkafka.bus import LibrdkafkaBus

    return LibrdkafkaBus(servers(url, SCHEME), options)
