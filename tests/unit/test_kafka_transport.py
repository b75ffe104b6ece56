"""Connections that a broker, or a proxy before it, closes."""

from __future__ import annotations

import socket
import threading

import pytest
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from streamfl_connectors.kafka import cluster


@pytest.mark.parametrize("transport", [KafkaTCPTransport, KafkaSSLTransport])
def test_the_last_words_of_a_broker_are_read_before_the_end(transport: type) -> None:
    """Protects users with a wrong password on a busy machine: refusal and end of the connection come at once.
    The refusal used to be dropped, so the broker looked unreachable.
    """
    assert cluster.KafkaCluster
    broker, client = socket.socketpair()
    with broker, client:
        client.setblocking(False)
        made = transport.__new__(transport)
        made._sock, made._closed, made.host = client, False, "broker"
        broker.sendall(b"wrong password")
        broker.close()
        assert made._sock_recv() == (b"wrong password", None)
        content, error = made._sock_recv()
        assert not content
        assert isinstance(error, kafka_errors.KafkaConnectionError)


def test_the_next_attempt_waits_where_a_connection_ends_before_an_answer() -> None:
    """Protects a processor, and a proxy whose broker is away: the library connected to it again at once, up
    to hundreds of times a second."""
    assert cluster.KafkaCluster
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        threading.Thread(target=lambda: proxy.accept()[0].close(), daemon=True).start()
        client = KafkaNetClient(
            bootstrap_servers=f"127.0.0.1:{proxy.getsockname()[1]}",
            reconnect_backoff_ms=60_000,
            reconnect_backoff_max_ms=60_000,
        )
        (node,) = (broker.node_id for broker in client.cluster.bootstrap_brokers())
        connection = client._manager.get_connection(node)
        with pytest.raises(kafka_errors.KafkaConnectionError):
            client._net.run(lambda: connection.init_future)
        client._net.poll(timeout_ms=0)
        assert client.connection_delay(node) > 0
        client.close()
