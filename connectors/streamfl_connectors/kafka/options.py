"""The options of kafka-python's clients: those that streamfl sets, those that the user may set, and checks of
their values."""

from __future__ import annotations

import difflib
import ssl
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.net.sasl import SASL_MECHANISMS

from streamfl.contract.role import ConfigurationError
from streamfl_connectors.tokens import ENDPOINT_OPTIONS, PROVIDER

__all__ = ["CLIENT_DEFAULTS", "CONSUMER_DEFAULTS", "PRODUCER_DEFAULTS", "check_options"]

CLIENT_DEFAULTS: dict[str, Any] = {
    "reconnect_backoff_max_ms": 1000,
    # How soon a client finds brokers that were away at its last look: asking an unknown broker fails, and
    # does not make the client look again. And a leader that assigned partitions before it knew a topic
    # assigns them again then.
    "metadata_max_age_ms": 5_000,
}
CONSUMER_DEFAULTS: dict[str, Any] = {
    **CLIENT_DEFAULTS,
    "heartbeat_interval_ms": 500,
    "session_timeout_ms": 10_000,
    # A partition that is resumed joins the next fetch only, so the wait of an idle fetch is a latency.
    "fetch_max_wait_ms": 100,
    "metrics_enabled": False,
}
PRODUCER_DEFAULTS: dict[str, Any] = {
    **CLIENT_DEFAULTS,
    "request_timeout_ms": 10_000,
    "delivery_timeout_ms": 25_000,
    "transaction_timeout_ms": 10_000,
    "batch_size": 131_072,
    # Fuller batches while records are handed over. Nothing waits for it, because every hand-over ends with a
    # flush.
    "linger_ms": 100,
    # The coordinator refuses a transaction for a moment while it still ends the last one. With the client's
    # 100 ms small commits in a row take 120 ms instead of 25, and a lockstep round is two of them.
    "retry_backoff_ms": 20,
    "metrics_enabled": False,
}

OWN_OPTIONS = {
    "acks": "all replicas acknowledge, always",
    "auto_offset_reset": "set bus.auto_offset_reset",
    "bootstrap_servers": "set bus.url",
    "check_crcs": "always on",
    "enable_auto_commit": "streamfl commits",
    "enable_idempotence": "always on",
    "group_id": "set bus.group",
    "isolation_level": "always read_committed",
    "kafka_client": "not configurable",
    "key_deserializer": "streamfl decodes",
    "key_serializer": "streamfl encodes",
    "max_poll_records": "set bus.max_poll_records",
    "partition_assignment_strategy": "not configurable",
    "sasl_oauth_token_provider": f"set {PROVIDER}, or sasl_oauthbearer_token_endpoint_url and its related "
    "options",
    "ssl_crlfile": "kafka-python fails with a TypeError. With kafka+librdkafka:// set ssl.crl.location",
    "transactional_id": "chosen by streamfl",
    "value_deserializer": "streamfl decodes",
    "value_serializer": "streamfl encodes",
}
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
# Packages that a mechanism needs and kafka-python does not bring.
PACKAGES = {"GSSAPI": "gssapi", "AWS_MSK_IAM": "botocore"}
FILE_OPTIONS = {"ssl_cafile", "ssl_certfile", "ssl_keyfile"}
# A password of digits that comes from the environment is read as a number.
TEXT_OPTIONS = {"sasl_plain_password", "sasl_plain_username", "ssl_password"}


def check_options(options: Mapping[str, Any]) -> None:
    """ConfigurationError if the user may not set an option, or it is not known, or its value is impossible.

    The library checks most values only when they are used, and then waits for a broker instead of raising an
    error.
    """
    known = {
        **KafkaAdminClient.DEFAULT_CONFIG,
        **KafkaProducer.DEFAULT_CONFIG,
        **KafkaConsumer.DEFAULT_CONFIG,
    }
    # These texts have no values: a mistyped name may be a password's.
    for name, value in options.items():
        if name in OWN_OPTIONS:
            raise ConfigurationError(f"bus.options.{name} cannot be set: {OWN_OPTIONS[name]}")
        if name not in known:
            if "." in name:
                raise ConfigurationError(
                    f"bus.options.{name} is librdkafka's name: with kafka:// say kafka-python's, which has "
                    "no dots, or begin bus.url with kafka+librdkafka://"
                )
            near = difflib.get_close_matches(
                name, {*known, *ENDPOINT_OPTIONS, PROVIDER} - OWN_OPTIONS.keys(), n=3
            )
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "the names are those of kafka-python's clients"
            )
            raise ConfigurationError(f"bus.options.{name} is not an option of the Kafka clients: {hint}")
        if name in TEXT_OPTIONS and not isinstance(value, str):
            raise ConfigurationError(
                f"bus.options.{name} is not text: put it in double quotes, in an environment variable within "
                "the value"
            )
        expected = _expected(name, value, known[name])
        if expected:
            raise ConfigurationError(f"bus.options.{name}: {expected} is expected")
    protocol = str(options.get("security_protocol", ""))
    if protocol.startswith("SASL_"):
        _check_login(options)
    if protocol.endswith("SSL"):
        _check_certificates(options)


def _check_certificates(options: Mapping[str, Any]) -> None:
    """ConfigurationError if a file with a certificate or key cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate, key = options.get("ssl_certfile"), options.get("ssl_keyfile")
    name = "ssl_cafile"
    try:
        if name in options:
            context.load_verify_locations(options[name])
        name = "ssl_certfile" if key is None else "ssl_certfile and ssl_keyfile"
        if certificate is not None:
            # Without a password OpenSSL would ask for it at the terminal.
            context.load_cert_chain(certificate, key, options.get("ssl_password") or "")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"bus.options.{name}: the certificate or key cannot be used: {error}"
        ) from error


def _check_login(options: Mapping[str, Any]) -> None:
    """ConfigurationError if the mechanism, the user or the password to log in with is missing."""
    mechanism = options.get("sasl_mechanism")
    if mechanism is None:
        raise ConfigurationError(
            f"bus.options: security_protocol = '{options['security_protocol']}' needs sasl_mechanism"
        )
    if mechanism == "PLAIN" or mechanism.startswith("SCRAM-"):
        missing = [
            name for name in ("sasl_plain_username", "sasl_plain_password") if options.get(name) is None
        ]
        if missing:
            raise ConfigurationError(
                f"bus.options: sasl_mechanism = '{mechanism}' needs {' and '.join(missing)}"
            )
    package = PACKAGES.get(mechanism)
    if package is not None and find_spec(package) is None:
        raise ConfigurationError(
            f"bus.options: sasl_mechanism = '{mechanism}' needs a package: pip install {package}"
        )


def _expected(name: str, value: Any, default: Any) -> str | None:
    """The expected kind of value, if the option has another; else None."""
    if name == "security_protocol":
        return None if value in SECURITY_PROTOCOLS else " or ".join(SECURITY_PROTOCOLS)
    if name == "sasl_mechanism":
        return (
            None if value is None or value in list(SASL_MECHANISMS) else " or ".join(sorted(SASL_MECHANISMS))
        )
    if name in FILE_OPTIONS:
        return (
            None
            if isinstance(value, str) and Path(value).is_file()
            else "the name of a file that can be read"
        )
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, int | float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and 0 <= value <= 2**31 - 1 else "a number from 0 to 2147483647"
    if isinstance(default, str):
        return None if isinstance(value, str) else "text in double quotes"
    return None
