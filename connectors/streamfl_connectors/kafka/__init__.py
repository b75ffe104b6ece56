"""The bus on Apache Kafka, with kafka-python: ``kafka://host:port[,host:port…]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamfl_connectors.kafka.bus import KafkaBus

__all__ = ["connect"]


def connect(url: str, options: Mapping[str, Any]) -> KafkaBus:
    """The Kafka cluster at ``url`` (``kafka://host:port[,host:port…]``).

    options: go to kafka-python's clients as they are, each to the clients that know it;
    ``connect_timeout_seconds`` (default 30) is ours.

    ConfigurationError if the url or an option is wrong; BusUnavailable if no broker answers in that time.
    """
    return KafkaBus(url, options)
