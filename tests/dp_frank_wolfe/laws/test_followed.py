"""A sample's headers on the prediction that it leads to, where its party hands them on, and the predictions'
format."""

from __future__ import annotations

import msgspec
import pytest
from dp_frank_wolfe.federations import COLUMNS, SERVER_MEMBER, settings_of
from dp_frank_wolfe.laws.closed_loop import ClosedLoop, names_of

from streamfl.contract.role import Headers
from streamfl.records.header_propagation import FollowedAcross

TRACE: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("baggage", b"customer=anna"),
)
SERVED = {"mode": "exact"}


def served(**predictions: FollowedAcross) -> ClosedLoop:
    """With a model. predictions: sections by member, as in party_0; of others the default."""
    names = ["party-0", "party-1", SERVER_MEMBER]
    given = {}
    for name in names:
        settings = settings_of(name, 2, serving=SERVED)
        section = predictions.get(name.replace("-", "_"), FollowedAcross())
        given[name] = settings.model_copy(update={"predictions": section})
    loop = ClosedLoop(given)
    loop.write_rows(names_of())
    loop.settle()
    return loop


def show(loop: ClosedLoop, party: str) -> None:
    content = msgspec.json.encode({f"x{column}": 0.5 for column in range(COLUMNS)})
    loop.write(f"{party}-samples", "newcomer", content, TRACE)


def test_a_party_hands_on_what_it_names_and_nothing_else() -> None:
    """Protects what is in headers: without being named none leaves a party, for no epsilon covers it."""
    loop = served()
    show(loop, "party-0")
    show(loop, "party-1")
    loop.settle()
    assert loop.predicted == [(b"newcomer", ())]


@pytest.mark.parametrize("last", ["party-0", "party-1"])
def test_the_part_that_completes_a_prediction_brings_the_headers(last: str) -> None:
    """Protects a trace that would end at a part that waits to be told, also where the party is restarted
    meanwhile."""
    handed = FollowedAcross(headers=["traceparent"])
    loop = served(party_0=handed, server=FollowedAcross(format="msgpack"))
    first = "party-1" if last == "party-0" else "party-0"
    show(loop, first)
    loop.settle()
    show(loop, last)
    loop.step(last)
    loop.restart(last)
    loop.settle()
    assert loop.predicted == [(b"newcomer", TRACE[:1] if last == "party-0" else ())]
    assert not any(key.startswith(b"headers/") for _, key in loop.members["party-0"].state)
    [content] = [value for _, topic, _, value in loop.committed if topic == "f.predictions"]
    assert msgspec.msgpack.decode(content)["entity"] == "newcomer"
