"""A worker whose line to the brokers is slow, as by satellite: every answer takes more than half a second."""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress

import pytest
from broker import Broker

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, Subscription, connect

pytestmark = pytest.mark.broker

# In each direction.
DELAY_SECONDS = 0.3
PATIENCE_SECONDS = 90.0


class SlowLine:
    """A proxy for one node that passes each piece of a connection on after ``delay`` seconds."""

    def __init__(self) -> None:
        self.delay = 0.0
        self._target = 0
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.ports: list[int] = [self._listener.getsockname()[1]]
        threading.Thread(target=self._accept, name="slow line", daemon=True).start()

    def forward_to(self, ports: Sequence[int]) -> None:
        """Lead to this node."""
        (self._target,) = ports

    def close(self) -> None:
        """Take no more connections, and break those that there are."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    node = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    client.close()
                    continue
                self._ends |= {client, node}
                for ends in ((client, node), (node, client)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                time.sleep(self.delay)
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(name="line", scope="module")
def _line() -> Iterator[tuple[SlowLine, Broker]]:
    with closing(SlowLine()) as line, Broker(proxy=line) as broker:
        yield line, broker
    for end in line._ends:
        end.close()


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_member_begins_over_a_slow_line(line: tuple[SlowLine, Broker], scheme: str) -> None:
    """Protects a worker far from its brokers: it must not ask so impatiently that it never hears an answer,
    nor begin all inputs of a partition anew because one of them has not begun."""
    slow, broker = line
    url = f"{scheme}://{broker.address}"
    inputs = tuple(f"slow-{uuid.uuid4().hex[:8]}" for _ in range(6))
    with closing(connect(url)) as near:
        near.create([TopicSpec(name, 2, compacted=False) for name in inputs])
        near.write([Outgoing(name, None, b"x", number) for name in inputs for number in range(2)])
    slow.delay = DELAY_SECONDS
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        with (
            closing(connect(url)) as far,
            closing(far.session(Subscription(uuid.uuid4().hex, inputs))) as session,
        ):
            seen: set[tuple[str, int]] = set()
            while len(seen) < 2 * len(inputs):
                assert time.monotonic() < deadline, f"only {seen} began"
                seen |= {(record.topic, record.partition) for record in session.poll(0.5, 100).records}
    finally:
        slow.delay = 0.0
