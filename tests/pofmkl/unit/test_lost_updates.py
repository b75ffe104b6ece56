"""A federation goes on where updates were deleted before the server read them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from pofmkl.makers import MemoryFederation

from streamfl.runtime.bus import Outgoing
from streamfl.runtime.worker import Worker

CONTENT: dict[str, dict[str, Any]] = {
    "federation": {"name": "f", "clients": 2, "seed": 5, "features": ["x"]},
    "bus": {"commit_interval_ms": 1},
    "samples": {"topic": "samples", "label": "y"},
}


def learnt(federation: MemoryFederation) -> float:
    return sum(one.value for one in federation.workers[0].role.measure() if one.name == "lifetime_labels")


def stop(federation: MemoryFederation, worker: Worker) -> None:
    federation.workers.remove(worker)
    worker.close()


def delete_updates(federation: MemoryFederation, shard: int) -> None:
    updates = federation.bus._log("f.updates", shard)
    updates.drop(updates.end)


def write(federation: MemoryFederation, numbers: Sequence[int]) -> None:
    rows = [(client, {"x": number / 9, "y": number / 10}) for number in numbers for client in "ab"]
    federation.write("samples", rows)


@pytest.mark.parametrize("began", [True, False])
@pytest.mark.parametrize("staleness", ["lockstep", "bounded"])
def test_a_round_whose_updates_were_deleted_ends(staleness: str, began: bool) -> None:
    """Protects whoever's server was away for longer than the retention: its clients waited for a version that
    never came, and the server was ready. began: whether the server had run before."""
    learning = {"staleness": staleness} | ({"max_staleness": 1} if staleness == "bounded" else {})
    with closing(MemoryFederation(CONTENT | {"learning": learning}, 1)) as federation:
        federation.start()
        if began:
            server = federation.start("pofmkl-server")
            write(federation, range(3))
            federation.settle()
            assert learnt(federation) == 6
            stop(federation, server)
        write(federation, range(3 if began else 0, 6))
        federation.settle()
        assert learnt(federation) == (8 if began else 2)
        delete_updates(federation, 0)
        federation.start("pofmkl-server")
        federation.settle()
        federation.clock.now += 31
        federation.settle()
        assert learnt(federation) == 12
        assert len(federation.predictions()) == 12


@pytest.mark.parametrize("lost", [[0], [1], [0, 1]])
def test_shards_pass_a_lost_round_together(lost: Sequence[int]) -> None:
    """Protects lockstep with several shards: clients wait until all have one version, and a shard that passed
    a round alone would never be joined by the others. Nobody waited for what was deleted here."""
    content = CONTENT | {"federation": CONTENT["federation"] | {"shards": 2}}
    content |= {"learning": {"staleness": "lockstep"}}
    with closing(MemoryFederation(content, 1)) as federation:
        federation.start()
        server = federation.start("pofmkl-server")
        write(federation, range(3))
        federation.settle()
        stop(federation, server)
        for shard in lost:
            federation.bus.write([Outgoing("f.updates", b"a", b"nobody waits for this", shard)])
            delete_updates(federation, shard)
        federation.start("pofmkl-server")
        for numbers in ([], range(3, 6)):
            write(federation, numbers)
            for _ in range(5):
                federation.settle()
                federation.clock.now += 31
        assert learnt(federation) == 12


def test_a_loss_before_the_first_start_is_noted_once() -> None:
    """Protects a server without clients: each of its starts closed a round more, with a warning."""
    with closing(MemoryFederation(CONTENT | {"learning": {"staleness": "lockstep"}}, 1)) as federation:
        federation.bus.write([Outgoing("f.updates", b"a", b"nobody waits for this", 0)])
        delete_updates(federation, 0)
        for _ in range(3):
            server = federation.start("pofmkl-server")
            federation.settle()
            federation.clock.now += 31
            federation.settle()
            versions = [one.value for one in server.role.measure() if one.name == "model_version"]
            stop(federation, server)
        assert max(versions) == 1
