"""The bus that delays messages between members, counts them, and drops them once they were read."""

from __future__ import annotations

import math

from streamfl.contract.channels import TopicSpec
from streamfl.encoding.wire import encoded_size
from streamfl.runtime.bus import Outgoing, Step, Subscription
from streamfl.simulation.network import NetworkBus


def test_messages_between_members_take_time_and_others_do_not() -> None:
    """Protects claims about hops: a message can be read after the delay and not before, in order; users'
    records at once."""
    now = 10.0
    bus = NetworkBus(lambda: now, delay=2.0)
    bus.create([TopicSpec("said", 1, compacted=False), TopicSpec("samples", 1, compacted=False)])
    bus.between = {"said"}
    session = bus.session(Subscription(group="g", inputs=["said", "samples"]))
    session.poll(0.0, 10)
    bus.write([Outgoing("said", None, b"first"), Outgoing("samples", None, b"row")])
    now = 11.0
    bus.write([Outgoing("said", None, b"second")])
    assert [record.value for record in session.poll(0.0, 10).records] == [b"row"]
    assert bus.next_arrival(now) == 12.0
    now = 12.0
    assert [record.value for record in session.poll(0.0, 10).records] == [b"first"]
    assert bus.next_arrival(now) == 13.0
    now = 13.0
    assert [record.value for record in session.poll(0.0, 10).records] == [b"second"]
    assert bus.next_arrival(now) == math.inf


def test_what_was_read_is_counted_and_gone() -> None:
    """Protects memory in long runs, and the figures: a message is dropped at its reader's commit and stays
    counted. Users' records stay.
    """
    bus = NetworkBus(lambda: 0.0)
    bus.create([TopicSpec("said", 1, compacted=False), TopicSpec("samples", 1, compacted=False)])
    bus.between = {"said"}
    session = bus.session(Subscription(group="g", inputs=["said", "samples"]))
    session.poll(0.0, 10)
    bus.write(
        [Outgoing("said", None, b"a"), Outgoing("said", b"key", b"bc"), Outgoing("samples", None, b"row")]
    )
    session.poll(0.0, 10)
    assert len(list(bus.read("said"))) == 2
    session.commit(Step(positions={("said", 0): 1, ("samples", 0): 1}))
    assert [record.value for record in bus.read("said")] == [b"bc"]
    assert len(list(bus.read("samples"))) == 1
    counted = bus.traffic["said"]
    assert (counted.messages, counted.bytes) == (2, encoded_size(None, b"a") + encoded_size(b"key", b"bc"))
    assert bus.traffic.keys() == {"said"}
