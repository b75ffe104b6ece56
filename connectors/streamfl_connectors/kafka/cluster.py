"""A cluster's address and options, and the clients of kafka-python that are made with them."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable
from streamfl_connectors.addresses import connect_timeout, servers
from streamfl_connectors.kafka.batches import check_batches
from streamfl_connectors.kafka.clients import mend_connections
from streamfl_connectors.kafka.failures import NOT_LET_IN, causes_logged
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS, check_options
from streamfl_connectors.kafka.token_provider import TokenProvider
from streamfl_connectors.tls import why_refused
from streamfl_connectors.tokens import check_mechanism, take_endpoint, take_provider

__all__ = ["KafkaCluster"]

mend_connections()


class KafkaCluster:
    """The cluster at a url, and the user's options: kafka-python's, and ours for the tokens of OAuth.

    servers: the brokers' addresses.
    connect_timeout: seconds to wait for a cluster that does not answer.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        remaining = dict(options)
        self.servers = servers(url, "kafka")
        self.connect_timeout = connect_timeout(remaining)
        self._tokens = take_provider(remaining) or take_endpoint(remaining)
        check_options(remaining)
        check_mechanism(remaining.get("sasl_mechanism"), self._tokens)
        self._options = remaining

    def make(self, client: Callable[..., Any], defaults: Mapping[str, Any], **settings: Any) -> Any:
        """A client of the library with the user's options; BusUnavailable with the cause if no broker
        answers."""
        accepted = client.DEFAULT_CONFIG  # type: ignore[attr-defined]
        chosen = {name: value for name, value in {**defaults, **self._options}.items() if name in accepted}
        chosen |= {
            "bootstrap_servers": self.servers,
            "bootstrap_timeout_ms": int(self.connect_timeout * 1000),
        }
        if self._tokens is not None:
            # Now, because the library would report an error as a broker that is away.
            self._tokens.token()
            chosen["sasl_oauth_token_provider"] = TokenProvider(self._tokens)
        connections: list[Any] = []

        def connection(**configuration: Any) -> Any:
            connections.append(KafkaNetClient(**configuration))
            return connections[-1]

        with causes_logged() as causes:
            try:
                made = client(**{**chosen, **settings, "kafka_client": connection})
                if client is KafkaConsumer:
                    check_batches(made)
                return made
            except (KafkaError, OSError) as error:
                # The constructor leaves its thread and its sockets behind when it fails.
                for left in connections:
                    with suppress(Exception):
                        left.close()
                        left._net.stop()
                if isinstance(error, kafka_errors.KafkaConfigurationError):
                    raise ConfigurationError(f"bus.options: {error}") from error
                where = ",".join(self.servers)
                for cause in causes:
                    # Any of the causes, not only the last: time may run out in the middle of a further
                    # attempt.
                    if isinstance(cause, NOT_LET_IN) or isinstance(
                        cause.__context__, ssl.SSLCertVerificationError
                    ):
                        raise ConfigurationError(
                            f"bus.options: the Kafka cluster at {where} cannot be used: {cause}"
                        ) from cause
                    if why := why_refused(str(cause)):
                        raise ConfigurationError(
                            f"bus.options: {why}: the Kafka cluster at {where} says {cause}"
                        ) from cause
                raise BusUnavailable(
                    f"no Kafka broker answered at {where} within {self.connect_timeout:g} s: "
                    f"{causes[-1] if causes else error}"
                ) from error
            except (TypeError, ValueError, AssertionError) as error:
                raise ConfigurationError(f"bus.options: {error}") from error

    @property
    def largest_record(self) -> int:
        """The largest record that a producer sends, in bytes."""
        return int(self._options.get("max_request_size", KafkaProducer.DEFAULT_CONFIG["max_request_size"]))

    @property
    def write_timeout(self) -> float:
        """Seconds after which an unacknowledged record has failed for certain."""
        return self._seconds("delivery_timeout_ms") + 5

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the cluster aborts the transaction of a producer that is gone, checks of the
        broker included."""
        return self._seconds("transaction_timeout_ms") + 15

    def _seconds(self, option: str) -> float:
        return float(self._options.get(option, PRODUCER_DEFAULTS[option])) / 1000
