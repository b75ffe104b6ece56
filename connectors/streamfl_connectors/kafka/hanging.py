"""Releases a group's offsets that a transaction holds although it is over, for either connector.

A request that puts offsets into a transaction (TxnOffsetCommit) may arrive after the transaction's end. A
broker that does not ask the transaction's coordinator about it takes it for the beginning of another
transaction, which nobody ends. From then on a request for the group's stable offsets has to wait. Only
kafka-python can ask about transactions as this module does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer
from kafka import TopicPartition as KafkaPartition
from kafka import errors as kafka_errors
from kafka.admin import TransactionState
from kafka.errors import KafkaError
from kafka.structs import ConsumerGroupMetadata

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, transactional_prefix
from streamfl.runtime.log import logger
from streamfl_connectors.kafka.clients import complete, discard, end_once, wait_for_brokers
from streamfl_connectors.kafka.cluster import KafkaCluster
from streamfl_connectors.kafka.options import CLIENT_DEFAULTS, PRODUCER_DEFAULTS

__all__ = ["HeldOffsets", "offsets_partition"]

OFFSETS = "__consumer_offsets"
# Time for one answer of a cluster that is there.
ANSWER_SECONDS = 5.0
OVER = {
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
    TransactionState.DEAD,
}

log = logger(__name__)


class HeldOffsets:
    """Finds the transactions that hold offsets of a group, and ends those that are over.

    cluster: the cluster and the user's options, by kafka-python's names.
    group: the consumer group.
    """

    def __init__(self, cluster: KafkaCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    def release(self) -> str:
        """Have the cluster drop offsets that transactions of this group's workers hold although they are
        over.

        A further transaction of the same transactional id, and so of the same producer, touches the group's
        offsets and is aborted. The broker then drops everything that the producer had left there, and accepts
        nothing of its earlier epochs. Returns what is still held, and what an operator can do about it; "" if
        nothing is held.
        """
        try:
            settings = {"request_timeout_ms": int(ANSWER_SECONDS * 1000)}
            with closing(self._cluster.make(KafkaAdminClient, CLIENT_DEFAULTS, **settings)) as admin:
                return self._release(admin)
        except kafka_errors.TopicAuthorizationFailedError:
            return (
                "If a finished transaction still holds the group's offsets, this worker is not allowed to "
                f"see it. An ACL that allows Read on topic {OFFSETS!r} lets it see that, and end a "
                "transaction of its own group. An operator can use kafka-transactions.sh."
            )
        except (BusUnavailable, ConfigurationError, KafkaError):
            # No answer, as in any outage: the caller that asks for the offsets reports it.
            return ""

    def _release(self, admin: Any) -> str:
        (found,) = admin.describe_topics([OFFSETS])
        raised = kafka_errors.for_code(found["error_code"])
        if raised is not kafka_errors.NoError:
            raise raised(OFFSETS)
        place = KafkaPartition(OFFSETS, offsets_partition(self._group, len(found["partitions"])))
        before = _open_in(admin, place)
        if not before:
            return ""
        listed = admin.list_transactions(producer_id_filters=[producer for producer, _ in before])
        names = {one.producer_id: one for each in listed.values() for one in each}
        # A transaction that was open before its state was asked for, over then, and is still open now will
        # not end by itself.
        held = {one: epoch for one, epoch in _open_in(admin, place).items() if one in before}
        left = []
        for (producer, start), epoch in held.items():
            known = names.get(producer)
            whose = f"producer {producer}, epoch {epoch}, from offset {start} on"
            if known is None:
                left.append(f"{whose}, of a transactional id that this worker cannot see")
                continue
            own = known.transactional_id.startswith(transactional_prefix(self._group))
            if known.state in OVER and own:
                self._end(known.transactional_id)
            elif known.state in OVER or own:
                left.append(f"{whose}, of {known.transactional_id!r}, in state {known.state.value}")
        return _told(place, left) if left else ""

    def _end(self, transactional_id: str) -> None:
        """Drop the producer's offsets of the group. A live worker with this id makes a new producer, and does
        its step again."""
        milliseconds = ANSWER_SECONDS * 1000
        settings = {"transactional_id": transactional_id, "max_block_ms": int(milliseconds)}
        producer = self._cluster.make(KafkaProducer, PRODUCER_DEFAULTS, **settings)
        try:
            wait_for_brokers(producer)
            end_once(producer)
            producer.init_transactions()
            producer.begin_transaction()
            transactions = producer._transaction_manager
            # No offsets: it is enough that the group's partition takes part in the transaction, and so in its
            # end.
            complete(
                producer,
                transactions.send_offsets_to_transaction({}, ConsumerGroupMetadata(self._group)),
                milliseconds,
            )
            complete(producer, transactions.begin_abort(), milliseconds)
        finally:
            discard(producer)
        log.warning(
            "a finished transaction still held offsets of the group: they were dropped",
            transactional_id=transactional_id,
        )


def offsets_partition(group: str, partitions: int) -> int:
    """The partition of the offsets' topic that has a group's offsets, out of ``partitions``: by Java's hash
    of a text."""
    encoded = group.encode("utf-16-be")
    value = 0
    for (unit,) in struct.iter_unpack(">H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - 2**32 if value >= 2**31 else value
    return (0 if signed == -(2**31) else abs(signed)) % partitions


def _open_in(admin: Any, place: KafkaPartition) -> Mapping[tuple[int, int], int]:
    """The epochs of producers with an open transaction in a partition, by producer and the offset where the
    transaction began."""
    producers = admin.describe_producers([place])[place].active_producers
    return {
        (one.producer_id, one.current_transaction_start_offset): one.producer_epoch
        for one in producers
        if one.current_transaction_start_offset >= 0
    }


def _told(place: KafkaPartition, held: list[str]) -> str:
    return (
        f"The group's offsets are in topic {place.topic!r}, partition {place.partition}, which has open "
        f"transactions: {'; '.join(held)}. The coordinator ends a transaction in state Ongoing, "
        "PrepareCommit or PrepareAbort: if one stays, check the brokers. A transaction in another state is "
        "finished but stays for ever, and no worker may end it. An operator can: kafka-transactions.sh "
        f"--bootstrap-server HOST:PORT abort --topic {place.topic} --partition {place.partition} "
        "--start-offset OFFSET"
    )
