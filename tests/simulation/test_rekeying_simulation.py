"""`streamfl rekey` under faults, and with deliberate bugs. Some of its seeds run in test_systems."""

from __future__ import annotations

from typing import Any

import pytest
from fault_runs import check_seeds_hold
from mutations import Mutation, check_caught, instead

from streamfl.rekeying.assembly import Assembly
from streamfl.rekeying.kind import RekeyReader
from streamfl.rekeying.reader import Rekeyed
from streamfl.testing.faults.buses import MemoryMember
from streamfl.testing.faults.rekeying import scenario, simulate

pytestmark = pytest.mark.usefixtures("quick_starts")


def test_scenarios_are_of_every_kind() -> None:
    """Protects the variety of seeds: single and assembled records, both guarantees, one worker and
    several."""
    chosen = [scenario(seed) for seed in range(60)]
    guarantees = {(one.together, one.settings.bus.processing_guarantee) for one in chosen}
    assert guarantees == {
        (together, of) for together in (True, False) for of in ("exactly_once", "at_least_once")
    }
    assert {one.workers for one in chosen} == {1, 2, 3}
    assert {one.partitions for one in chosen} >= {(1, 1), (1, 4), (4, 1), (4, 4)}
    assert all(one.bad or one.together for one in chosen)


def test_every_check_holds() -> None:
    """Protects rekeying from losing or doubling a record at a fault."""
    check_seeds_hold(simulate, range(12))


def forgets_what_went_on(patch: pytest.MonkeyPatch) -> None:
    real = Assembly.restore

    def restore(self: Assembly, partition: int, key: bytes, value: bytes) -> None:
        real(self, partition, key, value)
        held = self._partitions[partition]
        for place in [place for place, entry in held.entries.items() if entry.gone]:
            held.take(place)

    patch.setattr(Assembly, "restore", restore)


def remembers_nothing_of_the_half_of_a_sample(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assembly, "restore", lambda self, partition, key, value: None)


def takes_commits_of_whoever_lost_its_partitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MemoryMember, "check_ownership", lambda self, step: None)


def keeps_the_old_key(patch: pytest.MonkeyPatch) -> None:
    def decode(real: Any, self: RekeyReader, record: Any) -> Rekeyed:
        made = real(self, record)
        return Rekeyed(record.key, made.value, made.headers)

    instead(patch, RekeyReader, "decode", decode)


MUTATIONS: dict[str, Mutation] = {
    "forgets what went on": forgets_what_went_on,
    "remembers nothing of the half of a sample": remembers_nothing_of_the_half_of_a_sample,
    "takes commits of whoever lost its partitions": takes_commits_of_whoever_lost_its_partitions,
    "keeps the old key": keeps_the_old_key,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutation_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the value of the simulation for the command: each bug fails within 200 seeds."""
    MUTATIONS[name](monkeypatch)
    check_caught(f"rekey: {name}", simulate)
