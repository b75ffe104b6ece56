"""A proxy between Kafka's clients and brokers that delays one EndTxn request, or loses its answer.

EndTxn is the request that ends a transaction. It carries a producer's id and epoch, but does not identify the
transaction. A late one ends whatever transaction that epoch has open by then. Networks delay requests; this
proxy does it on purpose::

    with EndTxnProxy(nodes=3) as proxy, Broker(nodes=3, proxy=proxy) as broker:
        caught = proxy.catch(Fault.KEEP_AND_BREAK, deliver=Moment(produce_requests=2))
        ...                                  # clients of broker.url commit
        caught.kept.wait(30)                 # an EndTxn was kept back, the client's connection is broken
        caught.answered.wait(30)             # it reached its broker, in the midst of a later transaction
        assert caught.error != 0             # refused, as it should be
        assert not proxy.doubtful            # no transaction began under an epoch whose EndTxn may come

Clients reach the brokers only through the proxy. Brokers reach each other directly. The proxy runs in a
thread of its own."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any

__all__ = ["Caught", "EndTxn", "EndTxnProxy", "Fault", "Moment"]

PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END_TXN = 0, 24, 25, 26
# From these versions on, a request's header ends in tagged fields, and its strings have lengths of variable
# size.
FLEXIBLE = {PRODUCE: 9, ADD_PARTITIONS: 3, ADD_OFFSETS: 3, END_TXN: 3}
# Later versions name several transactions. Only brokers use them.
LAST_OF_ONE_TRANSACTION = 3
BUFFER_BYTES = 2**20


class Fault(Enum):
    """What happens to an EndTxn.

    KEEP: it does not arrive, and the client waits for the answer. KEEP_AND_BREAK: it does not arrive, and the
    client's connection breaks. LOSE_ANSWER: it arrives, but the connection breaks before the answer.

    A kept request can be delivered later.
    """

    KEEP = "keep"
    KEEP_AND_BREAK = "keep and break"
    LOSE_ANSWER = "lose answer"


@dataclass(frozen=True)
class Moment:
    """When a kept EndTxn arrives: before the n-th Produce request of the following transactions, which waits
    for that. With ``slow_node``, from 0: the Produce requests to that node wait, and the EndTxn arrives
    ``slow_seconds`` after the first one."""

    produce_requests: int = 1
    slow_node: int | None = None
    slow_seconds: float = 0.6


@dataclass(frozen=True)
class EndTxn:
    """An EndTxn as it was sent. committed: False for an abort."""

    transactional_id: str
    producer_id: int
    epoch: int
    committed: bool


@dataclass
class Caught:
    """An EndTxn that was caught, or is to be caught.

    kept: set when it was caught; ``request`` is the request.
    answered: set when its broker answered after the delivery, with ``error``, 0 for none.
    sent_again: EndTxn requests of the same producer id and epoch since then.
    """

    fault: Fault
    committed: bool | None
    transactional_id: str
    moment: Moment | None
    on_answered: Callable[[], object]
    kept: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)
    request: EndTxn | None = None
    error: int | None = None
    sent_again: int = 0
    produced: int = 0
    following: bool = False
    delivered: bool = False
    connection: Any = None
    frames: list[bytes] = field(default_factory=list)

    def fits(self, request: EndTxn) -> bool:
        """Whether this request is one to catch."""
        return (
            self.committed in (None, request.committed) and self.transactional_id in request.transactional_id
        )


class EndTxnProxy:
    """A proxy for ``nodes`` brokers. Clients connect to its ``ports`` on 127.0.0.1, one for each node.

    sent: every EndTxn of clients, in order.
    doubtful: requests that began or widened a transaction under a producer id and epoch after an EndTxn of
        these whose answer did not reach the client. There should be none.
    delay: seconds that each request and each answer takes longer, on every connection.
    """

    def __init__(self, nodes: int = 1) -> None:
        self.ports: list[int] = []
        self.sent: list[EndTxn] = []
        self.doubtful: list[EndTxn] = []
        self.delay = 0.0
        self.unanswered: Counter[tuple[int, int]] = Counter()
        self._nodes = nodes
        self._targets: list[int] = []
        self._armed: Caught | None = None
        self._caught: list[Caught] = []
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="end-txn proxy", daemon=True)

    def __enter__(self) -> EndTxnProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def forward_to(self, ports: Sequence[int]) -> None:
        """Makes the i-th port of the proxy lead to the i-th of these. Called by the broker that is started
        behind the proxy."""
        self._targets = list(ports)

    def catch(
        self,
        fault: Fault,
        committed: bool | None = None,
        transactional_id: str = "",
        deliver: Moment | None = None,
        on_answered: Callable[[], object] = lambda: None,
    ) -> Caught:
        """Apply this fault to the next EndTxn. Another call replaces one that has not been caught yet; caught
        ones stay.

        committed: only to a commit (True) or an abort (False).
        transactional_id: only if the id contains this text.
        deliver: when it arrives after all; without it, only by :meth:`deliver`.
        on_answered: called in the proxy's thread when the late request was answered, before anything that
        waits for it goes on."""
        caught = Caught(fault, committed, transactional_id, deliver, on_answered)
        self._loop.call_soon_threadsafe(self._arm, caught)
        return caught

    def deliver(self, caught: Caught, seconds: float = 10.0) -> bool:
        """Deliver a kept EndTxn now, and wait for its broker's answer. False if none comes in time."""
        self._loop.call_soon_threadsafe(self._deliver, caught)
        return caught.answered.wait(seconds)

    # ---- in the thread of the proxy

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _listen(self) -> None:
        for node in range(self._nodes):
            server = await asyncio.start_server(self._server_of(node), "127.0.0.1", 0, limit=BUFFER_BYTES)
            self._servers.append(server)
            self.ports.append(int(server.sockets[0].getsockname()[1]))

    def _server_of(self, node: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await _Connection(self, node, reader, writer).serve(self._targets[node])
            except (OSError, IndexError, asyncio.CancelledError):
                # No broker is behind it yet, or not any more.
                writer.transport.abort()
            finally:
                self._tasks.discard(task)

        return serve

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for caught in self._caught:
            if caught.connection is not None:
                caught.connection.drop()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Transports close in the next iteration of the event loop.
        await asyncio.sleep(0.01)

    def _arm(self, caught: Caught) -> None:
        self._armed = caught

    def _deliver(self, caught: Caught) -> None:
        if caught.connection is not None and not caught.delivered:
            caught.delivered = True
            for frame in caught.frames:
                caught.connection.up(frame)

    def take(self, request: EndTxn) -> Caught | None:
        """Records an EndTxn. Returns what to do with it, if it is the one to catch."""
        self.sent.append(request)
        self.unanswered[request.producer_id, request.epoch] += 1
        for caught in self._caught:
            one = caught.request
            assert one is not None
            caught.sent_again += (one.producer_id, one.epoch) == (request.producer_id, request.epoch)
        caught, self._armed = self._armed, None
        if caught is None or not caught.fits(request):
            self._armed = caught
            return None
        caught.request = request
        self._caught.append(caught)
        return caught

    def note_answer(self, request: EndTxn) -> None:
        """An EndTxn's answer reaches the client."""
        self.unanswered[request.producer_id, request.epoch] -= 1

    def note_transaction(self, request: EndTxn) -> None:
        """A transaction of this producer id and epoch begins or continues."""
        if self.unanswered[request.producer_id, request.epoch]:
            self.doubtful.append(request)
        for caught in self._caught:
            caught.following = caught.following or caught.transactional_id in request.transactional_id

    async def wait(self) -> None:
        """Before a request or an answer is passed on."""
        if self.delay:
            await asyncio.sleep(self.delay)

    async def before_produce(self, node: int, transactional_id: str) -> None:
        """Delivers a late EndTxn first, if this is its moment."""
        for caught in self._caught:
            moment = caught.moment
            # Without a connection no request was kept that could arrive.
            if moment is None or caught.connection is None or caught.answered.is_set():
                continue
            if not caught.following or caught.transactional_id not in transactional_id:
                continue
            if moment.slow_node is not None:
                if node != moment.slow_node:
                    continue
                if not caught.produced:
                    self._loop.call_later(moment.slow_seconds, self._deliver, caught)
                caught.produced += 1
            else:
                caught.produced += 1
                if caught.produced < moment.produce_requests:
                    continue
                self._deliver(caught)
            while not caught.answered.is_set():
                await asyncio.sleep(0.002)


class _Connection:
    """A client's connection, and the matching one to its broker."""

    def __init__(
        self, proxy: EndTxnProxy, node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy, self._node = proxy, node
        self._reader, self._writer = reader, writer
        self._requests: dict[int, tuple[int, EndTxn]] = {}
        self._kept: Caught | None = None
        self._loses: int | None = None
        self._client_is_there = True

    async def serve(self, port: int) -> None:
        self._answers, self._broker = await asyncio.open_connection("127.0.0.1", port, limit=BUFFER_BYTES)
        down = asyncio.create_task(self._bring_answers())
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                while True:
                    frame = await _frame(self._reader)
                    await self._proxy.wait()
                    await self._pass_on(frame)
            self._client_is_there = False
            if self._kept is not None and not self._kept.answered.is_set():
                # The request is on its way although its sender is gone.
                await down
        finally:
            self.drop()
            down.cancel()

    def up(self, frame: bytes) -> None:
        self._broker.write(struct.pack(">i", len(frame)) + frame)

    def drop(self) -> None:
        self._broker.transport.abort()
        self._writer.transport.abort()

    async def _pass_on(self, frame: bytes) -> None:
        key, version, number = struct.unpack_from(">hhi", frame)
        if self._kept is not None and not self._kept.delivered:
            self._kept.frames.append(frame)
            return
        if key == PRODUCE:
            transactional_id, _ = _transactional_id(frame, key, version)
            if transactional_id:
                await self._proxy.before_produce(self._node, transactional_id)
        elif key in (ADD_PARTITIONS, ADD_OFFSETS) and version <= LAST_OF_ONE_TRANSACTION:
            self._proxy.note_transaction(_parsed(frame, key, version))
        elif key == END_TXN:
            request = _parsed(frame, key, version)
            self._requests[number] = (version, request)
            caught = self._proxy.take(request)
            if caught is not None:
                if caught.fault is Fault.LOSE_ANSWER:
                    self._loses = number
                else:
                    self._kept, caught.connection = caught, self
                    caught.frames.append(frame)
                caught.kept.set()
                if caught.fault is Fault.KEEP_AND_BREAK:
                    self._writer.transport.abort()
                if caught.fault is not Fault.LOSE_ANSWER:
                    return
        self.up(frame)
        await self._broker.drain()

    async def _bring_answers(self) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                frame = await _frame(self._answers)
                await self._proxy.wait()
                (number,) = struct.unpack_from(">i", frame)
                if number in self._requests:
                    version, request = self._requests.pop(number)
                    if self._loses == number:
                        break
                    if self._client_is_there:
                        self._proxy.note_answer(request)
                    if self._kept is not None and self._kept.request is request:
                        # Correlation id, tagged fields of a flexible header, throttle time, error.
                        at = 4 + (version >= FLEXIBLE[END_TXN]) + 4
                        (self._kept.error,) = struct.unpack_from(">h", frame, at)
                        self._kept.on_answered()
                        self._kept.answered.set()
                        if not self._client_is_there:
                            break
                if self._client_is_there:
                    self._writer.write(struct.pack(">i", len(frame)) + frame)
                    await self._writer.drain()
        if self._kept is not None and not self._kept.answered.is_set():
            # Its broker is gone, so it never arrives.
            self._kept.answered.set()
        self.drop()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


def _transactional_id(frame: bytes, key: int, version: int) -> tuple[str, int]:
    """The string at the beginning of the body, '' for none, and the position after it."""
    (length,) = struct.unpack_from(">h", frame, 8)
    at = 10 + max(length, 0)
    if version >= FLEXIBLE[key]:
        # Clients send no tagged fields here.
        length, at = _varint(frame, at + 1)
        length -= 1
    else:
        (length,) = struct.unpack_from(">h", frame, at)
        at += 2
    length = max(length, 0)
    return frame[at : at + length].decode(), at + length


def _parsed(frame: bytes, key: int, version: int) -> EndTxn:
    """Id, producer id and epoch, which begin all requests about one transaction; for EndTxn, whether it
    commits."""
    transactional_id, at = _transactional_id(frame, key, version)
    producer_id, epoch = struct.unpack_from(">qh", frame, at)
    return EndTxn(transactional_id, producer_id, epoch, key == END_TXN and frame[at + 10] != 0)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if not byte & 128:
            return value, at
