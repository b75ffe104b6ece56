"""The bus on Apache Kafka, with librdkafka through confluent-kafka: ``kafka+librdkafka://host:port[,host:port…]``.

The package is an extra, so this module can be imported without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from streamfl.role import ConfigurationError

if TYPE_CHECKING:
    from streamfl_connectors.librdkafka_bus import LibrdkafkaBus

__all__ = ["connect"]

SCHEME = "kafka+librdkafka"


def connect(url: str, options: Mapping[str, Any]) -> LibrdkafkaBus:
    """The Kafka cluster at ``url`` (``kafka+librdkafka://host:port[,host:port…]``).

    ``options`` are librdkafka's, by its own names; ``connect_timeout_seconds`` (default 30) is ours. ConfigurationError if
    confluent-kafka is not installed or the url or an option is wrong; BusUnavailable if no broker answers in that time.
    """
    if find_spec("confluent_kafka") is None:
        raise ConfigurationError(
            f"bus.url = {SCHEME}://…: the package 'confluent-kafka' is missing: pip install 'streamfl[librdkafka]'"
        )
    from streamfl_connectors.librdkafka_bus import LibrdkafkaBus

    return LibrdkafkaBus(_servers(url), options)


def _servers(url: str) -> str:
    scheme, _, rest = url.partition("://")
    servers = [server.strip() for server in rest.rstrip("/").split(",") if server.strip()]
    hosts_and_ports = [server.rpartition(":") for server in servers]
    if scheme != SCHEME or not servers or not all(host and "@" not in host and port.isdigit() for host, _, port in hosts_and_ports):
        raise ConfigurationError(f"bus.url: expected {SCHEME}://host:port, several brokers separated by commas")
    return ",".join(servers)
