"""The producer of a session, and how a step becomes visible with it, with librdkafka."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException, TopicPartition

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, CommitRefused, Outgoing, Step
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.failures import translated
from streamfl_connectors.librdkafka.membership import LibrdkafkaMembership
from streamfl_connectors.librdkafka.writer import Writer, ready_writer
from streamfl_connectors.outgoing import check_records
from streamfl_connectors.topics import Topics

__all__ = ["LibrdkafkaCommits", "checked_limits"]

ABORT_SECONDS = 10.0
SIZE_OPTION = "bus.options 'message.max.bytes'"


def checked_limits(topics: Topics, records: Sequence[Outgoing]) -> dict[str, int]:
    """The largest record of each of the records' topics, in bytes; errors as :func:`check_records`."""
    names = {record.topic for record in records}
    limits = topics.limits(names)
    check_records(records, limits, topics.require(names), SIZE_OPTION)
    return limits


class LibrdkafkaCommits:
    """Owns a writer, and makes a new one when the last was fenced or broke: such a producer cannot be
    revived.

    transactional_id: the name by which the cluster fences earlier writers; None: without transactions.
    """

    def __init__(
        self, cluster: LibrdkafkaCluster, topics: Topics, transactional_id: str | None, group: str
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._transactional_id = transactional_id
        self._group = group
        self.writer: Writer | None = None
        # Made now, so that a missing right on the transactional id stops the start and not the first commit.
        self._ready({})

    def settle(self) -> None:
        """Have the cluster decide a transaction if the last commit does not know whether it was committed."""
        if self._transactional_id is not None:
            self._ready({})

    def commit(self, step: Step, member: LibrdkafkaMembership | None) -> None:
        """Make the step visible. member: fences the step; None if the session has no inputs."""
        limits = checked_limits(self._topics, [*step.outputs, *step.changelog])
        if self._transactional_id is None:
            self._commit_in_order(step, limits, member)
        else:
            self._commit_transaction(step, limits, member)

    def close(self) -> None:
        """Close the producer. Safe to call twice."""
        if self.writer is not None:
            self._replace(self.writer)

    def _ready(self, limits: Mapping[str, int]) -> Writer:
        present, self.writer = self.writer, None
        self.writer = ready_writer(self._cluster, present, limits, self._transactional_id)
        return self.writer

    def _commit_transaction(
        self, step: Step, limits: Mapping[str, int], member: LibrdkafkaMembership | None
    ) -> None:
        writer = self._ready(limits)
        # One deadline for all calls: their own timeouts would add up to more than a worker may take for a
        # step.
        deadline = time.monotonic() + self._cluster.write_timeout

        def left() -> float:
            return max(0.1, deadline - time.monotonic())

        ending = False
        try:
            writer.client.begin_transaction()
            writer.send(step.outputs, left())
            writer.send(step.changelog, left())
            if member is not None and (
                positions := {**member.fence(step), **member.with_followers(step.positions)}
            ):
                offsets = [TopicPartition(*place, offset) for place, offset in positions.items()]
                # While the records are on their way.
                with translated("committing", self._group, (topic for topic, _ in positions)):
                    writer.send_offsets(offsets, member.group, left())
            writer.settle(left())
            ending = True
            writer.client.commit_transaction(left())
        except BaseException as error:
            try:
                reason = None if ending else writer.why_failed(self._group, limits)
                writer.blame(reason)
                if isinstance(reason, ConfigurationError) and isinstance(error, BusUnavailable):
                    # A record's topic was refused before the record, and the offsets came to a transaction
                    # that had failed.
                    raise reason from error
                with translated("committing", self._group):
                    raise
            except (CommitRefused, ConfigurationError):
                if ending:
                    # Its EndTxn may be under way, and could overtake an abort in the same epoch.
                    self._replace(writer)
                else:
                    self._abort(writer)
                raise
            except BaseException:
                # The library would abort this transaction without an error, and wait for ever in the next one
                # for the answer that this one did not get.
                self._replace(writer)
                raise
        if not writer.ended_for_certain():
            # It is committed, but an EndTxn that the library sent first may come late, and its epoch may have
            # no transaction then.
            self._replace(writer)

    def _abort(self, writer: Writer) -> None:
        try:
            writer.client.abort_transaction(ABORT_SECONDS)
        except (KafkaException, SystemError):
            self._replace(writer)
            return
        writer.forget()
        if not writer.ended_for_certain():
            self._replace(writer)

    def _replace(self, writer: Writer) -> None:
        """Close a writer. The next producer with this id has the cluster decide what this one leaves
        undecided."""
        self.writer = None
        writer.discard()

    def _commit_in_order(
        self, step: Step, limits: Mapping[str, int], member: LibrdkafkaMembership | None
    ) -> None:
        writer = self._ready(limits)
        try:
            with translated("writing", self._group, limits):
                for records in (step.outputs, step.changelog):
                    if member is not None:
                        member.make_sure(member.commit)
                    writer.send(records, self._cluster.write_timeout)
                    writer.settle(self._cluster.write_timeout)
        except BaseException:
            self._replace(writer)
            raise
        if member is not None and step.positions:
            positions = member.with_followers(step.positions)
            with translated("committing", self._group, (topic for topic, _ in positions)):
                member.commit(positions)
