"""Describes, creates and looks up the topics of a cluster, with kafka-python."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.protocol.metadata import MetadataRequest

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, TopicSpec, TopicState
from streamfl.runtime.rights import Right
from streamfl_connectors.kafka.failures import needed, translated
from streamfl_connectors.kafka.rights import missing_rights
from streamfl_connectors.topics import Topics, options_of

__all__ = ["KafkaTopics"]

PAUSE_SECONDS = 0.05


class KafkaTopics(Topics):
    """The topics that an admin client of kafka-python sees.

    largest: the largest record that the producers send, in bytes.
    patience: seconds to wait for a topic that was created.
    """

    def __init__(self, admin: Any, largest: int, patience: float) -> None:
        super().__init__(largest)
        self._admin = admin
        self._patience = patience

    def unreadable(self, topics: Iterable[str]) -> set[str]:
        """Those that this principal may not read; all of them if the cluster does not tell."""
        names = set(topics)
        rights = [Right("", "topic", name, "literal", ("Read",)) for name in sorted(names)]
        return {right.name for right in missing_rights(self._admin, rights)} or names

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` and ``hidden`` say which right is missing.
        BusUnavailable if the cluster is away."""
        names = sorted(set(topics))
        if not names:
            return {}
        states: dict[str, TopicState] = {}
        with translated("describing topics"):
            operations = {}
            for found in self._admin.describe_topics(names):
                code, name = found.get("error_code", 0), found["name"]
                if code == kafka_errors.UnknownTopicOrPartitionError.errno:
                    continue
                if code == kafka_errors.TopicAuthorizationFailedError.errno:
                    states[name] = TopicState(name, 0, False, error=f"not authorised: {needed(name)}")
                elif code == kafka_errors.InvalidTopicError.errno:
                    states[name] = TopicState(name, 0, False, error="not a valid topic name")
                elif code:
                    states[name] = TopicState(name, 0, False, error=kafka_errors.for_code(code).__name__)
                else:
                    states[name] = TopicState(
                        name, len(found["partitions"]), False, identity=str(found.get("topic_id", ""))
                    )
                    operations[name] = found.get("authorized_operations") or ()
            if operations:
                resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in operations]
                described = self._admin.describe_configs(resources, config_filter="all")
                for name, allowed in operations.items():
                    # The library passes over the error of a topic: all that it returns then is no options.
                    if not (found := described.get("topic", {}).get(name)):
                        if "DESCRIBE_CONFIGS" in allowed:
                            # It was deleted since.
                            del states[name]
                            continue
                        hidden = (
                            "its configuration cannot be read: an ACL must allow DescribeConfigs on topic "
                            f"{name!r}"
                        )
                        states[name] = replace(states[name], hidden=hidden)
                        continue
                    options = {
                        key: str(entry["value"])
                        for key, entry in found.items()
                        if entry.get("value") is not None
                    }
                    compacted = "compact" in options.get("cleanup.policy", "")
                    states[name] = replace(states[name], compacted=compacted, options=options)
        return states

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they
        are."""
        wanted = {
            spec.name: {
                "num_partitions": -1 if spec.partitions is None else spec.partitions,
                "configs": options_of(spec),
            }
            for spec in topics
        }
        if not wanted:
            return
        with translated("creating topics"):
            answer = self._admin.create_topics(wanted, raise_errors=False)
            for topic in answer["topics"]:
                kind = kafka_errors.for_code(topic["error_code"])
                if kind in (kafka_errors.NoError, kafka_errors.TopicAlreadyExistsError):
                    continue
                text = (
                    f"topic {topic['name']!r} cannot be created: "
                    f"{topic.get('error_message') or kind.__name__}"
                )
                if issubclass(kind, kafka_errors.AuthorizationError):
                    text += f" (an ACL must allow Create on topic {topic['name']!r} or on the cluster)"
                if issubclass(kind, kafka_errors.RetriableError):
                    raise BusUnavailable(text)
                raise ConfigurationError(text)
            deadline = time.monotonic() + self._patience
            self._admin.wait_for_topics(list(wanted), timeout_ms=int(self._patience * 1000))
            for broker in self._admin._manager.cluster.brokers():
                while not self._knows(broker.node_id, wanted) and time.monotonic() < deadline:
                    time.sleep(PAUSE_SECONDS)

    def _knows(self, node: int, names: Iterable[str]) -> bool:
        """Whether a broker knows these topics: the others hear of new ones later than the one that was asked
        to create them. One that does not answer is not waited for."""
        asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        manager = self._admin._manager
        try:
            answer = manager.run(
                manager.send, MetadataRequest(topics=asked, allow_auto_topic_creation=False), node
            )
        except kafka_errors.KafkaError:
            return True
        unknown = kafka_errors.UnknownTopicOrPartitionError.errno
        return all(topic.error_code != unknown for topic in answer.topics)

    def look_up(self, names: list[str]) -> dict[str, int | Exception | None]:
        """The partitions of topics; or why one cannot be used; None for a topic that does not exist."""
        with translated("looking up topics"):
            return {found["name"]: _partitions_of(found) for found in self._admin.describe_topics(names)}


def _partitions_of(found: Any) -> int | Exception | None:
    code, name = found.get("error_code", 0), found["name"]
    if code == kafka_errors.UnknownTopicOrPartitionError.errno:
        return None
    if code == kafka_errors.TopicAuthorizationFailedError.errno:
        return ConfigurationError(f"topic {name!r} is not authorised: {needed(name)}")
    if code == kafka_errors.InvalidTopicError.errno:
        return ConfigurationError(f"{name!r} is not a valid topic name")
    if code:
        return BusUnavailable(f"topic {name!r}: {kafka_errors.for_code(code).__name__}")
    return len(found["partitions"])
