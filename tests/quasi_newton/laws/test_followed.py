"""A sample's headers on the predictions that it leads to, and predictions in the format that the guest
names."""

from __future__ import annotations

import msgspec
from quasi_newton.laws.scoring import PREDICTIONS, new_version, scored

from streamfl.contract.role import Headers

TRACE: Headers = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)


def test_the_guests_headers_come_through_a_restart() -> None:
    """Protects a trace that would end where hosts are asked for their part, or where the guest is restarted
    meanwhile.

    A host's headers stay with the host. What is predicted again under a later model has none: no sample has
    led to it."""
    loop = scored(1, predictions={"format": "msgpack"})
    assert all(headers == () for _, headers in loop.predicted)
    known = len(loop.predicted)
    for party, headers in (("g", (*TRACE, ("secret", b"x"))), ("h1", (("x-request-id", b"host"),))):
        content = msgspec.json.encode({f"x{column}": 0.5 for column in range(3)})
        loop.write(f"{party}-samples", "newcomer", content, headers)
    loop.step("g")
    loop.restart("g")
    loop.settle()
    assert loop.predicted[known:] == [(b"newcomer", TRACE)]
    told = [msgspec.msgpack.decode(value) for _, topic, value in loop.committed if topic == PREDICTIONS]
    assert told[-1]["entity"] == "newcomer"
    assert 0 < told[-1]["probability"] < 1
    new_version(loop, 2)
    loop.settle()
    again = [headers for key, headers in loop.predicted[known + 1 :] if key == b"newcomer"]
    assert again
    assert not any(again)
    assert not any(key.startswith(b"headers/") for key in loop.members["g"].state)
