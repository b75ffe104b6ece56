"""A sample's headers with a party's embedding, and on the prediction that this embedding leads to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from vafl.makers import Alignment, Steps, make_coordinator, make_party

from streamfl.contract.role import Headers, Received, Record, Rejection, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.header_propagation import Carry, FollowedAcross
from streamfl.records.samples import Sample
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply
from streamfl.vafl.party.role import VaflParty

TRACE: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("baggage", b"customer=anna"),
)


def party(carry: Carry) -> VaflParty:
    """One that waits for an answer before it shows another entity."""
    role = make_party(
        name="bank",
        function=DenseNetwork([1, 1], dtype=np.float64),
        inputs=1,
        embedding_size=1,
        steps=Steps(batch_size=1, in_flight=1),
        seed=0,
        carry=carry,
    )
    role.open(0)
    return role


def sample(entity: str, headers: Headers = TRACE) -> Received:
    return Received(
        "samples", Sample(entity, "s", (1.0,), None), Record("samples", 0, 0, entity.encode(), b"", headers)
    )


def sent(replies: Any, channel: str) -> list[tuple[bytes | None, Headers]]:
    return [(one.key, one.headers) for one in replies if isinstance(one, Send) and one.channel == channel]


@pytest.mark.parametrize(
    ("section", "handed"), [(FollowedAcross(), ()), (FollowedAcross(headers=["traceparent"]), TRACE[:1])]
)
def test_a_party_hands_on_what_it_names_and_nothing_else(section: FollowedAcross, handed: Headers) -> None:
    """Protects what is in headers, which no noise covers: none leaves a party unless it is named.

    What is named comes through the wait for an earlier entity's gradient, and through a restart meanwhile.
    """
    carry = section.carried(by_party=True)
    first = party(carry)
    replies = first.receive([sample("a"), sample("b")], 10.0)
    assert sent(replies, "embeddings") == [(b"a", handed)]
    [shown] = [EMBEDDING.decode(one.value) for one in replies if isinstance(one, Send)]
    second = party(carry)
    changes = list(first.changed_state())
    waiting = [change.value for change in changes if change.key.startswith(b"waiting/")]
    assert [value[:1] for value in waiting if value is not None] == [b"\x93" if handed else b"\x92"], (
        "as ever without headers"
    )
    for change in changes:
        second.restore(change)
    reply = Reply(VERSION, 0, "a", shown.epoch, shown.sequence, encode_array(np.zeros(1)))
    received = Received("gradients", REPLY.decode(REPLY.encode(reply)), Record("gradients", 0, 0, b"a", b""))
    assert sent(second.receive([received], 11.0), "embeddings") == [(b"b", handed)]


def test_no_header_is_taken_for_a_seal() -> None:
    """Protects a federation with keys: two seals on one message are forged, and every embedding of the party
    would be refused."""
    with pytest.raises(ValidationError, match="prove their identity"):
        FollowedAcross(headers=["Seal"])


def embedding(name: str, entity: str, headers: Headers) -> Received:
    message = Embedding(VERSION, 0, entity, 1, 1 + (entity == "a"), 0, encode_array(np.ones(1)))
    return Received(f"embeddings/{name}", message, Record(name, 0, 0, entity.encode(), b"", headers, 10.0))


@pytest.mark.parametrize("last", ["bank", "shop"])
def test_a_prediction_has_the_headers_of_the_embedding_that_led_to_it(last: str) -> None:
    """Protects a trace from ending at the coordinator, and from going on with another entity's or party's
    headers."""
    carry = FollowedAcross().carried(by_party=False)
    role = make_coordinator(alignment=Alignment(quorum=2), carry=carry)
    role.open(0)
    first = "shop" if last == "bank" else "bank"
    of = {"bank": TRACE, "shop": (("x-request-id", b"42"), ("seal", b"x"))}
    replies: list[Send | Rejection] = []
    for name in (first, last):
        replies += role.receive([embedding(name, "other", ()), embedding(name, "a", of[name])], 10.0)
    assert sent(replies, "predictions") == [
        (b"other", ()),
        (b"a", TRACE if last == "bank" else (("x-request-id", b"42"),)),
    ]
