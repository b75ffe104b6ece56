"""A role with its own columns and labels that also reads a peer's messages. The worker, ``check`` and
``topics`` support it unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from streamfl.cli.check_inputs import look_at_inputs
from streamfl.cli.check_state import ChangelogContents
from streamfl.cli.preflight import Configured, inspect_topics
from streamfl.configuration.settings import RoleSettings
from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import (
    BadRecord,
    Measurement,
    OperatorNotice,
    Received,
    Record,
    Rejection,
    Send,
    StateChange,
    TopicSpec,
)
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.backlog import Backlog
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import StateSettings

MOST = 4


def decode(record: Record) -> tuple[str, int]:
    """An entity and a number."""
    try:
        return (record.key or b"").decode(), int(record.value or b"")
    except ValueError as error:
        raise BadRecord("malformed", str(error)) from None


def entity(message: tuple[str, int]) -> str:
    return message[0]


_ROWS = [
    Channel(
        name="columns", links={(USER, "active"): "my-columns"}, decode=decode, keyed_by=entity, client=entity
    ),
    Channel(
        name="labels",
        links={(USER, "active"): "my-labels"},
        decode=decode,
        makes_room=True,
        keyed_by=entity,
        client=entity,
        like="columns",
    ),
    Channel(
        name="sums", links={("passive", "active"): "toy.sums"}, decode=decode, makes_room=True, like="columns"
    ),
    Channel(name="asked", links={("active", "passive"): "toy.asked"}, decode=decode, like="columns"),
    Channel(name="state", links={("active", "active"): "toy.active.state"}, state=True, like="columns"),
]
TABLE = ChannelTable("active", _ROWS, {"active": "active", "passive": "passive"})
CHANNELS, TOPICS = TABLE.channels, TABLE.topics("toy.dead-letters")
LIKE = dict.fromkeys(("my-labels", "toy.sums", "toy.asked", "toy.active.state"), "my-columns")


class ActiveParty:
    """Requests the others' parts of an entity with columns and label, and stores the residual."""

    prompt = True
    trouble: str | None = None
    wake_at: float | None = None

    def __init__(self) -> None:
        self.known: dict[int, dict[str, dict[str, int]]] = {}
        self.residuals: dict[str, int] = {}
        self._changes: list[StateChange] = []

    @property
    def full(self) -> Collection[int]:
        return [partition for partition, known in self.known.items() if len(known) >= MOST]

    @property
    def waiting(self) -> Mapping[str, int]:
        waiting = sum(map(len, self.known.values()))
        return {"entities": waiting} if waiting else {}

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def forget(self, name: str) -> bool:
        return False

    def open(self, partition: int) -> None:
        self.known[partition] = {}

    def close(self, partition: int) -> None:
        del self.known[partition]

    def restore(self, change: StateChange) -> None:
        channel, _, name = change.key.decode().partition("/")
        self.known[change.partition].setdefault(name, {})[channel] = int(change.value or b"")

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        sends = []
        for received in batch:
            name, number = received.message
            known = self.known[received.partition].setdefault(name, {})
            known[received.channel] = number
            self._remember(received.partition, received.channel, name, number)
            if received.channel != "sums" and {"columns", "labels"} <= known.keys():
                sends.append(Send("asked", name.encode(), b"%d" % known["columns"], received.partition))
            if len(known) == len(CHANNELS.inputs):
                self.residuals[name] = known["columns"] + known["sums"] - known["labels"]
                del self.known[received.partition][name]
                for channel in known:
                    self._remember(received.partition, channel, name, None)
        return sends

    def changed_state(self) -> Iterable[StateChange]:
        changes, self._changes = self._changes, []
        return changes

    def measure(self) -> Iterable[Measurement]:
        return ()

    def _remember(self, partition: int, channel: str, name: str, number: int | None) -> None:
        value = None if number is None else b"%d" % number
        self._changes.append(StateChange("state", partition, f"{channel}/{name}".encode(), value))


KIND = RoleKind(
    "active",
    settings=RoleSettings,
    build=lambda _: ActiveParty(),
    table=lambda _: TABLE,
    state_settings=lambda _: StateSettings(),
)


@pytest.fixture(name="bus")
def _bus() -> MemoryBus:
    bus = MemoryBus()
    bus.create([TopicSpec(spec.name, spec.partitions or 2, spec.compacted) for spec in TOPICS])
    return bus


def configured() -> Configured:
    settings = RoleSettings.model_validate({"federation": {"name": "toy"}, "role": {"kind": "active"}})
    return Configured(Path("active.toml"), KIND, settings)


def worker(bus: MemoryBus, role: ActiveParty) -> Worker:
    topics = tuple(source.topic for source in CHANNELS.inputs.values())
    return Worker(
        role,
        CHANNELS,
        bus,
        Subscription("toy.active", topics),
        "toy.dead-letters",
        lambda: 100.0,
        restore_seconds=0.0,
    )


def write(bus: MemoryBus, topic: str, **numbers: int) -> None:
    """Writes under each name, into its own partition."""
    bus.write([Outgoing(topic, name.encode(), b"%d" % number) for name, number in numbers.items()])


def drain(one: Worker) -> None:
    while one.step(0.0):
        pass


def test_columns_labels_and_a_peer_meet_whatever_comes_first(bus: MemoryBus) -> None:
    """Protects an active party: the three inputs of an entity are in one partition, and a restart between any
    two loses nothing."""
    residuals: dict[str, int] = {}
    for topic, numbers in (
        ("my-labels", {"a": 1, "b": 2}),
        ("my-columns", {"a": 10, "b": 20, "c": 30}),
        ("toy.sums", {"a": 100, "b": 200}),
        ("my-labels", {"c": 3}),
        ("toy.sums", {"c": 300}),
    ):
        write(bus, topic, **numbers)
        role = ActiveParty()
        one = worker(bus, role)
        drain(one)
        residuals |= role.residuals
        one.close()
    assert residuals == {"a": 109, "b": 218, "c": 327}
    assert {record.key: record.value for record in bus.read("toy.asked")} == {
        b"a": b"10",
        b"b": b"20",
        b"c": b"30",
    }


def test_labels_and_peers_make_room_while_columns_wait(bus: MemoryBus) -> None:
    """Protects against a deadlock: when columns that wait for labels fill the role, labels are still read."""
    names = [f"n{number}" for number in range(20)]
    write(bus, "my-columns", **dict.fromkeys(names, 1))
    role = ActiveParty()
    one = worker(bus, role)
    one._backlog = Backlog(role, 2)
    drain(one)
    assert set(role.full) == {0, 1}
    assert role.waiting["entities"] < len(names)
    write(bus, "toy.sums", **dict.fromkeys(names, 5))
    write(bus, "my-labels", **dict.fromkeys(names, 2))
    drain(one)
    assert role.residuals == dict.fromkeys(names, 4)
    assert not role.waiting


def test_a_column_in_another_partition_than_its_label_is_refused(bus: MemoryBus) -> None:
    """Protects the join: a record in another partition than its name's never meets the other inputs."""
    own = bus.partition_of(b"a", 2)
    bus.write([Outgoing("my-labels", b"a", b"1", 1 - own)])
    drain(worker(bus, ActiveParty()))
    [letter] = bus.read("toy.dead-letters")
    assert dict(letter.headers)["error"] == b"partition"


def test_check_looks_at_both_inputs_of_the_user(bus: MemoryBus) -> None:
    """Protects the setup of an active party: each topic has its finding, and a wrong label is reported like a
    wrong column."""
    write(bus, "my-columns", a=10)
    bus.write([Outgoing("my-labels", b"a", b"one")])
    found = {
        one.check: one
        for one in look_at_inputs(configured(), bus, ActiveParty(), CHANNELS, ChangelogContents())
    }
    assert found["records of my-columns"].passed
    assert not found["records of my-labels"].passed
    assert "records of toy.sums" in found


def test_topics_are_all_wanted_with_as_many_partitions(bus: MemoryBus) -> None:
    """Protects the join before anything runs: the topics of labels and of peers get the partitions of the
    columns."""
    assert [one.problem for one in inspect_topics(configured(), bus)] == [None] * len(TOPICS)
    other = MemoryBus()
    other.create([TopicSpec("my-columns", 3, compacted=False), TopicSpec("my-labels", 2, compacted=False)])
    problems = {one.spec.name: one for one in inspect_topics(configured(), other)}
    assert problems["my-labels"].problem == "has 2 partitions, 3 are needed, as my-columns has"
    assert {one.partitions for name, one in problems.items() if name in LIKE} == {3}
