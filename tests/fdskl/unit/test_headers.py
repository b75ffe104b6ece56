"""A sample's headers on the predictions of the party that predicts."""

from __future__ import annotations

from fdskl.makers import lives, make_worker, settings_of

from streamfl.fdskl.worker import FdsklWorker
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.role import Headers, Received, Record, Rejection, Send

TRACE: Headers = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),)


def alone(life: int = 0) -> FdsklWorker:
    """A party that nobody else is asked by: its predictions go out when they were gathered."""
    role = make_worker(settings_of("p0", 1), lives(0, life))
    role.open(0)
    return role


def sample(entity: str, headers: Headers) -> Received:
    return Received("samples", Sample(entity, "s", (0.5, 1.0), None), Record("samples", 0, 0, entity.encode(), b"", headers))


def predicted(replies: list[Send | Rejection]) -> list[tuple[bytes | None, Headers]]:
    return [(one.key, one.headers) for one in replies if isinstance(one, Send) and one.channel == "predictions"]


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
