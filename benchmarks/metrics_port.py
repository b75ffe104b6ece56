"""What strangers at the metrics port cost: learning beside 10,000 slow connections that come back when they
are dropped.

``python -m benchmarks.metrics_port PORT MANY`` is the strangers' process, ``… serve`` another worker's port.
"""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks import presets
from benchmarks.client_core import samples
from benchmarks.figures import Figure, size
from streamfl.runtime.health import Health
from streamfl.runtime.health_server import HealthServer
from streamfl.runtime.metrics import Metrics

CONNECTIONS, ROUNDS, SECONDS, CLIENTS = size(10_000, 50), size(8, 1), size(5.0, 0.2), size(64, 4)


def measure() -> Iterator[Figure]:
    client = presets.new_client("default", CLIENTS, 5, lockstep=False)
    batches = iter(range(1_000_000))

    def learn() -> None:
        number = next(batches)
        client.receive(samples(number, CLIENTS), number * 0.1)
        client.receive([], number * 0.1)
        list(client.changed_state())

    with HealthServer("127.0.0.1", 0, Health(), Metrics().render) as server, _process("serve") as elsewhere:
        assert elsewhere.stdout is not None
        other = int(elsewhere.stdout.readline())
        _rates(learn)
        wall, processor, share, threads = [], [], [], 0
        clock = time.pthread_getcpuclockid(server.thread)
        for _ in range(ROUNDS):
            control = _besieged(other, learn)
            taken, all_of_it = time.clock_gettime(clock), time.process_time()
            beside = _besieged(server.port, learn)
            share.append((time.clock_gettime(clock) - taken) / (time.process_time() - all_of_it))
            threads = max(threads, threading.active_count())
            wall.append(beside[0] / control[0])
            processor.append(beside[1] / control[1])
        elsewhere.kill()
    name = f"learning beside {CONNECTIONS:,} slow connections to its metrics port"
    yield Figure(
        f"{name}: samples a second, against the same to another process", median(wall), "x", goal=0.95
    )
    yield Figure(
        f"{name}: samples a second of processor time, against the same", median(processor), "x", goal=0.95
    )
    yield Figure(
        f"{name}: of the process's processor time, the port's", median(share), "x", goal=0.05, at_most=True
    )
    yield Figure(f"{name}: threads", threads, "")


def _process(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.metrics_port", *map(str, arguments)], stdout=subprocess.PIPE
    )


def _besieged(port: int, learn: Callable[[], None]) -> tuple[float, float]:
    """As ``_rates`` while strangers are at a port. They take of this machine themselves, wherever they go:
    both ports have some."""
    with _process(port, CONNECTIONS) as strangers:
        assert strangers.stdout is not None
        strangers.stdout.readline()
        found = _rates(learn)
        strangers.kill()
    # What still waited to be accepted goes.
    urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=600).read()
    return found


def _rates(learn: Callable[[], None]) -> tuple[float, float]:
    """Rounds of learning, for a second and for a second of this process's processor time."""
    rounds, began, worked = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - began < SECONDS:
        learn()
        rounds += 1
    return rounds / (time.perf_counter() - began), rounds / (time.process_time() - worked)


def _besiege(port: int, many: int) -> None:
    """Hold ``many`` connections that have said half a request, and open a new one for each that is
    dropped."""
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (many + 100, max(many + 100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    )
    selector = selectors.DefaultSelector()

    def come() -> None:
        connection = socket.socket()
        connection.setblocking(False)
        if connection.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
            connection.close()
            return
        selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)

    for _ in range(many):
        come()
    print("ready", flush=True)
    while True:
        for key, mask in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                if mask & selectors.EVENT_WRITE:
                    connection.send(b"GET /met")
                    selector.modify(connection, selectors.EVENT_READ)
                if mask & selectors.EVENT_READ:
                    connection.recv(1)
                    raise ConnectionResetError
            except OSError:
                selector.unregister(connection)
                connection.close()
                come()


def _serve() -> None:
    with HealthServer("127.0.0.1", 0, Health(), Metrics().render) as server:
        print(server.port, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    _serve() if sys.argv[1] == "serve" else _besiege(int(sys.argv[1]), int(sys.argv[2]))
