"""The options of librdkafka's clients: those that streamfl sets, those that the user may set, and checks of
their values."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError

from streamfl.contract.role import ConfigurationError
from streamfl_connectors.tokens import ENDPOINT_OPTIONS, PROVIDER, Tokens, take_endpoint, take_provider

__all__ = ["DEFAULTS", "OTHER_SPELLINGS", "check_options", "refusal", "take_member_settings", "take_tokens"]

DEFAULTS: dict[str, Any] = {
    # Off by default in the library: it would accept records that a disk has damaged.
    "check.crcs": True,
    "reconnect.backoff.max.ms": 1000,
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 10_000,
    # The library's own limits are 64 MB and 1 GB.
    "queued.max.messages.kbytes": 16_384,
    "queue.buffering.max.kbytes": 65_536,
    # Otherwise the library looks at a full queue of read records again only after a second.
    "fetch.queue.backoff.ms": 10,
    "fetch.wait.max.ms": 100,
    "request.timeout.ms": 10_000,
    "transaction.timeout.ms": 10_000,
    "message.timeout.ms": 10_000,
    "message.max.bytes": 1_048_588,
}

OWN_OPTIONS = {
    "acks": "all replicas acknowledge, always",
    "auto.offset.reset": "set bus.auto_offset_reset",
    "batch.size": "chosen by streamfl, below every topic's max.message.bytes",
    "bootstrap.servers": "set bus.url",
    "check.crcs": "always on",
    "delivery.report.only.error": "always on",
    "enable.auto.commit": "streamfl commits",
    "enable.auto.offset.store": "streamfl commits",
    "enable.idempotence": "always on",
    "enable.partition.eof": "always on",
    "group.id": "set bus.group",
    "isolation.level": "always read_committed",
    "log.queue": "always on, because streamfl reads the log",
    "metadata.broker.list": "set bus.url",
    "partition.assignment.strategy": "not configurable",
    "partitioner": "always murmur2_random, as Java's clients choose",
    "request.required.acks": "all replicas acknowledge, always",
    "transactional.id": "chosen by streamfl",
}
# Only for the member of a group.
GROUP_OPTIONS = ("group.protocol", "group.remote.assignor")
# A password of digits that comes from the environment is read as a number.
TEXT_OPTIONS = {
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.password",
    "sasl.username",
    "ssl.key.password",
    "ssl.keystore.password",
}
# kafka-python's names for options that differ in more than dots and underscores.
OTHER_SPELLINGS = {
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.keyfile": "ssl.key.location",
    "ssl.crlfile": "ssl.crl.location",
    "ssl.password": "ssl.key.password",
    "max.request.size": "message.max.bytes",
    "delivery.timeout.ms": "message.timeout.ms",
}
# Names that are suggested for a mistyped one, beside those above.
COMMON = (
    "security.protocol",
    "sasl.mechanism",
    "client.id",
    "compression.type",
    "linger.ms",
    "max.poll.interval.ms",
)

INVALID_VALUE = re.compile(r'Invalid value ".*" for', re.DOTALL)


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options by librdkafka's names; ConfigurationError if the user may not set one, or its value is
    impossible.

    The library itself checks whether it knows them, when the first client is made: see :func:`refusal`.
    """
    checked: dict[str, Any] = {}
    # These texts have no values: a mistyped name may be a password's.
    for given, value in options.items():
        # The environment has no dots in names, and librdkafka no underscores.
        name = given.replace("_", ".")
        if name in OWN_OPTIONS:
            raise ConfigurationError(f"bus.options.{given} cannot be set: {OWN_OPTIONS[name]}")
        if name in OTHER_SPELLINGS:
            raise ConfigurationError(
                f"bus.options.{given} is kafka-python's name: librdkafka calls it {OTHER_SPELLINGS[name]!r}"
            )
        if not isinstance(value, str | int | float):
            raise ConfigurationError(f"bus.options.{given}: text, a number, true or false is expected")
        if name in TEXT_OPTIONS and not isinstance(value, str):
            raise ConfigurationError(
                f"bus.options.{given} is not text: put it in double quotes, in an environment variable "
                "within the value"
            )
        checked[name] = value
    return checked


def take_member_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of a group's assignment out of the checked options. A value None: left to the
    cluster."""
    protocol, assignor = (options.pop(name, None) for name in GROUP_OPTIONS)
    if protocol not in (None, "classic", "consumer"):
        raise ConfigurationError("bus.options 'group.protocol': classic or consumer is expected")
    if protocol != "consumer":
        if assignor is not None:
            raise ConfigurationError(
                "bus.options 'group.remote.assignor' only has a meaning with 'group.protocol' = 'consumer'"
            )
        # Cooperative, so that kept partitions never stop.
        return {"partition.assignment.strategy": "cooperative-sticky"}
    # The cluster decides these: group.consumer.session.timeout.ms, group.consumer.heartbeat.interval.ms.
    cluster = dict.fromkeys(("heartbeat.interval.ms", "session.timeout.ms"))
    return {"group.protocol": protocol, "group.remote.assignor": assignor, **cluster}


def refusal(error: KafkaError) -> ConfigurationError:
    """Why the library refuses the options, without any value: a value in the wrong place may be a
    password."""
    text = INVALID_VALUE.sub("Invalid value for", error.str())
    if "No such configuration property" not in text:
        return ConfigurationError(f"bus.options: {text.strip()}")
    name = text.split('"')[1]
    near = difflib.get_close_matches(
        name, sorted({*DEFAULTS, *TEXT_OPTIONS, *OTHER_SPELLINGS.values(), *COMMON}), n=2
    )
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "the names are those of librdkafka's CONFIGURATION.md"
    )
    return ConfigurationError(f"bus.options.{name} is not an option of librdkafka: {hint}")


def take_tokens(options: dict[str, Any]) -> Tokens | None:
    """Take the options of OAuth tokens out of the options, however they are spelled.

    With ``sasl.oauthbearer.method`` the library gets tokens by itself, and keeps its options.
    """
    ours = {name.replace("_", "."): name for name in (*ENDPOINT_OPTIONS, PROVIDER)}
    spelled = {name.replace("_", "."): name for name in options}
    names = [PROVIDER] if "sasl.oauthbearer.method" in spelled else [*ours.values()]
    taken = {
        ours[dotted]: options.pop(given) for dotted, given in spelled.items() if ours.get(dotted) in names
    }
    return take_provider(taken) or take_endpoint(taken)
