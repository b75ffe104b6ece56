"""What the coordinator remembers of entities and parties, as arrays: nothing is lost of what one by one would
be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from vafl.makers import Alignment, make_coordinator

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.vafl.coordinator.role import VaflCoordinator
from streamfl.vafl.messages import REPLY, Embedding

PARTIES = ("bank", "shop")


def coordinator(**alignment: object) -> VaflCoordinator:
    role = make_coordinator(
        parties=PARTIES,
        alignment=Alignment(**alignment),  # type: ignore[arg-type]
    )
    role.open(0)
    return role


def shown(party: str, entity: str, sequence: int, value: float = 0.0) -> Received:
    message = Embedding(VERSION, 0, entity, 1, sequence, 0, encode_array(np.array([value])))
    channel = f"embeddings/{party}"
    return Received(channel, message, Record(channel, 0, 0, entity.encode(), b""))


def labelled(entity: str, label: float = 0.0) -> Received:
    return Received("labels", Label(entity, entity, label), Record("labels", 0, 0, entity.encode(), b""))


def answered(said: Sequence[object]) -> list[str]:
    sends = [one for one in said if isinstance(one, Send) and one.channel.startswith("gradients/")]
    return [f"{one.channel.partition('/')[2]} {REPLY.decode(one.value).entity}" for one in sends]


@pytest.mark.parametrize("sizes", [(1, 1, 1), (700, 600, 5), (2500,)])
def test_a_running_mean_is_that_of_the_embeddings_one_by_one(sizes: Sequence[int]) -> None:
    """Protects what stands for an absent party: however many come in a batch, below a thousand and beyond,
    mean_n is mean_(n-1) + (h_n - mean_(n-1)) / min(n, 1000).
    """
    role, expected, count = coordinator(), 0.0, 0
    for number, size in enumerate(sizes):
        values = np.random.default_rng(number).normal(size=size)
        role.receive(
            [
                shown("bank", f"e{count + place}", count + place + 1, value)
                for place, value in enumerate(values)
            ],
            0.0,
        )
        for value in values:
            count += 1
            expected += (value - expected) / min(count, 1000)
    assert role.mean_embeddings(0)[0, 0] == pytest.approx(expected, rel=1e-12)


def test_what_comes_and_goes_between_two_commits_leaves_no_record() -> None:
    """Protects the changelog from a tombstone for each entity that was never written, and the next start from
    one that was."""
    role = coordinator()
    role.receive([labelled("old")], 0.0)
    assert [change.key for change in role.changed_state() if change.key.startswith(b"entity/")] == [
        b"entity/old"
    ]
    batch = [
        labelled("new"),
        *(shown(party, name, place + 1) for party in PARTIES for place, name in enumerate(("new", "old"))),
    ]
    assert sorted(answered(role.receive(batch, 0.0))) == ["bank new", "bank old", "shop new", "shop old"]
    assert [
        (change.key, change.value) for change in role.changed_state() if change.key.startswith(b"entity/")
    ] == [(b"entity/old", None)]


def test_only_what_was_heard_of_is_written() -> None:
    """Protects the changelog's size: of many entities the one that a message came of is written, and a row
    that was used by another before holds nothing of it.
    """
    role = coordinator(limit=50)
    role.receive([shown("bank", f"e{number}", number + 1) for number in range(50)], 0.0)
    assert sum(change.key.startswith(b"entity/") for change in role.changed_state()) == 50
    role.receive([shown("bank", "e7", 51, 3.0), shown("bank", "new", 52)], 0.0)
    changes = {
        change.key: change.value for change in role.changed_state() if change.key.startswith(b"entity/")
    }
    # The new one displaces the oldest and takes its row.
    assert set(changes) == {b"entity/e7", b"entity/new", b"entity/e0"}
    assert changes[b"entity/e0"] is None


def test_a_clock_that_was_ahead_holds_nothing_up_that_was_heard_of_since() -> None:
    """Protects an entity that began to be waited for by a clock that was ahead: a message by the right clock
    makes its age right, and what it is waited for has to be right, too.
    """
    role = coordinator(reply_seconds=10.0)
    role.receive([shown("bank", "e", 1), labelled("e")], 4e9)
    role.receive([shown("bank", "e", 2)], 100.0)
    role.receive([], 100.0)
    assert role.wake_at == 110.0
    assert answered(role.receive([], 110.0)) == ["bank e"]
