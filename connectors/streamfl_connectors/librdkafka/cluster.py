"""A cluster's address and options, and the clients of librdkafka that are made with them."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable
from streamfl_connectors.addresses import connect_timeout
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.clients import LONGEST_REBALANCE_SECONDS
from streamfl_connectors.librdkafka.entrance import FILES, entrance, tls_context
from streamfl_connectors.librdkafka.failures import NOT_LET_IN
from streamfl_connectors.librdkafka.log import LOG
from streamfl_connectors.librdkafka.options import (
    DEFAULTS,
    check_options,
    refusal,
    take_member_settings,
    take_tokens,
)
from streamfl_connectors.tls import why_refused
from streamfl_connectors.tokens import check_mechanism

__all__ = ["LibrdkafkaCluster"]

# Every cluster with a group has this topic. A cluster without it, or that hides it, answers all the same.
ANY_TOPIC = "__consumer_offsets"
ASK_SECONDS = 0.5


class LibrdkafkaCluster:
    """The cluster of these brokers, and the user's options.

    servers: the brokers' addresses.
    options: the user's, by librdkafka's names, and ours for the tokens of OAuth.
    member_settings: how a group assigns partitions to its members; a value None: the library's own default.
    tokens: of OAuth, if the library does not get them by itself.
    connect_timeout: seconds to wait for a cluster that does not answer.
    """

    def __init__(self, servers: Sequence[str], options: Mapping[str, Any]) -> None:
        remaining = dict(options)
        self.servers = ",".join(servers)
        self.connect_timeout = connect_timeout(remaining)
        self.tokens = take_tokens(remaining)
        self.options = check_options(remaining)
        self.member_settings = take_member_settings(self.options)
        if "sasl.oauthbearer.method" not in self.options:
            check_mechanism(
                self.options.get("sasl.mechanism", self.options.get("sasl.mechanisms")), self.tokens
            )
        self._given = dict(options)
        # Why no broker could be reached: the library reports it only in the background.
        self._causes: deque[KafkaError] = deque(maxlen=20)

    def reach(self) -> None:
        """Wait until a broker answers.

        ConfigurationError if the cluster does not let us in; BusUnavailable, with the cause, if no broker
        answers.
        """
        client: Consumer = self.make(Consumer, **{"group.id": "streamfl-reader"})
        deadline = time.monotonic() + self.connect_timeout
        patience = ASK_SECONDS
        failure: KafkaException | None = None
        try:
            while failure is None or time.monotonic() < deadline:
                try:
                    # Metadata of one topic, which need not exist: a large cluster has thousands.
                    client.list_topics(ANY_TOPIC, timeout=patience)
                    return
                except KafkaException as raised:
                    failure = raised
                # Each question is a new one: over a slow line a short patience would never hear an answer.
                patience = min(2 * patience, max(ASK_SECONDS, deadline - time.monotonic()))
                # The library reports causes within this call.
                client.poll(0)
                for cause in list(self._causes):
                    if cause.code() in NOT_LET_IN:
                        raise ConfigurationError(
                            f"bus.options: the Kafka cluster at {self.servers} cannot be used: {cause.str()}"
                        )
                    if why := why_refused(cause.str()):
                        raise ConfigurationError(
                            f"bus.options: {why}: the Kafka cluster at {self.servers} says {cause.str()}"
                        )
        finally:
            client.close()
        said = [cause.str() for cause in self._causes if cause.code() != KafkaError._ALL_BROKERS_DOWN] or [
            failure.args[0].str()
        ]
        raise BusUnavailable(
            f"no Kafka broker answered at {self.servers} within {self.connect_timeout:g} s: {said[-1]}"
        ) from failure

    def asked(self) -> KafkaBus:
        """The same cluster with kafka-python. ConfigurationError if kafka-python cannot log in with these
        options."""
        try:
            options = entrance(self._given) | {"connect_timeout_seconds": self.connect_timeout}
            return KafkaBus(f"kafka://{self.servers}", options)
        except ConfigurationError as error:
            raise ConfigurationError(
                "kafka+librdkafka:// also connects with kafka-python, which fails with these bus.options: "
                f"{error}"
            ) from error

    def tls_files(self) -> list[tuple[int, ...]]:
        """What tells the files of the login from later files of the same names. OSError if one is away."""
        names = [str(self.options[name]) for name in FILES if name in self.options]
        found = [os.stat(name) for name in names if Path(name).is_file()]
        return [(one.st_ino, one.st_size, one.st_mtime_ns) for one in found]

    def renewed(self, before: list[tuple[int, ...]]) -> bool:
        """Whether the files are others than before, and can be used. Between two that are renewed one after
        the other they may not fit together."""
        try:
            if self.tls_files() == before:
                return False
            tls_context(self.options)
            return True
        except (OSError, ValueError):
            return False

    def make(self, client: Callable[[dict[str, Any]], Any], **settings: Any) -> Any:
        """A client of the library with the user's options; ConfigurationError if it does not accept one."""
        whole = {"error_cb": self._causes.append, **DEFAULTS, **settings, **self.options}
        whole = {name: value for name, value in whole.items() if value is not None}
        whole |= {"bootstrap.servers": self.servers, "logger": settings.get("logger", LOG)}
        if self.tokens is not None:
            # Now, because the library reports an error only in the background.
            self.tokens.token()
            whole["oauth_cb"] = self._token
        if "debug" in settings and "debug" in self.options:
            whole["debug"] = f"{self.options['debug']},{settings['debug']}"
        try:
            return client(whole)
        except KafkaException as error:
            raise refusal(error.args[0]) from error

    def _token(self, _options: str) -> tuple[str, float, str, dict[str, str]]:
        """The library calls it, on a thread of its own, before a token expires. It logs an exception, and
        calls again."""
        assert self.tokens is not None
        found = self.tokens.token()
        return found.text, found.ends, "", self.tokens.extensions

    @property
    def largest_record(self) -> int:
        """The largest record that a producer sends, in bytes."""
        return int(self._option("message.max.bytes"))

    @property
    def write_timeout(self) -> float:
        """Seconds after which an unacknowledged record has failed for certain."""
        return float(self._option("message.timeout.ms")) / 1000 + 5

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the cluster aborts the transaction of a producer that is gone, checks of the
        broker included."""
        return float(self._option("transaction.timeout.ms")) / 1000 + 15

    @property
    def longest_rebalance(self) -> int:
        """Milliseconds after which a group goes on without a member that does not join it.

        By the library's own default the group waits five minutes. A cluster that was killed may keep a member
        that is gone, and its session never ends: no member of the group has a partition until that time is
        over.
        """
        return max(1000 * LONGEST_REBALANCE_SECONDS, int(self._option("session.timeout.ms")))

    def _option(self, name: str) -> Any:
        return self.options.get(name, DEFAULTS.get(name))
