"""Makers of blocks and their readers under every fault: interrupted work, and messages that a crash cuts in
two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from blocks import BLOCK_TOPICS, LIMITS, BlockReader, checksum, decode_block
from fault_runs import check_seeds_repeat
from making import BlockMaker, decode_order, make_block, make_piece

from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import StateChange, Work
from streamfl.contract.seeding import rng_for
from streamfl.roles.fragment_encoding import decoded_in_fragments
from streamfl.roles.message_fragments import LongMessages
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime import kinds
from streamfl.runtime.bus import Bus
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import StateSettings
from streamfl.testing.faults import Verdict, federation
from streamfl.testing.faults.cluster import FaultyBus
from streamfl.testing.faults.fault_rates import DURING_WORK, Rates, drawn_rates
from streamfl.testing.faults.federation import CheckFailed, Reading
from streamfl.testing.faults.permanent_faults import PermanentFault

SEEDS = range(12)
KEYS = ("pump", "fan", "valve")
DEAD_LETTERS = "toy.dead-letters"
TOPICS = [
    *(spec for spec in BLOCK_TOPICS if spec.name != "dead-letters"),
    TopicSpec("orders", 2, compacted=False),
    TopicSpec("made", 2, compacted=True),
    TopicSpec(DEAD_LETTERS, 1, compacted=False),
]
ROWS = [
    Channel(name="orders", links={(USER, "maker"): "orders"}, decode=decode_order),
    Channel(name="blocks", links={("maker", "reader"): "blocks"}, decode=decoded_in_fragments(decode_block)),
    Channel(name="checksums", links={("reader", USER): "checksums"}),
    Channel(name="made", links={("maker", "maker"): "made"}, state=True),
    Channel(name="state", links={("reader", "reader"): "state"}, state=True),
]


def kind(name: str) -> RoleKind[RoleSettings]:
    role = BlockMaker if name == "maker" else BlockReader
    return RoleKind(
        name, RoleSettings, lambda _: role(), lambda _: ChannelTable(name, ROWS), lambda _: StateSettings()
    )


@pytest.fixture(autouse=True)
def _the_toy_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kinds, federation):
        monkeypatch.setattr(module, "find_kind", kind)


@dataclass(frozen=True)
class Orders:
    """A scenario: the orders with their times, two makers, two readers, and the faults."""

    seed: int
    rates: Rates
    guarantee: str
    readings: tuple[tuple[Reading, ...], ...]
    last: tuple[Reading, ...]
    faulty_seconds: float = 12.0
    repeatable: Collection[str] = ("blocks",)
    topics: Sequence[TopicSpec] = field(default=tuple(TOPICS), repr=False)
    tasks: int = 4
    permanent_fault: PermanentFault | None = None

    @property
    def members(self) -> Mapping[str, tuple[int, RoleSettings]]:
        # With so few records in a step, every message is divided over two steps.
        return {name: (2, settings(name, self.guarantee, 2)) for name in ("maker", "reader")}

    def prepare(self, worker: Worker) -> None:
        """Nothing to change."""

    def check_bounds(self, worker: Worker) -> None:
        if worker.role.waiting.get("messages in parts", 0) > 2 * LIMITS.messages:
            raise CheckFailed(f"more waits than may: {worker.role.waiting}")

    def wanted(self, last: bool) -> set[tuple[bytes, bytes]]:
        written = [one for readings in self.readings for one in readings] + list(self.last if last else ())
        return {
            (one.client.encode(), checksum(make_block(one.client.encode(), one.content["id"])))
            for one in written
        }

    def standing(self, bus: Bus, last: bool) -> str:
        missing = self.wanted(last) - {(record.key, record.value) for record in bus.read("checksums")}
        return f"{len(missing)} blocks were not read" if missing else ""

    def check(self, bus: FaultyBus) -> None:
        """Every block is complete, once if nothing may come twice, and nothing correct was refused."""
        found = Counter((record.key, record.value) for record in bus.read("checksums"))
        if found.keys() != self.wanted(last=True):
            raise CheckFailed(f"read was {found}, wanted {self.wanted(last=True)}")
        if self.guarantee == "exactly_once" and max(found.values()) > 1:
            raise CheckFailed(f"a block came twice: {found}")
        if letters := list(bus.read(DEAD_LETTERS)):
            raise CheckFailed(f"refused was {[dict(letter.headers)['text'] for letter in letters]}")


def settings(name: str, guarantee: str, records: int) -> RoleSettings:
    return RoleSettings.model_validate(
        {
            "federation": {"name": "toy"},
            "role": {"kind": name},
            "bus": {"group": name, "processing_guarantee": guarantee, "max_poll_records": records},
        }
    )


def orders(seed: int) -> Orders:
    draws = rng_for(seed, "toy", "orders")
    guarantee = ("exactly_once", "at_least_once")[seed % 2]
    producers = tuple(
        tuple(
            Reading("orders", key, {"id": number}, float(number + draws.uniform(0, 0.5)), False)
            for number in range(1, 9)
        )
        for key in KEYS
    )
    last = tuple(Reading("orders", key, {"id": 9}, 0.0, False) for key in KEYS)
    return Orders(seed, drawn_rates(draws, seed, guarantee == "exactly_once"), guarantee, producers, last)


def simulate(seed: int, bus: str = "memory") -> Verdict:
    scenario = orders(seed)
    return federation.run(scenario, scenario.check, bus)


@pytest.fixture(name="resumed")
def _resumed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """Counts the parts that were restored from a changelog."""
    found: list[bytes] = []
    real = LongMessages.restore

    def restore(self: LongMessages, change: StateChange) -> bool:
        if b"/part/" in change.key:
            found.append(change.key)
        return real(self, change)

    monkeypatch.setattr(LongMessages, "restore", restore)
    return found


@pytest.mark.parametrize("bus", ["memory", "sqlite"])
def test_every_block_is_read_whole_and_once(bus: str, resumed: list[bytes]) -> None:
    """Protects long messages and long work under every fault, including crashes between two parts and during
    work."""
    verdicts = [simulate(seed, bus) for seed in (SEEDS if bus == "memory" else SEEDS[:6])]
    assert [f"seed {verdict.seed}: {verdict.failure}" for verdict in verdicts if verdict.failure] == []
    met = sum((verdict.faults for verdict in verdicts), Counter[str]())
    assert met[DURING_WORK] > 0
    assert sum("gives up work" in line for verdict in verdicts for line in verdict.lines) > met[DURING_WORK]
    assert len(resumed) > 10


def test_a_seed_is_one_history() -> None:
    """Protects the reproduction of a failure: repeated work takes the same virtual time and gives the same
    bytes."""
    check_seeds_repeat(simulate, *SEEDS[:2])


def test_work_that_is_done_again_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects uncommitted output: a reader of it and of its repetition learns nothing from a difference."""
    made: dict[bytes, set[bytes]] = {}
    real = Work.received
    twice: Counter[bytes] = Counter()

    def received(self: Work, number: int, result: bytes) -> Any:
        made.setdefault(self.content, set()).add(result)
        twice[self.content] += 1
        return real(self, number, result)

    monkeypatch.setattr(Work, "received", received)
    for seed in SEEDS[:6]:
        simulate(seed)
    assert all(results == {make_piece(content)} for content, results in made.items())
    assert max(twice.values()) > 6


def forgets_the_parts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongMessages, "restore", lambda self, change: change.key.startswith(b"long/"))


def does_not_know_what_it_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LongMessages, "_note", lambda self, partition, part: None)


def goes_on_without_its_partition(patch: pytest.MonkeyPatch) -> None:
    def give_up_nothing(self: Worker, polled: Any) -> None:
        with self.lock:
            self._drop_tasks()
        self._meanwhile.revoked.clear()

    patch.setattr(Worker, "_do_again", give_up_nothing)


@pytest.mark.parametrize(
    "mutation", [forgets_the_parts, does_not_know_what_it_heard, goes_on_without_its_partition]
)
def test_a_mistake_is_found(mutation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the simulation from being empty: each of these bugs fails some seed."""
    mutation(monkeypatch)
    assert any(simulate(seed).failure for seed in range(60))
