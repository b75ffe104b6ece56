"""A sample's headers and its time on its prediction, whatever the sample waited for in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pofmkl.makers import new_client

from streamfl.contract.role import Headers, Received, Record, Rejection, Send
from streamfl.encoding.wire import VERSION
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import MARKER_KEY, ShardVersion
from streamfl.records.header_propagation import EVENT_TIME, LONGEST_HEADERS, FollowedPredictions, carried
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

TRACE: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("X-Request-ID", b"42"),
)


def client(labels: dict[str, Any] | None = None, section: FollowedPredictions | None = None) -> PofmklClient:
    """In lockstep, so that a second sample waits for a new model."""
    role = new_client(
        PaperLearner(
            features=FeatureMap(np.ones((2, 3, 1))), learning_rate=0.1, regularisation=1e-3, loss=SQUARE
        ),
        clients=3,
        learning={"staleness": "lockstep"},
        uplink={"kernels_per_upload": 1},
        labels=labels,
        carry=carried(section or FollowedPredictions()),
    )
    role.open(0)
    return role


def sample(
    offset: int, headers: Headers = (), label: float | None = 0.5, timestamp: float = 7.25
) -> Received:
    record = Record("readings", 0, offset, b"pump", b"", headers, timestamp)
    return Received("samples", Sample("pump", f"s{offset}", (0.1,), label), record)


def new_model() -> Received:
    message = ShardVersion(VERSION, 0, 1, 0, 1, 1)
    return Received("model", message, Record("model", 0, 1, MARKER_KEY, b""))


def predictions(replies: list[Send | Rejection]) -> list[Headers]:
    return [reply.headers for reply in replies if isinstance(reply, Send) and reply.channel == "predictions"]


def test_headers_come_through_pending_samples_and_a_restart() -> None:
    """Protects a trace that would end where a sample waits for the model, or where the worker is restarted
    meanwhile."""
    first = client()
    replies = [*first.receive([sample(0, TRACE), sample(1, (*TRACE, ("secret", b"x"))), sample(2)], 10.0)]
    others = [reply for reply in replies if isinstance(reply, Send) and reply.channel != "predictions"]
    assert [reply.headers for reply in others if {*reply.headers} & {*TRACE}] == [], "not to the server"
    assert predictions(replies) == [TRACE]
    second = client()
    for change in first.changed_state():
        second.restore(change)
    assert predictions([*second.receive([new_model()], 11.0)]) == [TRACE]


def test_a_sample_that_waits_without_headers_is_remembered_as_ever() -> None:
    """Protects changelogs of releases before this one, and the bytes of whoever has no headers."""
    role = client()
    role.receive([sample(0), sample(1)], 10.0)
    [slot] = [change.value for change in role.changed_state() if change.key.startswith(b"waiting/")]
    assert slot is not None
    assert slot[0] == 0x94, "an array of four"


def test_late_labels_hold_no_header_back() -> None:
    """Protects the trace with labels on a topic of their own: the prediction goes out at once, and its
    headers with it."""
    role = client(labels={"expiry_seconds": 60.0, "limit": 10})
    assert predictions([*role.receive([sample(0, TRACE, label=None)], 10.0)]) == [TRACE]
    label = Received("labels", Label("pump", "s0", 0.5), Record("labels", 0, 0, b"pump", b"", TRACE))
    assert predictions([*role.receive([label], 11.0)]) == []


def test_the_time_is_the_samples_own_or_that_of_its_record() -> None:
    """Protects whoever orders predictions by when the thing happened, not by when it was predicted."""
    role = client(section=FollowedPredictions(headers=[EVENT_TIME], event_time=True))
    assert predictions([*role.receive([sample(0, TRACE)], 10.0)]) == [((EVENT_TIME, b"7250"),)]
    role = client(section=FollowedPredictions(event_time=True))
    assert predictions([*role.receive([sample(0, ((EVENT_TIME, b"5000"),))], 10.0)]) == [
        ((EVENT_TIME, b"5000"),)
    ]


def test_what_is_carried_is_bounded() -> None:
    """Protects the changelog from a stranger's headers: a sample that waits has to fit into a record, with
    all that it carries."""
    many = tuple(("baggage", b"x" * 100) for _ in range(1000))
    found = carried(FollowedPredictions())(
        Record("readings", 0, 0, None, b"", (("tracestate", b"y" * 2000), *many, *TRACE))
    )
    assert 0 < sum(len(name) + len(content) for name, content in found) <= LONGEST_HEADERS
    assert {name for name, _ in found} == {"baggage"}
    assert carried(FollowedPredictions(headers=[]))(Record("readings", 0, 0, None, b"", TRACE)) == ()


@pytest.mark.parametrize("broken", [b"", b"2026-11-23", b"1" * 20])
def test_a_time_that_is_none_gives_way_to_the_records_own(broken: bytes) -> None:
    """Protects `event_time`: a prediction whose header no reader understands would have the time of its
    writing."""
    carry = carried(FollowedPredictions(event_time=True))
    assert carry(sample(0, (*TRACE, (EVENT_TIME, broken))).record) == (*TRACE, (EVENT_TIME, b"7250"))
    assert carry(sample(0, ((EVENT_TIME, broken), (EVENT_TIME, b"5"))).record) == ((EVENT_TIME, b"5"),)
    # Whoever asks for no times gets the headers as they are.
    assert carried(FollowedPredictions())(sample(0, ((EVENT_TIME, broken),)).record) == (
        (EVENT_TIME, broken),
    )
