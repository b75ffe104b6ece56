"""A producer of librdkafka that knows which of its records failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Outgoing
from streamfl_connectors.librdkafka.cluster import LibrdkafkaCluster
from streamfl_connectors.librdkafka.failures import cause_of, told, translated
from streamfl_connectors.librdkafka.log import EndTxnAnswers

__all__ = ["Writer", "ready_writer"]

LARGEST_BATCH = 1_000_000

# Added to the timeout of a call of the library.
GRACE_SECONDS = 2.0

# Time for a cluster that is there to answer an abort.
CLOSE_SECONDS = 5.0


class Writer:
    """A producer that knows which of its records failed: the library reports that by callbacks."""

    def __init__(self, cluster: LibrdkafkaCluster, batch_bytes: int, settings: Mapping[str, Any]) -> None:
        self.batch_bytes = batch_bytes
        self._failed: list[tuple[KafkaError, str]] = []
        self._answers = EndTxnAnswers()
        heard = {"debug": EndTxnAnswers.CONTEXT} if "transactional.id" in settings else {}
        self.client: Producer = cluster.make(
            Producer,
            **{
                "acks": "all",
                "enable.idempotence": True,
                # The same choice as in Java's clients and kafka-python.
                "partitioner": "murmur2_random",
                "batch.size": batch_bytes,
                # A call into Python for each record that was written without an error would cost more than
                # writing it.
                "delivery.report.only.error": True,
                "on_delivery": self._note,
                "logger": self._answers,
                **heard,
                **settings,
            },
        )

    def send(self, records: Iterable[Outgoing], timeout: float) -> None:
        """Hand records over; BusUnavailable if the library's bounded queue stays full for ``timeout``
        seconds."""
        produce = self.client.produce
        for record in records:
            partition = -1 if record.partition is None else record.partition
            try:
                if record.headers or record.timestamp is not None:
                    produce(
                        record.topic,
                        record.value,
                        record.key,
                        partition,
                        timestamp=_at(record),
                        headers=list(record.headers),
                    )
                else:
                    produce(record.topic, record.value, record.key, partition)
            except BufferError:
                self._send_when_there_is_room(record, partition, time.monotonic() + timeout)
            except KafkaException as error:
                if error.args[0].code() == KafkaError._FATAL:
                    # The next call that serves callbacks gives the reason.
                    with self._serving():
                        self.client.poll(0)
                raise told("writing", error.args[0], "", record.topic) from error

    def settle(self, timeout: float) -> None:
        """Wait until everything is acknowledged; raises the error of a record that failed, see
        :meth:`blame`."""
        with self._serving():
            left = self.client.flush(timeout)
        self.blame()
        if left:
            raise BusUnavailable(f"writing: {left} records were not acknowledged within {timeout:g} s")

    def send_offsets(self, offsets: list[TopicPartition], group: Any, timeout: float) -> None:
        """Make offsets part of the transaction; BusUnavailable if that takes longer than ``timeout`` seconds.

        If a broker goes away during the library's own call, the call may never return, whatever its timeout.
        It is left behind then, with its thread, and the writer has to be replaced.
        """
        raised: list[BaseException | None] = []

        def send() -> None:
            try:
                self.client.send_offsets_to_transaction(offsets, group, timeout)
                raised.append(None)
            except BaseException as error:
                raised.append(error)

        sending = threading.Thread(target=send, name="sending offsets", daemon=True)
        sending.start()
        sending.join(timeout + GRACE_SECONDS)
        if not raised:
            raise BusUnavailable(f"committing: the offsets were not accepted within {timeout:g} s")
        if raised[0] is not None:
            raise raised[0]

    def ended_for_certain(self) -> bool:
        """Whether one EndTxn, which was answered, ended the transaction that the library has just committed
        or aborted.

        If not, another EndTxn may still be under way, and no transaction may begin in this writer's epoch:
        the writer has to be replaced.
        """
        self.client.poll(0)
        return self._answers.only_success()

    def why_failed(self, group: str, topics: Iterable[str]) -> Exception | None:
        """The error of the open transaction, if it failed: its records' errors say only that they were
        purged.

        topics: of its records.
        """
        try:
            # In an open transaction this call fails, and its error says why the open one cannot go on.
            self.client.begin_transaction()
        except KafkaException as error:
            return (
                None
                if error.args[0].code() == KafkaError._STATE
                else told("committing", error.args[0], group, *sorted(topics))
            )
        return None

    def blame(self, reason: Exception | None = None) -> None:
        """Raise the error of the record that was to blame, if any failed. reason: an error that may have
        failed all of them."""
        if self._failed:
            # The other records in its batch or its transaction fail with it, with errors that say nothing.
            failures = [told("writing", error, "", topic) for error, topic in self._failed]
            failures += [] if reason is None else [reason]
            raise next(
                (failure for failure in failures if isinstance(failure, ConfigurationError)), failures[0]
            )

    def forget(self) -> None:
        """Forget failures: their transaction was aborted."""
        self._failed.clear()

    def discard(self) -> None:
        """Close the writer for good, whatever state it is in, in bounded time."""
        # Closing aborts an open transaction, and waits without end for a cluster that is away. The thread
        # ends when the cluster is back.
        closing = threading.Thread(target=self._close, name="closing a producer", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _close(self) -> None:
        # If warnings are errors, the library's warning that nothing could be aborted becomes a SystemError.
        with suppress(KafkaException, RuntimeError, SystemError):
            self.client.purge()
            self.client.flush(0)
            self.client.close()

    @contextmanager
    def _serving(self) -> Iterator[None]:
        """A context in which the library calls back. Raises the library's own exception, even if Python has
        replaced it."""
        try:
            yield
        except SystemError as error:
            # Python raises it if a callback was called while an exception was on its way, or if the exception
            # got lost there.
            raise KafkaException(
                cause_of(error) or KafkaError(KafkaError._FATAL, self._answers.fatal)
            ) from error

    def _note(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed.append((error, message.topic() or ""))

    def _send_when_there_is_room(self, record: Outgoing, partition: int, deadline: float) -> None:
        while True:
            self.client.poll(0.05)
            try:
                headers = list(record.headers)
                self.client.produce(
                    record.topic, record.value, record.key, partition, timestamp=_at(record), headers=headers
                )
                return
            except BufferError as error:
                if time.monotonic() > deadline:
                    raise BusUnavailable(
                        "writing: the queue of records that wait for the cluster is full"
                    ) from error


def _at(record: Outgoing) -> int:
    """The record's time in milliseconds; 0 leaves it to the library."""
    return 0 if record.timestamp is None else int(record.written_at(time.time()) * 1000)


def ready_writer(
    cluster: LibrdkafkaCluster,
    present: Writer | None,
    limits: Mapping[str, int],
    transactional_id: str | None = None,
) -> Writer:
    """A writer for topics with these limits in bytes: the present one if its batches are small enough.

    transactional_id: the name by which the cluster fences earlier writers; None: without transactions.
    """
    batch_bytes = min([LARGEST_BATCH, *limits.values()])
    if present is not None:
        # The broker refuses a batch above a topic's limit as a whole, even if its records are small enough.
        if present.batch_bytes <= batch_bytes:
            return present
        present.discard()
    if transactional_id is None:
        return Writer(cluster, batch_bytes, {})
    writer = Writer(cluster, batch_bytes, {"transactional.id": transactional_id})
    with translated("joining the cluster's transactions", transactional_id.rpartition(":")[0]):
        try:
            writer.client.init_transactions(cluster.connect_timeout)
        except BaseException:
            writer.discard()
            raise
    return writer
