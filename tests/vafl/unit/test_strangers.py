"""One message under a party's name silences no party: the numbers of embeddings, as the coordinator remembers
them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from vafl.makers import make_coordinator
from vafl.unit.test_conversations import figures

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import Embedding


def coordinator() -> VaflCoordinator:
    role = make_coordinator()
    role.open(0)
    return role


def embedding(entity: str, sequence: int, epoch: int = 1, version: int = 0) -> Received:
    message = Embedding(VERSION, 0, entity, epoch, sequence, version, encode_array(np.array([1.0])))
    return Received(
        "embeddings/bank", message, Record("embeddings", 0, 0, entity.encode(), b"", timestamp=1000.0)
    )


def restored(changes: list[StateChange]) -> VaflCoordinator:
    role = coordinator()
    for change in changes:
        role.restore(change)
    return role


@pytest.mark.parametrize(
    ("forged", "refused"),
    [
        ({"sequence": 2**63}, True),
        ({"sequence": 7, "epoch": 2**63}, True),
        ({"sequence": 2**52}, False),
        ({"sequence": 7, "epoch": 2_000_000_000}, False),
        ({"sequence": 7, "epoch": 0}, False),
    ],
)
def test_one_number_of_a_stranger_silences_no_party(forged: dict[str, Any], refused: bool) -> None:
    """Protects a party from one message under its name, also after a restart, and the state from what cannot
    be restored."""
    role = coordinator()
    role.receive([embedding("e", 1)], 1000.0)
    changes = list(role.changed_state())
    replies = role.receive([embedding("forged", **forged)], 1000.0)
    assert [isinstance(reply, Rejection) for reply in replies] == [refused] * len(replies)
    changes += role.changed_state()
    for each in (role, restored(changes)):
        replies = each.receive([embedding("f", 2), embedding("g", 3), embedding("f", 2)], 1001.0)
        assert [type(reply) for reply in replies] == [Send, Send]
        assert figures(each)["ignored_embeddings/duplicate"] == 1


def test_two_voices_of_one_party_are_told_of() -> None:
    """Protects a party that runs twice, or that somebody speaks for: both are heard, it is counted, and the
    log names it."""
    role = coordinator()
    role.receive(
        [embedding("e", 1, 2), embedding("f", 1, 1), embedding("g", 2, 2), embedding("h", 2, 1)], 1000.0
    )
    assert figures(role)["superseded_embeddings"] == 2
    (notice,) = role.notices()
    assert (notice.reason, "'bank'" in notice.text) == ("superseded", True)


def test_what_the_first_releases_remembered_of_a_party_is_read() -> None:
    """Protects an upgrade: a party goes on where it was, and what it had shown counts once."""
    role = coordinator()
    role.receive([embedding("e", 5, 3)], 1000.0)
    changes = [
        msgspec.structs.replace(
            change, value=msgspec.msgpack.encode(msgspec.msgpack.decode(change.value)[:5])
        )
        if change.key.startswith(b"party/") and change.value is not None
        else change
        for change in role.changed_state()
    ]
    again = restored(changes)
    assert len(again.receive([embedding("f", 5, 3), embedding("f", 4, 3), embedding("g", 6, 3)], 1000.0)) == 1
