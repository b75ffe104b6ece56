"""The producer of a session, and how a step becomes visible with it, with kafka-python."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.errors import KafkaError

from streamfl.runtime.bus import CommitRefused, Step
from streamfl_connectors.kafka.clients import complete, discard, end_once, wait_for_brokers
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.failures import named
from streamfl_connectors.kafka.library_positions import library_offsets
from streamfl_connectors.kafka.membership import KafkaMembership
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS
from streamfl_connectors.kafka.sending import publish
from streamfl_connectors.kafka.topics import KafkaTopics

__all__ = ["KafkaCommits"]

ABORT_SECONDS = 10.0


class KafkaCommits:
    """Owns a producer, and makes a new one when the last was fenced or broke: such a producer cannot be
    revived.

    transactional_id: the name by which the cluster fences earlier producers; None: without transactions.
    """

    def __init__(self, cluster: KafkaCluster, topics: KafkaTopics, transactional_id: str | None) -> None:
        self._cluster = cluster
        self._topics = topics
        self._transactional_id = transactional_id
        self.producer: Any = None
        # Made now, so that a missing right on the transactional id stops the start and not the first commit.
        self._ready()

    def settle(self) -> None:
        """Have the cluster decide a transaction if the last commit does not know whether it was committed."""
        if self._transactional_id is not None:
            self._ready()

    def commit(self, step: Step, member: KafkaMembership | None) -> None:
        """Make the step visible. member: fences the step; None if the session has no inputs."""
        limits = self._topics.limits({record.topic for record in (*step.outputs, *step.changelog)})
        if self._transactional_id is None:
            # The library commits no offsets while a join is under way, and the outputs would already be
            # written.
            if step.positions and member is not None and member.rejoining and not member.still_a_member():
                raise CommitRefused("the group is moving partitions")
            self._commit_in_order(step, limits, member)
            return
        try:
            self._commit_transaction(step, limits, member)
        except kafka_errors.CommitFailedError:
            if member is None or not member.still_a_member():
                raise
            self._commit_transaction(step, limits, member)

    def close(self) -> None:
        """Close the producer. Safe to call twice."""
        if self.producer is not None:
            self._replace(self.producer)

    def _ready(self) -> Any:
        if self.producer is None:
            settings: dict[str, Any] = {"max_block_ms": int(self._cluster.connect_timeout * 1000)}
            if self._transactional_id is not None:
                settings["transactional_id"] = self._transactional_id
            producer = self._cluster.make(KafkaProducer, PRODUCER_DEFAULTS, **settings)
            if self._transactional_id is not None:
                wait_for_brokers(producer)
                end_once(producer)
                try:
                    producer.init_transactions()
                except BaseException:
                    discard(producer)
                    raise
            self.producer = producer
        return self.producer

    def _commit_transaction(
        self, step: Step, limits: Mapping[str, int], member: KafkaMembership | None
    ) -> None:
        producer = self._ready()
        transactions = producer._transaction_manager
        wait = self._cluster.write_timeout * 1000
        ending = False
        try:
            producer.begin_transaction()
            # The order matters: committing with a failed send succeeds and loses it, and committing with a
            # refused partition in flight hangs. So: flush, look at every future, then the offsets, then the
            # commit. The library's own calls for the last two wait for ever; waiting on their results does
            # not.
            publish(producer, [*step.outputs, *step.changelog], limits, self._cluster.write_timeout)
            positions = {**({} if member is None else member.fence(step)), **step.positions}
            if member is not None and positions:
                with named(lambda: self._topics.unreadable({topic for topic, _ in positions})):
                    complete(
                        producer,
                        transactions.send_offsets_to_transaction(library_offsets(positions), member.group),
                        wait,
                    )
            ending = True
            complete(producer, transactions.begin_commit(), wait)
        except BaseException:
            if ending:
                # Its EndTxn may be under way, and could overtake an abort in the same epoch.
                self._replace(producer)
            else:
                self._abort(producer)
            raise

    def _abort(self, producer: Any) -> None:
        try:
            if not producer._transaction_manager.has_fatal_error():
                complete(producer, producer._transaction_manager.begin_abort(), ABORT_SECONDS * 1000)
                return
        except (KafkaError, AssertionError):
            pass
        self._replace(producer)

    def _replace(self, producer: Any) -> None:
        """Close a producer. The next one with this id has the cluster decide what this one leaves
        undecided."""
        self.producer = None
        discard(producer)

    def _commit_in_order(self, step: Step, limits: Mapping[str, int], member: KafkaMembership | None) -> None:
        producer = self._ready()
        try:
            for records in (step.outputs, step.changelog):
                if member is not None:
                    member.make_sure(partial(member.commit, timeout=self._cluster.write_timeout))
                publish(producer, records, limits, self._cluster.write_timeout)
        except BaseException:
            self._replace(producer)
            raise
        if member is not None and step.positions:
            member.commit(step.positions, self._cluster.write_timeout)
