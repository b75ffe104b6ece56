"""A role that remembers one value of each client says its messages and its value. Its changelog, its bound
and where its state belongs follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from unit.test_repartition import grow

from streamfl.contract.channel_table import USER, Channel, ChannelTable
from streamfl.contract.role import BadRecord, Record, Send
from streamfl.records.header_propagation import FollowedPredictions
from streamfl.records.samples import Sample, SampleReader, SamplesSection
from streamfl.records.topic import RecordSettings
from streamfl.roles.client_role import ClientCounts, ClientRole, ClientsFederation, client_state
from streamfl.roles.role_kind import RoleKind
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_repartition, build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.state.table import StateTable

CHANGELOG = "toy.tally.state"
CLIENTS = [f"press-{number}" for number in range(8)]


class TallySettings(RecordSettings):
    federation: ClientsFederation
    samples: SamplesSection
    predictions: FollowedPredictions = FollowedPredictions()


class Total(msgspec.Struct, frozen=True, array_like=True):
    """The sum of a client's
    labels."""

    labels: float


class Tally(ClientRole[Sample, Total]):
    """Sends the sum so far, times the factor of a global table, and after it the sample's name. It refuses
    labels below 0."""

    def __init__(self, settings: TallySettings) -> None:
        super().__init__(Total, settings.federation.clients, ClientCounts(), {"factors": self._take_factor})
        self._factor = 1.0

    def _take_factor(self, factor: float) -> None:
        if factor < 0:
            raise BadRecord("malformed", "a factor below 0")
        self._factor = factor

    def take(self, sample: Sample, value: Total | None) -> tuple[Sequence[Send], Total | None]:
        if sample.label is None:
            return [], None
        if sample.label < 0:
            raise BadRecord("label", "a label below 0")
        total = Total(sample.label + (0.0 if value is None else value.labels))
        key = sample.client.encode()
        answers = (self._factor * total.labels, sample.id)
        return [Send("totals", key, json.dumps(answer).encode()) for answer in answers], total


def decode_factor(record: Record) -> float:
    return float(record.value or b"")


def table(settings: TallySettings) -> ChannelTable:
    factors = Channel(
        name="factors", links={(USER, "tally"): "factors"}, decode=decode_factor, whole=True, compacted=True
    )
    totals = Channel(name="totals", links={("tally", USER): "toy.totals"})
    return ChannelTable("tally", [factors, SampleReader(settings.samples).channel("tally"), totals])


KIND = RoleKind("tally", TallySettings, Tally, table, state=client_state(Total), metrics=(ClientCounts,))
SETTINGS = TallySettings.model_validate(
    {
        "federation": {"name": "toy", "clients": 6},
        "role": {"kind": "tally"},
        "samples": {"topic": "readings", "features": ["x"], "label": "y", "sample_id": "id"},
        "registry": {"url": "http://registry:8081"},
    }
)


@pytest.fixture(name="bus")
def _bus() -> MemoryBus:
    bus = MemoryBus()
    bus.create([replace(spec, partitions=2) for spec in KIND.topics(SETTINGS)])
    return bus


def work(bus: MemoryBus, settings: TallySettings = SETTINGS) -> dict[str, Total]:
    """Reads what is there. Returns the value of each client."""
    role = Tally(settings)
    worker = build_worker(settings, bus, kind=replace(KIND, build=lambda _settings: role))
    while worker.step(0.0):
        pass
    found = role.values
    worker.close()
    assert not role.values, "a role keeps nothing of partitions that it has given up"
    return found


def write(bus: MemoryBus, client: str, label: float, name: str = "s") -> None:
    content = json.dumps({"x": 0.0, "y": label, "id": name}).encode()
    bus.write([Outgoing("readings", client.encode(), content)])


def totals(bus: MemoryBus) -> list[Any]:
    return [json.loads(record.value or b"") for record in bus.read("toy.totals")]


def test_a_sample_has_several_answers_in_their_order(bus: MemoryBus) -> None:
    """Protects peers and users: all answers are sent, in the order of the role, and no answer is one too."""
    write(bus, "press-0", 2.0, "first")
    bus.write([Outgoing("readings", b"press-0", b'{"x": 0, "id": "unlabelled"}')])
    write(bus, "press-0", 3.0, "second")
    work(bus)
    assert totals(bus) == [2.0, "first", 5.0, "second"]


def test_the_last_record_of_a_global_table_counts_and_is_no_sample(bus: MemoryBus) -> None:
    """Protects roles that read what a server publishes: it reaches the role, and a wrong record is refused
    alone."""
    bus.write([Outgoing("factors", b"factor", factor, partition=0) for factor in (b"10", b"-1")])
    write(bus, "press-0", 2.0)
    work(bus)
    assert totals(bus) == [20.0, "s"]


def test_what_is_refused_leaves_the_client_as_it_was(bus: MemoryBus) -> None:
    """Protects the value of a client: a refused sample has no answer and changes nothing, and a client more
    than there is room for is refused."""
    for client in CLIENTS:
        write(bus, client, 1.0)
    write(bus, "press-0", -1.0)
    few = SETTINGS.federation.model_copy(update={"clients": 3})
    work(bus, SETTINGS.model_copy(update={"federation": few}))
    placed = [bus.partition_of(client.encode(), 2) for client in CLIENTS]
    without_room = sum(max(0, placed.count(partition) - 3) for partition in (0, 1))
    refused = [dict(record.headers)["error"] for record in bus.read("toy.dead-letters")]
    assert sorted(refused) == [b"label", *[b"unknown_client"] * without_room]
    assert totals(bus).count(1.0) == len(CLIENTS) - without_room


def test_the_changelog_follows_from_the_samples_and_the_value() -> None:
    """Protects authors of a role: what it remembers has a topic with as many partitions as its samples, and a
    row in the table of state, without a word of theirs."""
    assert KIND.channels(SETTINGS).changelogs == {"state": CHANGELOG}
    assert KIND.partitioned_like(SETTINGS) == {CHANGELOG: "readings"}
    assert [(row.key, row.meaning) for row in KIND.state.rows] == [
        ("client/NAME", "The sum of a client's labels.")
    ]


def test_a_state_does_not_depend_on_how_predictions_are_written() -> None:
    """Protects a state from being refused after a change of what was never learnt from."""
    remembered = KIND.state_settings(SETTINGS).values
    assert {key.partition(".")[0] for key in remembered} == {"federation", "samples"}
    assert {"federation.clients", "samples.label"} <= remembered.keys()


def test_a_row_of_ones_own_takes_the_place_of_the_changelog_that_follows() -> None:
    """Protects systems that name their changelog: its topic stays, and is there once."""
    own = Channel(name="state", links={("tally", "tally"): "toy.mine"}, state=True, like="samples")
    named = replace(KIND, table=lambda settings: ChannelTable("tally", [*table(settings).rows, own]))
    assert named.channels(SETTINGS).changelogs == {"state": "toy.mine"}
    assert replace(KIND, state=StateTable()).channels(SETTINGS).changelogs == {}


def test_state_moves_with_its_clients_when_partitions_are_added(bus: MemoryBus) -> None:
    """Protects what was learnt of each client: `streamfl repartition` knows where it belongs, because the
    samples say the keys of clients and the table of state says whose a value is."""
    for client in CLIENTS[:5]:
        write(bus, client, 1.0)
    work(bus)
    grow(bus, 4, "readings", CHANGELOG)
    result = build_repartition(SETTINGS, bus, KIND).deal_anew(lambda of, done, total: None)
    assert (result.before, result.now, result.clients) == (2, 4, 5)
    assert result.moved > 0
    for client in CLIENTS[:5]:
        write(bus, client, 1.0, "later")
    assert work(bus) == dict.fromkeys(CLIENTS[:5], Total(2.0))
