"""Settings of both Kafka connectors: where the cluster is, and how long to wait for it."""

from __future__ import annotations

from typing import Any

from streamfl.contract.role import ConfigurationError

__all__ = ["connect_timeout", "servers"]

CONNECT_TIMEOUT_SECONDS = 30.0


def servers(url: str, scheme: str) -> list[str]:
    """The brokers' addresses in ``scheme://host:port[,host:port…]``; ConfigurationError if the url has
    another form."""
    found, _, rest = url.partition("://")
    addresses = [address.strip() for address in rest.rstrip("/").split(",") if address.strip()]
    parts = [address.rpartition(":") for address in addresses]
    if (
        found != scheme
        or not addresses
        or not all(host and "@" not in host and _is_port(port) for host, _, port in parts)
    ):
        # The text does not show the url, because it may hold a password.
        raise ConfigurationError(
            f"bus.url: expected {scheme}://host:port, several brokers separated by commas, and ports of 1 to "
            "65535"
        )
    return addresses


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65_536


def connect_timeout(options: dict[str, Any]) -> float:
    """Take ``connect_timeout_seconds`` out of the options; ConfigurationError if it is no positive number."""
    value = options.pop("connect_timeout_seconds", CONNECT_TIMEOUT_SECONDS)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigurationError(
            f"bus.connect_timeout_seconds = {value!r}: expected a positive number of seconds"
        )
    return number
