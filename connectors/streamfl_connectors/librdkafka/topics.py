"""The topics of a cluster, with librdkafka: described, created, looked up."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from streamfl.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, TopicSpec, TopicState
from streamfl_connectors.librdkafka.failures import needed, told, translated
from streamfl_connectors.topics import Topics, options_of

__all__ = ["LibrdkafkaTopics"]


class LibrdkafkaTopics(Topics):
    """The topics that an admin client of librdkafka sees.

    largest: the largest record that the producers send, in bytes.
    patience: seconds to wait for an answer, and for a topic that was created.
    """

    def __init__(self, admin: AdminClient, largest: int, patience: float) -> None:
        super().__init__(largest)
        self._admin = admin
        self._patience = patience
        self._identities: dict[str, str] = {}

    def describe(self, topics: Iterable[str]) -> dict[str, TopicState]:
        """The topics that exist, by name; ``error`` says what is wrong with one that cannot be used."""
        states: dict[str, TopicState] = {}
        readable: dict[str, int] = {}
        for name, found in self._look_up(topics).items():
            if isinstance(found, int):
                readable[name] = found
            elif found.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                states[name] = TopicState(name, 0, False, error=needed(name))
            elif found.code() == KafkaError.TOPIC_EXCEPTION:
                states[name] = TopicState(name, 0, False, error="not a valid topic name")
            elif found.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                states[name] = TopicState(name, 0, False, error=found.str())
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in readable]
        with translated("describing topics"):
            futures = self._admin.describe_configs(resources, request_timeout=self._patience) if resources else {}
        for resource, future in futures.items():
            name = resource.name
            try:
                entries = future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise told("describing topics", error.args[0], "", name) from error
                denied = f"its configuration cannot be read: an ACL must allow DescribeConfigs on topic {name!r}"
                states[name] = TopicState(name, readable[name], False, error=denied)
            else:
                options = {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}
                compacted = "compact" in options.get("cleanup.policy", "")
                states[name] = TopicState(name, readable[name], compacted, options, identity=self._identities[name])
        return states

    def create(self, topics: Sequence[TopicSpec]) -> None:
        """Create topics that do not exist yet and wait until they can be used; existing ones stay as they are."""
        wanted = [
            NewTopic(
                spec.name,
                num_partitions=-1 if spec.partitions is None else spec.partitions,
                replication_factor=-1,
                config=dict(options_of(spec)),
            )
            for spec in topics
        ]
        if not wanted:
            return
        for name, future in self._admin.create_topics(wanted, request_timeout=self._patience).items():
            try:
                future.result()
            except KafkaException as failure:
                error = failure.args[0]
                if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                text = f"topic {name!r} cannot be created: {error.str()}"
                if error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                    text += f" (an ACL must allow Create on topic {name!r} or on the cluster)"
                if error.retriable() or error.code() < 0:
                    raise BusUnavailable(text) from failure
                raise ConfigurationError(text) from failure
        deadline = time.monotonic() + self._patience
        while not all(isinstance(found, int) for found in self._look_up(spec.name for spec in topics).values()):
            if time.monotonic() > deadline:
                raise BusUnavailable(f"created topics cannot be used after {self._patience:g} s")
            time.sleep(0.02)

    def look_up(self, names: list[str]) -> dict[str, int | Exception | None]:
        """The partitions of topics; or why one cannot be used; None for a topic that does not exist."""
        return {name: _usable(name, found) for name, found in self._look_up(names).items()}

    def _look_up(self, topics: Iterable[str]) -> dict[str, int | KafkaError]:
        """The partitions of topics, or why they cannot be told."""
        names = sorted(set(topics))
        found: dict[str, int | KafkaError] = {}
        if not names:
            return found
        futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self._patience)
        for name, future in futures.items():
            try:
                description = future.result()
                found[name] = len(description.partitions)
                self._identities[name] = str(description.topic_id)
            except KafkaException as error:
                if error.args[0].code() < 0:
                    raise told("looking up topics", error.args[0], "", name) from error
                found[name] = error.args[0]
        return found


def _usable(name: str, found: int | KafkaError) -> int | Exception | None:
    if isinstance(found, int):
        return found
    return None if found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else told("looking up topics", found, "", name)
