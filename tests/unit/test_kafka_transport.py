"""A broker's last answer before it closes a connection reaches the client."""

from __future__ import annotations

import socket

import pytest
from kafka import errors as kafka_errors
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
