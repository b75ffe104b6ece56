"""When a client begins an upload, and when it ends one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from pofmkl.makers import new_client, staleness

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import LARGEST_STEP, MARKER_KEY, UPDATE, ShardVersion
from streamfl.records.samples import Sample


def client(
    lockstep: bool = False, most: int | None = None, shards: int = 1, uplink: dict[str, float] | None = None
) -> PofmklClient:
    features = FeatureMap(np.random.default_rng(0).standard_normal((4, 3, 2)))
    role = new_client(
        PaperLearner(features=features, learning_rate=0.1, regularisation=1e-3, loss=SQUARE),
        federation={"shards": shards},
        learning={"staleness": staleness(lockstep)}
        if most is None
        else {"staleness": "bounded", "max_staleness": most},
        uplink=uplink or {"kernels_per_upload": 2},
    )
    role.open(0)
    return role


def sample(name: str, offset: int) -> Received:
    return Received(
        "samples",
        Sample(name, f"s{offset}", (0.1, 0.2), 0.5),
        Record("samples", 0, offset, name.encode(), b""),
    )


def model(version: int, shard: int = 0) -> Received:
    """The news that a shard has reached a version; no kernel has changed."""
    message = ShardVersion(VERSION, 0, 2, shard, version, version)
    return Received("model", message, Record("model", shard, version, MARKER_KEY, b""))


def updates(replies: Sequence[Send | Rejection]) -> list[tuple[str, int, int]]:
    """Whose updates, of how many samples, and made on which version of the model."""
    found = [
        UPDATE.decode(reply.value)
        for reply in replies
        if isinstance(reply, Send) and reply.channel == "updates"
    ]
    return [(update.client, update.samples, update.model_version) for update in found]


def test_an_upload_ends_at_a_tick_once_its_time_has_come() -> None:
    """Protects the upload interval, and the contract: however late a batch is read, it is no tick."""
    role = client()
    role.receive([sample("a", 0)], 10.0)
    role.receive([sample("b", 1)], 10.5)
    assert role.wake_at == 11.0
    assert updates(role.receive([sample("a", 2)], 11.2)) == []
    assert updates(role.receive([], 11.2)) == [("a", 2, 0)]
    assert role.wake_at == 11.5
    assert updates(role.receive([], 11.5)) == [("b", 1, 0)]
    # Only a server that stays silent would wake it.
    assert role.wake_at is not None
    assert role.wake_at > 12.5


def test_an_upload_that_begins_where_one_ended_is_sent_once() -> None:
    """Protects against an upload sent twice, or a client that fails, when the clock stands still between two
    uploads."""
    role = client()
    role.receive([sample("a", 0)], 10.0)
    assert updates(role.receive([], 11.0)) == [("a", 1, 0)]
    role.receive([sample("a", 1)], 11.0)
    stayed = [change for change in role.changed_state() if change.key == b"client/a"]
    assert updates(role.receive([], 12.0)) == [("a", 1, 0)]
    assert updates(role.receive([], 13.0)) == []
    again = client()
    for change in stayed:
        # Twice, as a worker does that had to begin its restoring anew.
        again.restore(change)
        again.close(0)
        again.open(0)
        again.restore(StateChange(change.channel, change.partition, change.key, change.value))
    assert updates(again.receive([], 12.0)) == [("a", 1, 0)]
    assert updates(again.receive([], 13.0)) == []


@pytest.mark.parametrize("samples_per_version", [None, 3])
def test_an_upload_is_made_on_one_version_of_the_model(samples_per_version: int | None) -> None:
    """Protects staleness: steps made on a model that has changed are sent at once, and later ones are of the
    new version."""
    role = client(most=samples_per_version)
    assert updates(role.receive([sample("a", 0)], 10.0)) == []
    assert updates(role.receive([model(1)], 10.1)) == [("a", 1, 0)]
    assert updates(role.receive([sample("a", 1), sample("a", 2)], 10.2)) == []
    assert updates(role.receive([model(2), sample("a", 3)], 10.3)) == [("a", 2, 1)]
    assert updates(role.receive([], 11.3)) == [("a", 1, 2)]


def test_a_round_begins_when_every_shard_has_ended_the_last() -> None:
    """Protects lockstep with shards: a sample learnt between two rounds would be late for one shard's and of
    no round."""
    role = client(lockstep=True, shards=2)
    assert updates(role.receive([sample("a", 0), sample("a", 1)], 10.0)) == [("a", 1, 0)] * 2
    assert role.receive([model(1, shard=0)], 10.1) == []
    assert updates(role.receive([model(1, shard=1)], 10.2)) == [("a", 1, 1)] * 2


def test_between_two_rounds_nobody_waits_for_a_time() -> None:
    """Protects the processor: with a byte budget, and one shard's round closed before the other's, a time
    that has passed already would be asked for again and again until the other shard is heard.
    """
    role = client(lockstep=True, shards=2, uplink={"budget_bytes_per_second": 100.0})
    role.receive([sample("a", 0), sample("a", 1)], 10.0)
    role.receive([model(1, shard=0)], 20.0)
    assert role.wake_at is None or role.wake_at > 30.0
    role.receive([model(1, shard=1)], 30.0)
    assert role.wake_at is None or role.wake_at > 30.0


def test_an_upload_of_steps_that_are_infinite_can_be_taken_back() -> None:
    """Protects a client from ending at every start: what it had gathered was infinite, and a restart takes no
    such numbers."""

    def steep() -> PofmklClient:
        features = FeatureMap(np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32))
        learner = PaperLearner(features=features, learning_rate=3e38, regularisation=1e-3, loss=SQUARE)
        role = new_client(learner, uplink={"kernels_per_upload": 2})
        role.open(0)
        return role

    role, restored = steep(), steep()
    for offset in range(3):
        role.receive([sample("a", offset)], 10.0)
    for change in role.changed_state():
        restored.restore(change)
    (send,) = restored.receive([], 11.0)
    assert isinstance(send, Send)
    numbers = np.frombuffer(UPDATE.decode(send.value).steps, np.float32)
    assert 0 < np.abs(numbers).max() <= LARGEST_STEP
