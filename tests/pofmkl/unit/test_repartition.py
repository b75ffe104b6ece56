"""``streamfl repartition`` of clients: whatever it is killed at, they go on as if the partitions had always
been so many."""

from __future__ import annotations

import json
import math
from contextlib import closing, suppress
from pathlib import Path

import pytest

from streamfl.cli.check_inputs import look_at_inputs
from streamfl.cli.check_state import ChangelogContents, look_at_state
from streamfl.cli.preflight import read_configuration
from streamfl.contract.role import ConfigurationError
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.state import CLIENT_STATE
from streamfl.runtime import repartition
from streamfl.runtime.bus import Outgoing, Step, Subscription, TopicSpec
from streamfl.runtime.cluster_watch import ClusterWatch, topics_of
from streamfl.runtime.dealing import Dealing, added, dealt_over
from streamfl.runtime.kinds import build_channels, build_repartition, build_worker
from streamfl.runtime.memory_bus import MemoryBus, MemorySession
from streamfl.runtime.memory_log import PartitionLog
from streamfl.runtime.remembered_positions import POSITION_KEY
from streamfl.runtime.remembered_settings import is_settings
from streamfl.runtime.repartition import RepartitionResult

BEFORE, NOW = 2, 4
CLIENTS = [f"press-{number}" for number in range(7)]
# Of each client, in the end.
SAMPLES = 21
CONFIGURATION = """
[federation]
name = "plant"
seed = 7
clients = 7
features = 1
[bus]
connect_timeout_seconds = 0.5
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
sample_id = "id"
features = ["x"]
{labels}
[learning]
features_per_kernel = 4
catch_up_samples = 0
{learning}
[challengers]
models = ["linear"]
"""
LATE = """
[labels]
topic = "truth"
client = "device"
sample_id = "id"
label = "y"
"""
KINDS = {"with their samples": 'label = "y"', "late": LATE}


# By producers that had not noticed 4 of each client, and by others 6 of the 3 that stay; and 3 labels of
# each.
DRAINED = {"with their samples": 4 * 7 + 6 * 3, "late": 4 * 7 + 6 * 3 + 3 * 7}


class Killed(BaseException):
    """What ends a command at once."""


class Plant:
    """Clients on a memory bus without a server."""

    def __init__(self, folder: Path, labels: str, partitions: int, learning: str = "") -> None:
        config = folder / "client.toml"
        text = CONFIGURATION.format(labels=KINDS[labels], learning=learning)
        if labels == "late":
            text = text.partition("[challengers]")[0]
        config.write_text(text)
        self.configured = read_configuration(config)
        self.settings = self.configured.settings
        self.bus = MemoryBus()
        self.topics = ["readings", *(["truth"] if labels == "late" else []), "plant.pofmkl-client.state"]
        specs = self.configured.kind.topics(self.settings)
        self.bus.create(
            [
                TopicSpec(one.name, partitions if one.name in self.topics else one.partitions, one.compacted)
                for one in specs
            ]
        )
        self.late = labels == "late"

    def grow(self, *topics: str) -> None:
        """Give topics more partitions, as Kafka's own tools do."""
        for name in topics or self.topics:
            topic = self.bus._topics[name]
            topic.partitions += [
                PartitionLog(name, number, topic.state().compacted)
                for number in range(len(topic.partitions), NOW)
            ]
        for group in self.bus._groups.values():
            group._partitions = NOW

    def write(self, numbers: range, partitions: int, topic: str = "readings") -> None:
        """A record of every client for each number, by producers that know of so many partitions."""
        records = []
        for step in numbers:
            for client in CLIENTS:
                x = math.sin(step)
                content = json.dumps({"device": client, "id": f"{client}/{step}", "x": x, "y": 0.5 + 0.4 * x})
                place = self.bus.partition_of(client.encode(), partitions)
                records.append(Outgoing(topic, client.encode(), content.encode(), place))
        self.bus.write(records)

    def work(self) -> None:
        with closing(build_worker(self.settings, self.bus)) as worker:
            while worker.step(0.0):
                pass

    def repartition(self) -> RepartitionResult:
        return build_repartition(self.settings, self.bus).deal_anew(lambda _of, _done, _total: None)

    def predictions(self) -> list[tuple[str, float]]:
        found = [json.loads(record.value or b"") for record in self.bus.read("plant.predictions")]
        return sorted((one["sample"], one["prediction"]) for one in found)

    def state(self) -> dict[tuple[int, bytes], bytes]:
        latest = {
            (record.partition, record.key or b""): record.value
            for record in self.bus.read("plant.pofmkl-client.state")
        }
        return {place: value for place, value in latest.items() if value is not None}

    def learnt(self) -> dict[str, int]:
        """Labels of each client; one that began a second time would be two."""
        with closing(build_worker(self.settings, self.bus)) as worker:
            worker.step(0.0)
            assert isinstance(worker.role, PofmklClient)
            known = worker.role.snapshot()
        assert len(known) == len(CLIENTS)
        return {client: one.labels for (_, client), one in known.items()}

    def dealt_over(self) -> int:
        """What all partitions say of it."""
        said = {
            one.partition: dealt_over(one)
            for one in self.bus.read("plant.pofmkl-client.state")
            if is_settings(one)
        }
        (number,) = set(said.values())
        return number

    def check_homes(self) -> None:
        """All that is remembered of a client is where its records come, and nothing anywhere else."""
        for partition, key in self.state():
            client = None if key.startswith(POSITION_KEY) else CLIENT_STATE.client_of(key)
            assert client is None or partition == self.bus.partition_of(client.encode(), NOW)

    def begin(self) -> None:
        """Learn, and get more partitions while something lies unread."""
        self.write(range(8), BEFORE)
        if self.late:
            self.write(range(5), BEFORE, "truth")
        self.work()
        self.grow()
        self.write(range(8, 12), BEFORE)
        self.write(range(12, 18), NOW)
        if self.late:
            self.write(range(5, 8), BEFORE, "truth")

    def go_on(self) -> None:
        """Learn on."""
        # By producers that have not noticed yet.
        self.write(range(18, SAMPLES), BEFORE)
        if self.late:
            self.write(range(8, 12), BEFORE, "truth")
            self.write(range(12, SAMPLES), NOW, "truth")
        self.work()


@pytest.mark.parametrize("labels", KINDS)
def test_clients_go_on_as_if_there_had_always_been_so_many_partitions(labels: str, tmp_path: Path) -> None:
    """Protects what every client has learnt: its predictions are those of a federation that never moved."""
    plant, other = Plant(tmp_path, labels, BEFORE), Plant(tmp_path, labels, NOW)
    plant.begin()
    assert plant.repartition() == RepartitionResult(BEFORE, NOW, len(CLIENTS), 4, DRAINED[labels])
    plant.go_on()
    assert plant.repartition() == RepartitionResult(NOW, NOW, len(CLIENTS), 0, 0)
    other.write(range(SAMPLES), NOW)
    if other.late:
        other.write(range(SAMPLES), NOW, "truth")
    other.work()
    assert [name for name, _ in plant.predictions()] == [name for name, _ in other.predictions()]
    assert len(plant.predictions()) == len(CLIENTS) * SAMPLES
    assert plant.learnt() == dict.fromkeys(CLIENTS, SAMPLES)
    if not plant.late:
        # Late labels are learnt when they come, and they came otherwise.
        assert [one for _, one in plant.predictions()] == pytest.approx(
            [one for _, one in other.predictions()], abs=1e-9
        )
    plant.check_homes()


def test_what_is_unread_is_predicted_with_the_model(tmp_path: Path) -> None:
    """Protects predictions of records that the command reads: they are made with the present model, not as
    if there were none."""
    plant = Plant(tmp_path, "with their samples", BEFORE)
    path = tmp_path / "server.toml"
    kept = (tmp_path / "client.toml").read_text().partition("[samples]")[0]
    path.write_text(kept.replace("pofmkl-client", "pofmkl-server") + "[learning]\nfeatures_per_kernel = 4\n")
    server = read_configuration(path)
    plant.bus.create(
        [one for one in server.kind.topics(server.settings) if not plant.bus.describe([one.name])]
    )
    with closing(build_worker(server.settings, plant.bus)) as worker:
        plant.write(range(9), BEFORE)
        plant.work()
        while worker.step(0.0):
            pass
    plant.work()
    plant.grow()
    plant.write(range(9, 12), BEFORE)
    predicted = len(plant.predictions())
    plant.repartition()
    later = [json.loads(one.value or b"") for one in plant.bus.read("plant.predictions")][predicted:]
    assert len(later) == 3 * len(CLIENTS)
    assert all(one["model_version"] > 0 for one in later)


@pytest.mark.parametrize("labels", KINDS)
def test_check_finds_nothing_wrong_with_what_came_before_the_move(labels: str, tmp_path: Path) -> None:
    """Protects from a FAIL after a move that is done: clients' records lie in old partitions and in new ones,
    and the workers send on what belongs elsewhere."""
    plant = Plant(tmp_path, labels, BEFORE)
    plant.begin()
    plant.repartition()
    plant.go_on()
    remembered, channels = ChangelogContents(), build_channels(plant.settings)
    role = plant.configured.kind.build(plant.settings)
    findings = [
        *look_at_state(plant.configured, plant.bus, channels, remembered),
        *look_at_inputs(plant.configured, plant.bus, role, channels, remembered),
    ]
    assert [found for found in findings if not found.passed] == []


def die_at(fatal: int, after: bool, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command and kill it at this commit, before or after it is made; how many it came to."""
    commit, commits = MemorySession.commit, 0

    def die(session: MemorySession, step: Step) -> None:
        nonlocal commits
        commits += 1
        if commits == fatal and not after:
            raise Killed
        commit(session, step)
        if commits == fatal:
            raise Killed

    monkeypatch.setattr(MemorySession, "commit", die)
    with suppress(Killed):
        plant.repartition()
    monkeypatch.setattr(MemorySession, "commit", commit)
    return commits


@pytest.mark.long
@pytest.mark.parametrize(("labels", "after"), [("with their samples", False), ("late", True)])
def test_a_command_that_is_killed_anywhere_is_run_again(
    labels: str, after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects against half a move: killed at any of its commits, nobody begins meanwhile, and the next one
    ends it."""
    monkeypatch.setattr(repartition, "STEP_BYTES", 1)
    fatal = commits = 0
    while commits == fatal:
        fatal += 1
        plant = Plant(tmp_path, labels, BEFORE)
        plant.begin()
        commits = die_at(fatal, after, plant, monkeypatch)
        if plant.dealt_over() != NOW:
            state = plant.state()
            with pytest.raises(
                ConfigurationError, match=f"{NOW} partitions.*spread over {BEFORE}.*repartition CONFIG"
            ):
                plant.work()
            assert plant.state() == state
        plant.repartition()
        plant.go_on()
        assert [name for name, _ in plant.predictions()] == sorted(
            {f"{one}/{step}" for one in CLIENTS for step in range(SAMPLES)}
        )
        assert plant.learnt() == dict.fromkeys(CLIENTS, SAMPLES)
        plant.check_homes()
    assert commits > 4, "it moves clients one by one here"


def test_who_has_new_partitions_alone_begins_none(tmp_path: Path) -> None:
    """Protects clients from a second life: a worker that sees none of the old state must not begin anew
    beside it."""
    plant = Plant(tmp_path, "late", BEFORE)
    plant.begin()
    subscription = Subscription(plant.settings.group, ("readings", "truth"))
    with (
        closing(plant.bus.session(subscription)) as other,
        closing(build_worker(plant.settings, plant.bus)) as worker,
    ):
        other.poll(0.0, 1)
        state = plant.state()
        with pytest.raises(ConfigurationError, match=r"spread over 2.*streamfl repartition CONFIG"):
            worker.step(0.0)
        other.poll(0.0, 1)
        assert plant.bus._groups[plant.settings.group].owned_since(other).keys() == {0, 1}, (
            "the worker had the new ones"
        )
        assert plant.state() == state


def test_a_worker_that_runs_says_that_partitions_were_added(tmp_path: Path) -> None:
    """Protects against going on in silence: the worker is told at once, stops, and names the command; a group
    may know first."""
    plant = Plant(tmp_path, "late", BEFORE)
    plant.write(range(3), BEFORE)
    with closing(build_worker(plant.settings, plant.bus)) as worker:
        worker.step(0.0)
        worker.step(0.0)
        channels, lost = plant.configured.kind.channels(plant.settings), list[str]()
        watch = ClusterWatch(
            plant.bus,
            topics_of(channels, "plant.dead-letters"),
            plant.settings.group,
            worker.health,
            lost.append,
            grown=lambda topic, before, now: added(topic, before, now, channels, plant.settings.group),
        )
        assert watch.look()
        plant.grow()
        assert not watch.look()
        assert lost == [worker.health.reasons["topics"]]
        assert "has 4 partitions, and this role's state is spread over 2" in lost[0]
        assert "every input 4 partitions" in lost[0]
        # `streamfl repartition` takes no other number than a multiple.
        assert "every input 6 partitions" in added("readings", 2, 5, channels, plant.settings.group)
        # The group may deal new partitions before the worker's own look at the cluster.
        with closing(plant.bus.session(Subscription(plant.settings.group, ("readings", "truth")))) as other:
            other.poll(0.0, 1)
        with pytest.raises(
            ConfigurationError, match=r"4 partitions.*spread over 2.*streamfl repartition CONFIG"
        ):
            worker.step(0.0)


def test_state_of_a_release_that_did_not_say_moves_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects whoever adds partitions before the first start of this release: the number is found by where
    clients lie."""
    plant = Plant(tmp_path, "late", BEFORE)
    with monkeypatch.context() as before:
        before.setattr(Dealing, "headers", lambda _: ())
        plant.begin()
    assert plant.dealt_over() == 0
    assert plant.repartition().before == BEFORE
    plant.go_on()
    assert plant.learnt() == dict.fromkeys(CLIENTS, SAMPLES)


def test_what_cannot_be_moved_is_refused_and_stays(tmp_path: Path) -> None:
    """Protects against a guess: clients that lie elsewhere than any partitioner puts them, and a number that
    is no multiple."""
    plant = Plant(tmp_path, "late", BEFORE)
    plant.write(range(3), 1)
    plant.work()
    plant.grow()
    with pytest.raises(ConfigurationError, match=r"client 'press-\d' is in partition .* of 2.*samples.rekey"):
        plant.repartition()
    assert plant.dealt_over() == BEFORE
    other = Plant(tmp_path, "late", 3)
    other.write(range(3), 3)
    other.work()
    other.grow()
    with pytest.raises(ConfigurationError, match="a multiple of 3, such as 6"):
        other.repartition()
