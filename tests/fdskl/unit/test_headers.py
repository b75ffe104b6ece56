"""A sample's headers on the predictions of the party that predicts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from fdskl.makers import lives, make_worker, settings_of

from streamfl.contract.role import Headers, Received, Record, Rejection, Send
from streamfl.fdskl.config import WORKER
from streamfl.fdskl.party.role import FdsklParty
from streamfl.fdskl.roles import ROLES
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

TRACE: Headers = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)


def alone(life: int = 0) -> FdsklParty:
    """A party that nobody else is asked by: its predictions go out when they were gathered."""
    role = make_worker(settings_of("p0", 1), lives(0, life))
    role.open(0)
    return role


def sample(entity: str, headers: Headers) -> Received:
    return Received(
        "samples",
        Sample(entity, "s", (0.5, 1.0), None),
        Record("samples", 0, 0, entity.encode(), b"", headers),
    )


def predicted(replies: list[Send | Rejection]) -> list[tuple[bytes | None, Headers]]:
    return [
        (one.key, one.headers) for one in replies if isinstance(one, Send) and one.channel == "predictions"
    ]


def test_headers_wait_with_the_prediction_and_go_with_it() -> None:
    """Protects a trace that would end where entities are gathered, or where the party is restarted meanwhile.

    They are kept as long as the entity may be predicted again, and no longer.
    """
    first = alone()
    first.receive([sample("a", (*TRACE, ("secret", b"x"))), sample("b", ())], 10.0)
    second = alone(1)
    for change in first.changed_state():
        second.restore(change)
    assert predicted([*second.receive([], 11.0)]) == [(b"a", TRACE), (b"b", ())]
    second.active_partition(0).revise("a", 12.0)
    assert predicted([*second.receive([], 13.0)]) == [(b"a", TRACE)]
    label = Received("labels", Label("a", "a", 1.0), Record("labels", 0, 0, b"a", b""))
    second.receive([label], 14.0)
    assert [change.value for change in second.changed_state() if change.key == b"headers/a"] == [None]


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_prediction_has_its_samples_time_where_that_is_asked_for(asked_for: bool) -> None:
    """Protects readers that go by time, and by default a backlog's predictions, which retention would delete
    as they come."""
    settings = settings_of("p0", 1, predictions={"event_time": asked_for})
    bus, then = MemoryBus(clock=lambda: 2_000_000_000.0), 1_700_000_000.0
    bus.create([replace(spec, partitions=spec.partitions or 1) for spec in ROLES[WORKER].topics(settings)])
    value, told = b'{"x": 0.5, "y": 1.0}', (("streamfl.time", b"%d" % (1000 * (then + 60))),)
    bus.write(
        [Outgoing("samples", b"a", value, 0, TRACE, then), Outgoing("samples", b"b", value, 0, told, then)]
    )
    with closing(build_worker(settings, bus)) as worker:
        for _ in range(50):
            worker.step(0.02)
    found = {record.key: record for record in bus.read("f.predictions")}
    assert {key: record.timestamp for key, record in found.items()} == (
        {b"a": then, b"b": then + 60} if asked_for else {b"a": 2_000_000_000.0, b"b": 2_000_000_000.0}
    )
    assert found[b"a"].headers == ((*TRACE, ("streamfl.time", b"1700000000000")) if asked_for else TRACE)
