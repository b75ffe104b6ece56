"""The connector's assumptions about the client library's internals, on a real broker: a version that changes
them fails here."""

from __future__ import annotations

import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from broker import Broker
from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaTimeoutError
from streamfl_connectors.kafka.bus import KafkaBus
from streamfl_connectors.kafka.clients import complete, discard
from streamfl_connectors.kafka.options import PRODUCER_DEFAULTS
from streamfl_connectors.kafka.sending import publish
from streamfl_process import start_streamfl

from streamfl.runtime.bus import Outgoing, Subscription, TopicSpec

pytestmark = pytest.mark.broker


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.usefixtures("_refused_connections")
def test_a_coordinator_that_dies_inside_a_transaction_is_waited_for(mortal_broker: Broker) -> None:
    """Guards the commit against an outage between its records and its offsets: the library forgets the
    request, and only the connector's patched producer sends it again when the broker is back.
    """
    run = uuid.uuid4().hex[:12]
    outputs, group = f"outputs-{run}", f"group-{run}"
    # Long: a broker that starts slowly must not abort the transaction meanwhile.
    bus = KafkaBus(mortal_broker.url, {"transaction_timeout_ms": 300_000})
    bus.create([TopicSpec(outputs, 1, False)])
    session = bus.session(Subscription(group, ()))
    mended = session.commits.producer
    plain = bus.cluster.make(KafkaProducer, PRODUCER_DEFAULTS, transactional_id=f"plain-{run}")
    try:
        plain.init_transactions()
        results = []
        for producer, value in ((mended, b"mended"), (plain, b"plain")):
            producer.begin_transaction()
            publish(producer, [Outgoing(outputs, None, value)], bus.topics.limits([outputs]), 30)
        mortal_broker.halt()
        for producer in (mended, plain):
            offsets = {TopicPartition(outputs, 0): OffsetAndMetadata(1, "", -1)}
            results.append(producer._transaction_manager.send_offsets_to_transaction(offsets, group))
            producer._sender.wakeup()
        time.sleep(2)
        mortal_broker.start()
        complete(mended, results[0], 60_000)
        complete(mended, mended._transaction_manager.begin_commit(), 60_000)
        with pytest.raises(KafkaTimeoutError):
            complete(plain, results[1], 3_000)
    finally:
        discard(plain)
        session.close()
        bus.close()


def test_a_signal_while_the_cluster_is_looked_for_ends_at_once(tmp_path: Path) -> None:
    """Protects an orchestrator: nothing is open before the first poll, so the process ends at once and
    silently."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
    configuration = tmp_path / "server.toml"
    configuration.write_text(
        f'[federation]\nname = "f"\nclients = 2\n[bus]\nurl = "kafka://127.0.0.1:{port}"\n[role]\nkind = '
        '"pofmkl-server"\n'
    )
    process = start_streamfl("run", configuration, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = process.stderr.readline()
        process.terminate()
        said += process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert (process.returncode, "stopped before it began" in said) == (0, True), said
