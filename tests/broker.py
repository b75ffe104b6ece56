"""A real Kafka cluster for the tests: one JVM for each node, jars from Maven Central, no Docker.

The jars are fetched once into ``.broker`` of the repository; every cluster has its own ports and its own
data directory, which is removed when it stops. It stops at the end of the ``with`` block, at the latest with
the process that started it.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import gc
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

__all__ = ["Broker", "free_ports", "shared"]

# Another release of Kafka may be tried: STREAMFL_KAFKA_VERSION=3.9.1 make integration.
KAFKA_VERSION = os.environ.get("STREAMFL_KAFKA_VERSION", "4.1.1")
HOME = Path(__file__).resolve().parent.parent / ".broker"
START_SECONDS = 180.0

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamfl</groupId>
  <artifactId>broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=CLIENTS://127.0.0.1:{advertised}
controller.listener.names=CONTROLLER
inter.broker.listener.name=CLIENTS
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENTS:{protocol}
log.dirs={data}
default.replication.factor={replicas}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
transaction.abort.timed.out.transaction.cleanup.interval.ms=1000
metadata.max.idle.interval.ms=0
group.consumer.session.timeout.ms=6000
group.consumer.min.session.timeout.ms=1000
group.consumer.heartbeat.interval.ms=500
group.consumer.min.heartbeat.interval.ms=100
"""


# A node whose storage Kafka's tool formats.
FORMATTED = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
"""


# For several nodes: a partition soon has another leader after its own was killed.
SEVERAL = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}


# Behind a proxy the brokers reach each other through a listener of their own.
BEHIND_A_PROXY = """listeners=CLIENTS://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},INSIDE://127.0.0.1:{inside}
advertised.listeners=CLIENTS://127.0.0.1:{advertised},INSIDE://127.0.0.1:{inside}
inter.broker.listener.name=INSIDE
listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENTS:{protocol},INSIDE:PLAINTEXT
"""


class Proxy(Protocol):
    """A proxy between clients and the nodes. ports: one for each node, on 127.0.0.1."""

    ports: list[int]

    def forward_to(self, ports: Sequence[int]) -> None:
        """Makes the i-th port lead to the i-th of these."""


class Broker:
    """A Kafka cluster on this machine, started when the ``with`` block begins and removed when it ends.

    properties: lines of server.properties that override the defaults.
    options: the options of a client with full rights; their ``security_protocol`` is that of the listener
    CLIENTS.
    nodes: number of nodes.
    proxy: the nodes advertise its ports instead of their own, and ``address`` returns them.
    port: the port of the only node, if its properties set one.
    java: options of the JVM.
    archived: whether it loads Kafka's classes from an archive.

    RuntimeError if it cannot be started, with the end of its log.
    """

    def __init__(
        self,
        properties: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        nodes: int = 1,
        proxy: Proxy | None = None,
        port: int | None = None,
        java: Sequence[str] = (),
        archived: bool = True,
    ) -> None:
        self._properties = {**(SEVERAL if nodes > 1 else {}), **(properties or {})}
        self.options = dict(options or {})
        self.nodes = nodes
        self._proxy = proxy
        self._port = port
        self._java_options = list(java)
        self._archived = archived
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._directory = Path()
        self._ports: list[int] = []

    @property
    def address(self) -> str:
        """``host:port`` of every node, separated by commas, in the form of bootstrap servers."""
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def url(self) -> str:
        """The value for ``bus.url``."""
        return f"kafka://{self.address}"

    def folder(self, topic: str, partition: int, node: int = 0) -> Path:
        """The folder where a node keeps the segments of a partition."""
        return self._directory / f"data-{node}" / f"{topic}-{partition}"

    def __enter__(self) -> Broker:
        libraries = _libraries()
        self._directory = Path(tempfile.mkdtemp(prefix="streamfl-broker-"))
        atexit.register(self.stop)
        ports = free_ports(3 * self.nodes)
        own, controllers, inside = (ports[first::3] for first in range(3))
        if self._port is not None:
            own[0] = self._port
        self._ports = own if self._proxy is None else self._proxy.ports
        if self._proxy is not None:
            self._proxy.forward_to(own)
        archive = [f"-XX:SharedArchiveFile={_archive(libraries)}"] if self._archived else []
        self._java = ["java", "-Xmx512m", *archive, *self._java_options, "-cp", f"{libraries}/*"]
        cluster = _identifier()
        for node in range(self.nodes):
            template = PROPERTIES if self._proxy is None else PROPERTIES + BEHIND_A_PROXY
            text = template.format(
                node=node + 1,
                voters=",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1)),
                port=own[node],
                advertised=self._ports[node],
                controller=controllers[node],
                inside=inside[node],
                data=self._directory / f"data-{node}",
                replicas=self.nodes,
                in_sync=(self.nodes + 1) // 2,
                protocol=self.options.get("security_protocol", "PLAINTEXT"),
            )
            text += "".join(f"{name}={value}\n" for name, value in self._properties.items())
            self._settings(node).write_text(text)
            _storage(libraries, self._directory / f"data-{node}", cluster, node + 1)
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        atexit.unregister(self.stop)

    def start(self) -> None:
        """Start the nodes that are not running, with their ports and data, and wait until every node
        answers."""
        for node in range(self.nodes):
            if node not in self._processes:
                self.begin(node)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            dead = any(process.poll() is not None for process in self._processes.values())
            if dead or time.monotonic() > deadline:
                text = (self._directory / "log").read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"the Kafka broker did not start:\n{text}")
            time.sleep(0.1)
        with warnings.catch_warnings():
            # The client library leaves the sockets of refused connections to the garbage collector, which
            # warns.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def begin(self, node: int) -> None:
        """Start one node (from 0) with its port and data, without waiting."""
        self._processes[node] = self._start_node(node)

    def halt(self, node: int | None = None) -> None:
        """Kill all nodes, or one (from 0), at once and keep their data, like a power cut. :meth:`start`
        starts them again."""
        chosen = list(self._processes) if node is None else [node]
        for one in chosen:
            self._processes[one].kill()
        for one in chosen:
            self._processes.pop(one).wait()

    def end(self) -> None:
        """Shut all nodes down in order, and keep their data."""
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(START_SECONDS)
        self._processes.clear()

    def stall(self) -> None:
        """Freeze all nodes with their connections open, like a machine that hangs, until :meth:`resume`."""
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the nodes go on."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def limit_files(self, node: int) -> None:
        """Stop all files of a node from growing, like a full disk, until the node is halted and started
        again."""
        resource.prlimit(self._processes[node].pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def stop(self) -> None:
        """Stop the nodes and remove their data. A second call does nothing."""
        self.halt()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = Path()

    def _settings(self, node: int) -> Path:
        return self._directory / f"server-{node}.properties"

    def _start_node(self, node: int) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            return subprocess.Popen(
                [*self._java, "kafka.Kafka", str(self._settings(node))],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self._directory,
                env={**os.environ, "KAFKA_HEAP_OPTS": "-Xmx512m"},
            )

    def _answers(self) -> bool:
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        for port in self._ports:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.address, bootstrap_timeout_ms=5000, **self.options
            )
        except KafkaError:
            return False
        try:
            # Not describe_cluster(): with Kafka before 3.7 that of kafka-python 3.0 ends with a KeyError.
            metadata = admin._manager.run(admin._get_cluster_metadata, [])
            return len(metadata["brokers"]) == self.nodes
        except KafkaError:
            return False
        finally:
            admin.close()


@contextmanager
def shared(make: Callable[[], Broker], folder: Path) -> Iterator[Broker]:
    """One cluster for all processes that name this folder. The process that started it waits for the others
    and then stops it.

    An idle broker takes 1% of a processor. Only the process that started it may halt it.
    """
    folder.mkdir(exist_ok=True)
    place = folder / "place.json"
    with (folder / "users").open("w") as users, (folder / "start").open("w") as starts:
        fcntl.flock(starts, fcntl.LOCK_EX)
        cluster = make()
        started = not place.exists()
        if started:
            cluster.__enter__()
            place.write_text(json.dumps([str(cluster._directory), cluster._ports]))
        else:
            directory, cluster._ports = json.loads(place.read_text())
            cluster._directory = Path(directory)
            fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starts, fcntl.LOCK_UN)
        try:
            yield cluster
        finally:
            if started:
                fcntl.flock(starts, fcntl.LOCK_EX)
                place.unlink()
                fcntl.flock(starts, fcntl.LOCK_UN)
                fcntl.flock(users, fcntl.LOCK_EX)
                cluster.__exit__(None, None, None)


def _libraries() -> Path:
    """The directory of Kafka's jars. Maven fetches them if it is not there yet."""
    libraries = HOME / KAFKA_VERSION
    if libraries.is_dir():
        return libraries
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="streamfl-pom-") as folder:
        (Path(folder) / "pom.xml").write_text(POM)
        # A directory of this process, moved into place as a whole: two runs may fetch at once, and one may be
        # interrupted.
        fetched = Path(tempfile.mkdtemp(prefix="libs-", dir=HOME))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode != 0:
        shutil.rmtree(fetched, ignore_errors=True)
        raise RuntimeError(
            f"Maven could not fetch the Kafka broker:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        )
    try:
        fetched.rename(libraries)
    except OSError:
        shutil.rmtree(fetched, ignore_errors=True)
    return libraries


def _archive(libraries: Path) -> Path:
    """An archive from which a JVM loads Kafka's classes fastest, made once by a separate broker. A start then
    takes a third less time.
    """
    archive = libraries / "classes.jsa"
    # Several test processes start at once; only one makes the archive.
    with (HOME / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            unfinished = archive.with_suffix(".unfinished")
            with Broker(java=[f"-XX:ArchiveClassesAtExit={unfinished}"], archived=False) as broker:
                broker.end()
            unfinished.rename(archive)
    return archive


def _storage(libraries: Path, data: Path, cluster: str, node: int) -> None:
    """A node's storage, as Kafka's own tool makes it. The tool takes a JVM of its own, 1.2 s of processor
    time, so it is run once, and only identifiers differ."""
    made = libraries / "storage"
    with (HOME / "storage.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=HOME) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            settings, unfinished = Path(folder, "server.properties"), Path(folder, "data")
            settings.write_text(FORMATTED.format(data=unfinished))
            tool = ["java", "-cp", f"{libraries}/*", "kafka.tools.StorageTool", "format", "-c", str(settings)]
            # One argument with "=": a separate identifier that begins with "-", as one in 64 does, would be
            # read as an option.
            command = [*tool, f"--cluster-id={cluster}"]
            said = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if said.returncode:
                raise RuntimeError(f"the broker's storage could not be prepared: {said.stdout}")
            unfinished.rename(made)
    shutil.copytree(made, data)
    text = (data / "meta.properties").read_text()
    for key, value in {"cluster.id": cluster, "node.id": node, "directory.id": _identifier()}.items():
        text = re.sub(f"^{key}=.*$", f"{key}={value}", text, flags=re.MULTILINE)
    (data / "meta.properties").write_text(text)


def _identifier() -> str:
    """A new identifier in Kafka's format."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    held = [socket.socket() for _ in range(count)]
    try:
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
