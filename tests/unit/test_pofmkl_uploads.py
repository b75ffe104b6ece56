"""When an asynchronous client ends an upload."""

from __future__ import annotations

import numpy as np

from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client import Learning, PofmklClient, Uplink
from streamfl.pofmkl.messages import UPDATE
from streamfl.role import Received, Record, Rejection, Send, StateChange
from streamfl.samples import Sample


def client() -> PofmklClient:
    role = PofmklClient(
        features=FeatureMap(np.random.default_rng(0).standard_normal((4, 3, 2))),
        learning=Learning(0.1, 1e-3, 1.0, SQUARE, lockstep=False, samples_per_version=None, upload_interval=1.0),
        uplink=Uplink(kernels_per_upload=2),
        seed=1,
        clients=10,
    )
    role.open(0)
    return role


def sample(name: str, offset: int) -> Received:
    return Received("samples", Sample(name, f"s{offset}", (0.1, 0.2), 0.5), Record("samples", 0, offset, name.encode(), b""))


def updates(replies: list[Send | Rejection]) -> list[tuple[str, int]]:
    """Whose uploads, and of how many samples."""
    found = [UPDATE.decode(reply.value) for reply in replies if isinstance(reply, Send) and reply.channel == "updates"]
    return [(update.client, update.samples) for update in found]


def test_an_upload_ends_at_a_tick_once_its_time_has_come() -> None:
    """Protects the upload interval, and the contract: however late a batch is read, it is no tick."""
    role = client()
    role.receive([sample("a", 0)], 10.0)
    role.receive([sample("b", 1)], 10.5)
    assert role.wake_at == 11.0
    assert updates(list(role.receive([sample("a", 2)], 11.2))) == []
    assert updates(list(role.receive([], 11.2))) == [("a", 2)]
    assert role.wake_at == 11.5
    assert updates(list(role.receive([], 11.5))) == [("b", 1)]
    assert role.wake_at is None


def test_an_upload_that_begins_where_one_ended_is_sent_once() -> None:
    """Protects against an upload sent twice, or a client that fails, when the clock stands still between two uploads."""
    role = client()
    role.receive([sample("a", 0)], 10.0)
    assert updates(list(role.receive([], 11.0))) == [("a", 1)]
    role.receive([sample("a", 1)], 11.0)
    stayed = [change for change in role.changed_state() if change.value is not None]
    assert updates(list(role.receive([], 12.0))) == [("a", 1)]
    assert updates(list(role.receive([], 13.0))) == []
    again = client()
    for change in stayed:
        # Twice, as a worker does that had to begin its restoring anew.
        again.restore(change)
        again.close(0)
        again.open(0)
        again.restore(StateChange(change.channel, change.partition, change.key, change.value))
    assert updates(list(again.receive([], 12.0))) == [("a", 1)]
    assert updates(list(again.receive([], 13.0))) == []
