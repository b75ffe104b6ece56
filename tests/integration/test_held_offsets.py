"""Offsets that a transaction still holds after its end, with both connectors, on a real broker that is set
not to verify them with the coordinator, like old brokers.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
from broker import Broker
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.admin import AbortTransactionSpec, TransactionState
from kafka.errors import KafkaTimeoutError
from kafka.protocol.producer.transaction import TxnOffsetCommitRequest
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata
from streamfl_connectors.kafka.hanging import OFFSETS, offsets_partition

from streamfl.runtime.bus import BusUnavailable, Outgoing, Step, Subscription, TopicSpec, connect

pytestmark = pytest.mark.broker

SECONDS = 30.0
# A broker's answer to a request of an old epoch.
FENCED = {47, 90}
OFFSETS_PARTITIONS = 8


@pytest.fixture(name="address", scope="module")
def _address() -> Iterator[str]:
    with Broker({"transaction.partition.verification.enable": "false"}) as broker:
        yield broker.address


class Federation:
    """A worker's session with a partition whose previous owner committed offset 1.

    admin: an operator's client.
    """

    def __init__(self, scheme: str, address: str, predecessor: str, stack: ExitStack) -> None:
        self.samples, self.group = f"topic-{uuid.uuid4().hex[:12]}", f"group-{uuid.uuid4().hex[:12]}"
        self.bus = stack.enter_context(closing(connect(f"{scheme}://{address}")))
        self.bus.create([TopicSpec(self.samples, 1, False)])
        self.bus.write([Outgoing(self.samples, None, b"x", 0)] * 5)
        self.admin = stack.enter_context(closing(KafkaAdminClient(bootstrap_servers=address)))
        self.name = predecessor.format(group=self.group)
        self.producer = stack.enter_context(
            closing(KafkaProducer(bootstrap_servers=address, transactional_id=self.name))
        )
        self.producer.init_transactions()
        self.begin(1)
        self.producer.commit_transaction()
        self._wait_until_over()
        self.session: Any = stack.enter_context(
            closing(self.bus.session(Subscription(self.group, (self.samples,))))
        )
        # Shorter than the longest possible transaction, to save time.
        self.session._decision_seconds = 1.0
        deadline = time.monotonic() + SECONDS
        while not self.session.poll(0.2, 1).assigned:
            assert time.monotonic() < deadline

    def begin(self, offset: int) -> None:
        """Opens a transaction of the previous owner that holds this offset."""
        self.producer.begin_transaction()
        offsets = {TopicPartition(self.samples, 0): OffsetAndMetadata(offset, "", -1)}
        self.producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(self.group))

    def late_offset(self, offset: int) -> int:
        """A TxnOffsetCommit that the previous owner sent before its end, and that arrives now. Returns the
        broker's answer."""
        producer = self.producer._transaction_manager.producer_id_and_epoch
        topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        partition = topic.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=self.group,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=[topic(name=self.samples, partitions=[partition])],
            max_version=3,
        )

        async def send() -> Any:
            return await self.admin._manager.send(request, node_id=1)

        return int(self.admin._manager.run(send).topics[0].partitions[0].error_code)

    def poll_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.session.poll(0.2, 1)

    def committed(self) -> int | None:
        """The committed offset that a worker requests before it restores its state."""
        found = self.session.committed(self.samples, 0)
        assert found is None or isinstance(found, int)
        return found

    def _wait_until_over(self) -> None:
        deadline = time.monotonic() + SECONDS
        while (
            self.admin.describe_transactions([self.name])[self.name].state
            is not TransactionState.COMPLETE_COMMIT
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_what_a_transaction_holds_after_its_end_is_dropped(scheme: str, address: str) -> None:
    """Protects a federation from stopping for ever: offsets of a worker's transaction that arrive after its
    end are dropped, not committed. The new owner reads the earlier committed offset and goes on, and no more
    such offsets are accepted.
    """
    with ExitStack() as stack:
        federation = Federation(scheme, address, "{group}:predecessor", stack)
        assert federation.late_offset(0) == 0
        assert federation.committed() == 1
        federation.session.commit(Step({(federation.samples, 0): 3}))
        assert federation.late_offset(0) in FENCED
        assert federation.committed() == 3


def test_what_no_worker_may_end_is_told(address: str) -> None:
    """Protects the operator: offsets that a stranger's transaction holds after its end are left alone. The
    worker says where they are, and its remedy works.
    """
    with ExitStack() as stack:
        federation = Federation("kafka+librdkafka", address, "stranger-{group}", stack)
        assert federation.late_offset(0) == 0
        place = TopicPartition(OFFSETS, offsets_partition(federation.group, OFFSETS_PARTITIONS))
        (held,) = [
            producer
            for producer in federation.admin.describe_producers([place])[place].active_producers
            if producer.current_transaction_start_offset >= 0
        ]
        with pytest.raises(
            BusUnavailable, match=rf"producer {held.producer_id}, .*--partition {place.partition} "
        ):
            federation.committed()
        # The tool does this when it gets a start offset.
        abort = AbortTransactionSpec(place, held.producer_id, held.producer_epoch, held.coordinator_epoch)
        federation.admin.abort_transaction(abort)
        assert federation.committed() == 1


def test_a_transaction_that_is_under_way_is_left_alone(address: str) -> None:
    """Protects a worker with an open transaction: a waiting worker reports it, and does not end it."""
    with ExitStack() as stack:
        federation = Federation("kafka", address, "{group}:slow", stack)
        federation.begin(2)
        with pytest.raises(BusUnavailable, match="in state Ongoing"):
            federation.committed()
        federation.producer.commit_transaction()
        federation.session._decision_seconds = SECONDS
        assert federation.committed() == 2


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_partition_that_cannot_begin_is_no_silence(scheme: str, address: str) -> None:
    """Protects readiness: if the offset becomes held after the worker requested it and before it reads, the
    session reports that and does not stall. The next request drops it.
    """
    with ExitStack() as stack:
        federation = Federation(scheme, address, "{group}:predecessor", stack)
        assert federation.committed() == 1
        assert federation.late_offset(0) == 0
        federation.session.member.beginnings.seconds = 0.5
        with pytest.raises(BusUnavailable, match="did not begin"):
            federation.poll_for(SECONDS)
        assert federation.committed() == 1


def test_an_answer_to_an_earlier_question_is_not_taken(address: str) -> None:
    """Protects a new owner from an old offset: kafka-python keeps a late answer, and returns it to the next
    request. Later commits would then be ignored.
    """
    with ExitStack() as stack:
        federation = Federation("kafka", address, "{group}:other", stack)
        consumer, place = federation.session.member.consumer, TopicPartition(federation.samples, 0)
        asked: Any = None
        while asked is None:
            with suppress(KafkaTimeoutError):
                consumer.committed(place, timeout_ms=1)
            asked = consumer._coordinator._offset_fetch_futures.get(frozenset([place]))
        deadline = time.monotonic() + SECONDS
        while not asked.is_done:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        federation.begin(2)
        federation.producer.commit_transaction()
        federation.session._decision_seconds = SECONDS
        assert federation.committed() == 2
