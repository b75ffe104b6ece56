"""Repairs the client library's producers, consumers and admin clients, and closes them.

This module uses the library's private parts, so the library is pinned to one exact version.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kafka import errors as kafka_errors
from kafka.errors import KafkaError
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.producer.transaction_manager import EndTxnHandler

from streamfl.runtime.bus import BusUnavailable

__all__ = [
    "LONGEST_REBALANCE_SECONDS",
    "PendingFetches",
    "answered",
    "ask_for_coordinators",
    "close_consumer",
    "complete",
    "discard",
    "end_once",
    "mend_connections",
    "mend_joins",
    "wait_for_brokers",
]

LONGEST_REBALANCE_SECONDS = 60


class PendingFetches:
    """Notices when a consumer's fetch is never answered.

    The library keeps a request back while its connection is being made, and no timeout applies there. If the
    broker goes away meanwhile the request may be forgotten: its partitions are not fetched again, and a poll
    waits for ever.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since: dict[int, tuple[Any, float]] = {}

    def check(self, consumer: Any) -> None:
        """BusUnavailable if one of this consumer's fetches has been waiting for more than ``patience``
        seconds."""
        now = time.monotonic()
        # Each fetch is held while it is watched, so that no other fetch gets its id.
        pending = [fetch for fetch in tuple(consumer._fetcher._fetch_futures) if not fetch.is_done]
        self._since = {id(fetch): self._since.get(id(fetch), (fetch, now)) for fetch in pending}
        if any(now - since > self._patience for _, since in self._since.values()):
            raise BusUnavailable(f"a broker has not answered a request for records for {self._patience:g} s")


def answered(admin: Any, seconds: float, question: Callable[..., Any], *arguments: Any) -> Any:
    """The result of an admin client's coroutine; KafkaTimeoutError after ``seconds``.

    The library bounds how often it asks a broker that answers. It waits much longer for a broker that does
    not answer at all."""

    async def bounded() -> Any:
        manager = admin._manager
        return await manager.wait_for(manager.call_soon(question, *arguments), seconds * 1000)

    return admin._manager.run(bounded)


def ask_for_coordinators(admin: Any) -> None:
    """Have an admin client look up a group's coordinator for each request.

    The library looks it up once and keeps the answer for ever. After a broker's death another broker
    coordinates the group, and the earlier coordinator refuses each request from then on.
    """
    admin._manager.cluster.get_coordinator = lambda key, kind=None: None


def discard(producer: Any) -> None:
    """Close a producer for good, whatever state it is in, in bounded time and without leaving its thread
    behind."""
    try:
        producer.close(timeout=2)
    except (KafkaError, AssertionError):
        # The first close may give up waiting and leave the thread running; forcing it fails what is left, and
        # then closing ends.
        producer._sender.force_close()
        producer._sender.join(5)
        with suppress(KafkaError, AssertionError):
            producer.close(timeout=1)


def close_consumer(consumer: Any) -> None:
    """Leave the group, if any, and close, in bounded time."""
    with suppress(KafkaError, RuntimeError, OSError):
        consumer.close(autocommit=False, timeout_ms=3000)


def complete(producer: Any, result: Any, timeout_ms: float) -> None:
    """Wait for the result of a transactional request; KafkaTimeoutError after that time."""
    producer._sender.wakeup()
    if not result.wait(timeout_ms=timeout_ms):
        raise kafka_errors.KafkaTimeoutError(
            f"the transaction coordinator did not answer in {timeout_ms / 1000:g} s"
        )


def mend_joins(coordinator: Any) -> None:
    """Repair three faults of the library's joins.

    An answer that comes between two polls counts. The library would begin another join instead of taking the
    answer. Where polls are shorter than a rebalance, that rebalance would never end, and each new generation
    would refuse the commits of all members.

    A member that was put out begins from nothing. If it learns this in the middle of a join, the library
    would go on with partitions that other members have by now.

    A rebalance takes at most ``LONGEST_REBALANCE_SECONDS``, as in Kafka Connect. Without this the other
    members wait five minutes for a member that shows signs of life but does not join. The library waits as
    long for an answer that got lost.
    """
    longest = LONGEST_REBALANCE_SECONDS * 1000
    # Between polls the heartbeat counts, which has its own configuration.
    coordinator.config["max_poll_interval_ms"] = min(coordinator.config["max_poll_interval_ms"], longest)
    join = coordinator._do_join_and_sync_async
    complete = coordinator._on_join_complete_async
    reset = coordinator.reset_generation
    answers: list[bytes] = []

    async def join_once() -> bytes:
        if not answers:
            answers.append(await join())
        return answers[0]

    async def complete_once(*arguments: Any) -> None:
        answers.clear()
        await complete(*arguments)

    def begin_anew(*arguments: Any, **named: Any) -> None:
        reset(*arguments, **named)
        answers.clear()
        # Otherwise the next attempt does not call the listener.
        coordinator.rejoining = False

    coordinator._do_join_and_sync_async = join_once
    coordinator._on_join_complete_async = complete_once
    coordinator.reset_generation = begin_anew


def mend_connections() -> None:
    """Repair two faults of the library's connections, in all clients of the process.

    Content that comes together with the close of a connection is read. The library drops it. A broker that
    refuses a password sends an error and closes: on a busy machine the refusal looked like a broker that is
    away.

    Between attempts the wait grows until a broker has answered. The library begins it anew when a connection
    is made, so behind a proxy whose broker is away it connects without a rest.
    """
    if not hasattr(KafkaTCPTransport._sock_recv, "__wrapped__"):
        for transport in (KafkaTCPTransport, KafkaSSLTransport):
            transport._sock_recv = _end_after_content(transport._sock_recv)
        KafkaConnectionManager.reset_backoff = _once_answered(KafkaConnectionManager.reset_backoff)


def _once_answered(reset: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def reset_backoff(manager: Any, node: Any) -> None:
        connection = manager._conns.get(node)
        if connection is not None and connection.connected:
            reset(manager, node)
        else:
            manager.update_backoff(node)

    return reset_backoff


def _end_after_content(receive: Callable[[Any], tuple[bytes, Any]]) -> Callable[[Any], tuple[bytes, Any]]:
    @functools.wraps(receive)
    def receive_first(transport: Any) -> tuple[bytes, Any]:
        content, error = receive(transport)
        # The next call finds the end again.
        return (content, None) if content else (content, error)

    return receive_first


def end_once(producer: Any) -> None:
    """Have a producer fail for good if its EndTxn was not answered, instead of sending EndTxn again.

    EndTxn ends a transaction. It names the producer and the epoch, but not the transaction (KAFKA-17754). The
    library sends it again when the connection breaks, and goes on when the second request is answered. The
    first request may still be under way then. When it arrives, it ends whatever transaction that epoch has
    begun by then: with records missing, or with records that were to be aborted. So no transaction may begin
    in such an epoch. A failed producer begins none, and the ``init_transactions`` of the next producer has
    the cluster refuse the epoch from then on. Any answer, also an error, shows that no request is under way
    any more, and the library handles answers well.
    """
    transactions = producer._transaction_manager
    enqueue = transactions._enqueue_request

    def enqueue_once(handler: Any) -> None:
        # A request that the library sends again after an answer also comes through here.
        if isinstance(handler, EndTxnHandler) and "on_complete" not in vars(handler):
            handler.on_complete = _fatal_unless_answered(handler.on_complete)
        enqueue(handler)

    transactions._enqueue_request = enqueue_once


def _fatal_unless_answered(take: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
    def on_complete(number: int, answer: Any) -> None:
        # A lost connection is the only exception that makes the library send again; every other one ends the
        # producer.
        lost = isinstance(answer, kafka_errors.KafkaConnectionError)
        take(
            number,
            KafkaError(f"the connection broke before EndTxn was answered ({answer})") if lost else answer,
        )

    return on_complete


def wait_for_brokers(producer: Any) -> None:
    """Have a transactional request wait for a broker that is away.

    If ``await_ready`` raises, the library drops the request, and its caller waits for ever. If it returns
    False, the library queues the request again.
    """
    client = producer._sender._client
    original = client.await_ready

    def await_ready(node: Any, timeout_ms: int = 30_000) -> bool:
        try:
            return bool(original(node, timeout_ms=timeout_ms))
        except KafkaError:
            time.sleep(0.1)
            return False

    client.await_ready = await_ready
