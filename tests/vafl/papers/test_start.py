"""Who can compute a party's first parameters turns its first embeddings back into features."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.contract.role import Received, Record, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.messages import EMBEDDING, REPLY, Embedding, Reply

SECTIONS: dict[str, Any] = {
    "vafl-party": {
        "party": {"name": "bank"},
        "samples": {"topic": "accounts", "features": ["a", "b", "c", "d"]},
    },
    "vafl-coordinator": {"labels": {"topic": "outcomes", "label": "y"}},
}


def settings(
    kind: str, hidden: int, size: int, head: dict[str, Any] | None = None, **sections: Any
) -> VaflSettings:
    content = {
        "federation": {"name": "f", "seed": 3, "parties": ["bank", "shop"], "embedding_size": size},
        "role": {"kind": kind},
        "embedding": {"hidden": [hidden], "standardise": False},
        "head": {"kind": "network", "hidden": [3]},
        **SECTIONS[kind],
        **sections,
    }
    return VaflSettings.model_validate(content)


def built(chosen: VaflSettings, partitions: int = 2) -> Any:
    role: Any = find_kind(chosen.role.kind).build(chosen)
    for partition in range(partitions):
        role.open(partition)
    return role


def shows(role: Any, records: NDArray[Any], partition: int = 0) -> NDArray[np.float64]:
    """What a party shows of these records, (n, embedding size)."""
    batch = [
        Received(
            "samples",
            Sample(f"e{n}", "s", tuple(one), None),
            Record("accounts", partition, 0, f"e{n}".encode(), b""),
        )
        for n, one in enumerate(records.tolist())
    ]
    sends = [one for one in role.receive(batch, 0.0) if isinstance(one, Send)]
    return np.array([np.frombuffer(EMBEDDING.decode(one.value).values, "<f4") for one in sends], float)


# ---- the attack


# ---- whose start it is


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("kind", SECTIONS)
def test_each_start_is_its_own_unless_it_is_the_seeds_or_a_secrets(kind: str, secret: str) -> None:
    """Protects first parameters by default, and whoever needs the same ones at every start. Partitions do not
    share them either."""

    def parameters(partition: int = 0, **sections: Any) -> NDArray[Any]:
        return np.asarray(built(settings(kind, 4, 2, **sections)).parameters(partition))

    seeded = {"learning": {"seeded_start": True}}
    private = {"privacy": {"secret_file": secret}}
    np.testing.assert_array_equal(parameters(**seeded), parameters(1, **seeded))
    np.testing.assert_array_equal(parameters(**private), parameters(**private))
    np.testing.assert_array_equal(parameters(**seeded), parameters(**seeded, **private))
    starts = [
        parameters(),
        parameters(),
        parameters(**seeded),
        parameters(**private),
        parameters(1, **private),
    ]
    for place, one in enumerate(starts):
        assert all(np.abs(one - other).max() > 1e-3 for other in starts[:place])


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("kind", SECTIONS)
def test_a_restart_goes_on_with_the_start_that_is_remembered(kind: str, steps: int, secret: str) -> None:
    """Protects law 3: another process draws another start, and takes that of the partition's state, whatever
    the settings say."""
    chosen = settings(kind, 4, 2, learning={"batch_size": 1, "quorum": 1})
    before = built(chosen)
    feed: Callable[[Any], None] = party_learns if kind == "vafl-party" else coordinator_learns
    if steps:
        feed(before)
    elif kind == "vafl-party":
        shows(before, np.ones((1, 4)))
    else:
        before.receive([labelled("e0")], 0.0)
    state = list(before.changed_state())
    for sections in ({}, {"learning": {"seeded_start": True}}, {"privacy": {"secret_file": secret}}):
        again = built(settings(kind, 4, 2, **sections))
        # Compaction leaves records in the order of the last writing, and either kind may be the later.
        for change in sorted(state, key=lambda one: one.key, reverse=bool(sections)):
            again.restore(change)
        np.testing.assert_array_equal(again.parameters(0), before.parameters(0))
        # A partition without state begins with what this process drew.
        assert np.abs(again.parameters(1) - before.parameters(1)).max() > 1e-3


def party_learns(role: Any) -> None:
    before = role.parameters(0)
    shows(role, np.ones((1, 4)))
    epoch = role._tasks[0].life.epoch
    message = Reply(VERSION, role.fingerprint, "e0", epoch, 1, encode_array(np.ones(2, np.float32)))
    role.receive([Received("gradients", message, Record("gradients", 0, 0, b"e0", b""))], 0.0)
    assert np.abs(role.parameters(0) - before).max() > 0


def labelled(entity: str) -> Received:
    return Received("labels", Label(entity, entity, 1.0), Record("labels", 0, 0, entity.encode(), b""))


def coordinator_learns(role: Any) -> None:
    before = role.parameters(0)
    message = Embedding(VERSION, role.fingerprint, "e0", 0, 1, 0, encode_array(np.ones(2, np.float32)))
    shown = Received("embeddings/bank", message, Record("x", 0, 0, b"e0", b""))
    sends = role.receive([labelled("e0"), shown], 0.0)
    assert [REPLY.decode(one.value).entity for one in sends if one.channel == "gradients/bank"] == ["e0"]
    assert np.abs(role.parameters(0) - before).max() > 0


@pytest.mark.parametrize("kind", SECTIONS)
def test_state_of_a_release_that_began_by_the_seed_goes_on_there(kind: str) -> None:
    """Protects an upgrade between a party's first embeddings and its first step: it had begun by the seed."""
    chosen = settings(kind, 4, 2, learning={"seeded_start": True})
    before = built(chosen)
    if kind == "vafl-party":
        shows(before, np.ones((1, 4)))
    else:
        before.receive([labelled("e0")], 0.0)
    again = built(settings(kind, 4, 2))
    for change in before.changed_state():
        if change.key == b"task" and change.value is not None:
            fields = msgspec.msgpack.decode(change.value)
            change = StateChange(
                change.channel, change.partition, change.key, msgspec.msgpack.encode(fields[:-1])
            )
        again.restore(change)
    np.testing.assert_array_equal(again.parameters(0), before.parameters(0))


def test_the_state_on_the_cluster_does_not_hold_the_secret(secret: str) -> None:
    """Protects all noise: whoever reads the state topic learns what the start was drawn from, and nothing of
    the secret's file."""
    private = {"embedding_norm": 1.0, "embedding_noise": 4.0, "secret_file": secret}
    role = built(settings("vafl-party", 4, 2, privacy=private))
    shows(role, np.ones((1, 4)))
    content = b"".join(change.value or b"" for change in role.changed_state())
    assert bytes(range(32)) not in content
    assert bytes(range(32)).hex().encode() not in content
    assert role.given.start in content


def test_what_is_done_again_from_another_start_has_other_noise(secret: str) -> None:
    """Protects from two tries of a party's first commit: the second process may have begun elsewhere, and the
    same noise on both embeddings would give their difference.
    """
    told = []
    for seeded in (True, False):
        private = {"embedding_norm": 1.0, "embedding_noise": 4.0, "secret_file": secret}
        role = built(settings("vafl-party", 4, 2, learning={"seeded_start": seeded}, privacy=private))
        told.append(shows(role, np.ones((50, 4))) - role.embed(0, np.ones((50, 4), np.float32)))
    assert np.abs(told[0] - told[1]).min() > 1e-3
