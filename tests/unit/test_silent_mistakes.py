"""Mistakes that would stay silent: ``streamfl check`` and a running worker report them, with the remedy."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Command
from msgspec import structs
from scraped import scraped

from streamfl.cli import inspect, preflight
from streamfl.cli.preflight import Configured
from streamfl.cli.remembered_rows import CountedState
from streamfl.configuration.settings import RoleSettings, load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import ConfigurationError, Record, Role
from streamfl.contract.system import System, installed_systems
from streamfl.pofmkl.messages import MARKER_KEY, SHARD_VERSION, ShardVersion
from streamfl.records.input_watch import InputWatch
from streamfl.runtime.bus import Bus, Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.tasks import Tasks
from streamfl.runtime.worker import Worker
from streamfl.state.state_settings import STATE_SETTINGS_HEADER, STATE_SETTINGS_KEY

CLIENT = """
[federation]
name = "plant"
seed = 7
clients = 5
features = 2
[bus]
url = "{url}"
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "site"
features = ["x0", "x1"]
label = "y"
label_range = [0.0, 10.0]
[learning]
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
staleness = "async"
"""
LABELS = """
[labels]
topic = "results"
client = "site"
sample_id = "id"
label = "y"
expiry_seconds = 60
"""
SITES = ("a", "b", "c", "d", "e")

Logs = pytest.LogCaptureFixture


@dataclass
class Plant:
    """A federation on a memory bus, its settings as text that a test changes, and the command line."""

    folder: Path
    command: Command
    text: str = CLIENT
    now: float = 1000.0
    workers: list[Worker] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.url = f"memory://{self.folder.name}-mistakes"
        self.bus = MemoryBus.at(self.url)

    def change(self, old: str, new: str) -> None:
        assert old in self.text
        self.text = self.text.replace(old, new, 1)

    def settings(self, kind: str = "pofmkl-client") -> RoleSettings:
        path = self.folder / f"{kind}.toml"
        path.write_text(self.text.format(url=self.url).replace('kind = "pofmkl-client"', f'kind = "{kind}"'))
        return load_settings(path, find_kind(kind).settings)

    def create(self, partitions: int = 3) -> None:
        for kind in ("pofmkl-client", "pofmkl-server"):
            specs = find_kind(kind).topics(self.settings(kind))
            self.bus.create([replace(spec, partitions=spec.partitions or partitions) for spec in specs])

    def start(self, kind: str = "pofmkl-client") -> Worker:
        worker = build_worker(self.settings(kind), self.bus, clock=lambda: self.now)
        self.workers.append(worker)
        return worker

    def settle(self) -> None:
        while sum(worker.step(0.0) for worker in self.workers):
            pass

    def stop(self) -> None:
        self.settle()
        for worker in self.workers:
            worker.close()
        self.workers = []

    def sample(self, site: str, number: int, key: str | None = None, **content: Any) -> None:
        record = {
            "site": site,
            "id": f"r{number}",
            "x0": number % 7 / 7,
            "x1": number % 3,
            "y": 5.0 + number % 2,
            **content,
        }
        self.bus.write([Outgoing("readings", (key or site).encode(), json.dumps(record).encode())])

    def label(self, name: str, site: str = "a", key: str | None = None, partition: int | None = None) -> None:
        content = json.dumps({"site": site, "id": name, "y": 5}).encode()
        self.bus.write([Outgoing("results", (key or site).encode(), content, partition)])

    def run(self, samples: int = 12, **content: Any) -> None:
        """A client processes samples of all sites, commits and ends."""
        for number in range(samples):
            self.sample(SITES[number % len(SITES)], number, **content)
        self.start()
        self.stop()

    def check(self, kind: str = "pofmkl-client") -> tuple[int, dict[str, str]]:
        """Exit code, and what each failed check found, with its remedy."""
        self.settings(kind)
        code, out, _ = self.command("check", self.folder / f"{kind}.toml", "--format", "json")
        found = json.loads(out)["checks"]
        self.details = {one["check"]: one["detail"] for one in found}
        return code, {
            one["check"]: f"{one['detail']} -> {one['remedy']}" for one in found if not one["passed"]
        }

    def state(self) -> list[Record]:
        return list(self.bus.read("plant.pofmkl-client.state"))


@pytest.fixture
def plant(tmp_path: Path, command: Command) -> Plant:
    made = Plant(tmp_path, command)
    made.create()
    return made


# ---- the state remembers what it was made with


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "label_range = [0.0, 10.0]",
            "label_range = [0.0, 100.0]",
            "samples.label_range was [0.0,10.0], is [0.0,100.0]",
        ),
        ('label = "y"', 'label = "y"\ninput_norm = 2.0', "samples.input_norm was 1.0, is 2.0"),
        ('["x0", "x1"]', '["x1", "x0"]', 'samples.features was ["x0","x1"], is ["x1","x0"]'),
        ("seed = 7", "seed = 8", "federation.seed was 7, is 8"),
        ('label = "y"\n', 'label = "z"\n', 'samples.label was "y", is "z"'),
        (
            'label = "y"\n',
            'sample_id = "id"\n' + LABELS + "[samples_end]",
            'labels.topic was not set, is "results"',
        ),
        ("[learning]", '[learning]\npreset = "paper"', 'learning.preset was "default", is "paper"'),
        ("[learning]", '[learning]\nloss = "logistic"', 'learning.loss was "square", is "logistic"'),
        ("[learning]", '[learning]\nprecision = "float64"', 'learning.precision was "float32", is "float64"'),
        ("[learning]", '[kernels]\nviews = ["centred"]\n[learning]', "kernels.views was"),
        (
            "[learning]",
            "[uplink]\nkernels_per_upload = 2\n[learning]",
            "uplink.kernels_per_upload was not set, is 2",
        ),
        ("[learning]", '[experts]\nlocal = ["last-label"]\n[learning]', "experts.local was"),
    ],
)
def test_a_setting_that_the_state_was_made_with_cannot_change(
    plant: Plant, old: str, new: str, told: str
) -> None:
    """Protects predictions from a state with another meaning: 57.9 was predicted for labels of 5.97. Both
    check and the worker name the key, both values and the remedies, and nothing is written.
    """
    plant.run()
    plant.change(old, new.replace("[samples_end]", ""))
    if "[labels]" in plant.text:
        plant.change("label_range = [0.0, 10.0]\n", "")
        plant.create()
    before = plant.state()
    code, failed = plant.check()
    assert code == 4
    assert told in failed["state in plant.pofmkl-client.state"]
    worker = plant.start()
    with pytest.raises(ConfigurationError) as caught:
        plant.settle()
    worker.close()
    for part in (
        told,
        "Revert the change",
        "delete the topics plant.pofmkl-client.state",
        "'plant.pofmkl-client'",
    ):
        assert part in str(caught.value)
    assert plant.state() == before


def test_what_may_change_is_taken_over_and_said(plant: Plant, caplog: Logs) -> None:
    """Protects operators from starting again for a setting that no state depends on, and from an unnoticed
    change."""
    plant.run()
    plant.change("clients = 5", "clients = 40")
    plant.change('staleness = "async"', 'staleness = "lockstep"')
    assert plant.check()[0] == 0
    assert (
        "federation.clients was 5, is 40; learning.staleness was"
        in plant.details["state in plant.pofmkl-client.state"]
    )
    caplog.clear()
    plant.start()
    plant.settle()
    said = [
        record.getMessage() for record in caplog.records if "the state stays in use" in record.getMessage()
    ]
    assert len(said) == 2
    assert said[0].endswith("(key=federation.clients, old=5, new=40)")
    plant.check()
    assert "in use although" not in plant.details["state in plant.pofmkl-client.state"]
    plant.stop()
    plant.start()
    caplog.clear()
    plant.settle()
    assert "the state stays in use" not in caplog.text


def without_settings(bus: MemoryBus) -> None:
    """The changelogs as a release that stored no settings would have left them."""
    for topic in bus._topics.values():
        for log in topic.partitions:
            left = [record for record in log._records if record.key != STATE_SETTINGS_KEY]
            # The first record of the log is there, whatever its key.
            log._records = [structs.replace(one, offset=log.begin) for one in left[:1]] + left[1:]


def test_state_of_the_release_before_is_taken_as_it_is(plant: Plant, caplog: Logs) -> None:
    """Protects an upgrade: state without the record of settings is used, gets the record, and this is logged
    once."""
    plant.run()
    without_settings(plant.bus)
    assert plant.check()[0] == 0
    assert "of a release that did not store them" in plant.details["state in plant.pofmkl-client.state"]
    caplog.clear()
    plant.start()
    plant.stop()
    assert caplog.text.count("did not store its settings") == 1
    # A default may differ from that of the release that wrote the state.
    for told in (
        'learning.staleness = "async"',
        "samples.label_range = [0.0,10.0]",
        "federation.clients = 5",
    ):
        assert told in caplog.text
    plant.change("seed = 7", "seed = 8")
    assert "federation.seed was 7, is 8" in plant.check()[1]["state in plant.pofmkl-client.state"]


@pytest.mark.parametrize("left", ["state", "positions", "nothing"])
def test_state_whose_beginning_was_deleted_is_refused(plant: Plant, left: str) -> None:
    """Protects a state that retention has shortened, after the policy was corrected: a worker took what was
    left for the whole, was ready, and had forgotten clients."""
    plant.run(60)
    plant.start()
    plant.stop()
    for log in plant.bus._topics["plant.pofmkl-client.state"].partitions:
        kept = {"state": log.begin + 3, "positions": log.end - 1, "nothing": log.end}[left]
        log.drop(kept)
    code, failed = plant.check()
    assert code == 4
    found = failed["state in plant.pofmkl-client.state"]
    assert "were deleted" in found
    worker = plant.start()
    with pytest.raises(ConfigurationError, match="were deleted, by"):
        plant.settle()
    worker.close()
    plant.workers = []
    # The remedy that both name.
    assert "streamfl reset CONFIG --all" in found
    assert plant.command("reset", plant.folder / "pofmkl-client.toml", "--all")[0] == 0
    assert plant.check() == (0, {})
    plant.start()
    plant.stop()
    predicted = [json.loads(record.value or b"")["sample"] for record in plant.bus.read("plant.predictions")]
    assert sorted(Counter(predicted).values()) == [2] * 60


def test_as_long_as_nothing_is_remembered_settings_bind_nobody(plant: Plant) -> None:
    """Protects the correction of a mistake that made every record refused."""
    plant.change('["x0", "x1"]', '["x0", "temperature"]')
    plant.run()
    plant.change('["x0", "temperature"]', '["x0", "x1"]')
    assert plant.check()[0] == 0
    plant.run()
    assert len(list(plant.bus.read("plant.predictions"))) == 12


def test_settings_that_are_too_long_to_be_kept_are_compared_all_the_same(plant: Plant) -> None:
    """Protects the changelog from a record that no topic accepts, and the comparison from being left out for
    it."""
    names = [f"a-feature-with-a-long-name-{number:05}" for number in range(9_000)]
    plant.change("features = 2", f"features = {len(names)}")
    plant.change('["x0", "x1"]', json.dumps(names))
    made = find_kind("pofmkl-client").state_settings(plant.settings())
    assert len(made.encode()) < 20_000
    plant.change(names[-1], "another")
    other = find_kind("pofmkl-client").state_settings(plant.settings())
    [one], _ = other.compare(json.loads(made.encode()))
    assert one.key == "samples.features"
    assert len(str(one)) < 1_000


def test_the_keys_that_may_change_are_those_of_the_document(plant: Plant) -> None:
    """Protects operators who read first: keys that the page marks can be changed, and no other key."""
    text = (Path(__file__).parents[2] / "docs" / "reference" / "pofmkl.md").read_text(encoding="utf-8")
    written = {
        *re.findall(r"^\| `([a-z]+\.[a-z_]+)` \|.* \*Changeable\.\* \|$", text, re.MULTILINE),
        "samples.sample_id",
    }
    free = set(find_kind("pofmkl-client").state_settings(plant.settings()).may_change)
    with_labels(plant)
    free |= set(find_kind("pofmkl-client").state_settings(plant.settings()).may_change)
    assert written == free
    server = find_kind("pofmkl-server").state_settings(plant.settings("pofmkl-server"))
    clients_own = {
        "learning.server_step",
        "samples.format",
        "labels.format",
        "labels.expiry_seconds",
        "labels.limit",
    }
    assert set(server.may_change) == written - clients_own - {"samples.sample_id"}


# ---- client and server


def another_server(plant: Plant, old: str, new: str, samples: int = 12) -> Worker:
    """A client beside a server with another setting."""
    own = plant.text
    plant.change(old, new)
    plant.start("pofmkl-server")
    plant.text = own
    client = plant.start()
    plant.settle()
    for number in range(samples):
        plant.sample(SITES[number % len(SITES)], number)
        plant.settle()
    return client


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("seed = 7", "seed = 9", "federation.seed is 9 there and 7 here"),
        (
            "[learning]",
            '[kernels]\nviews = ["centred"]\n[learning]',
            'kernels.views is ["centred"] there and',
        ),
        (
            "features_per_kernel = 4",
            "features_per_kernel = 5",
            "learning.features_per_kernel is 5 there and 4 here",
        ),
    ],
)
def test_a_client_whose_server_has_other_settings_is_red_and_names_them(
    plant: Plant, caplog: Logs, old: str, new: str, told: str
) -> None:
    """Protects a federation from learning nothing while both logs are silent: the client is not ready, names
    the key once, and check finds the same, although no version of the model was ever made.
    """
    client = another_server(plant, old, new)
    assert told in (client.role.trouble or "")
    assert caplog.text.count(told) == 1
    code, failed = plant.check()
    assert code == 4
    assert told in failed["what plant.model says"]


@pytest.mark.parametrize("of_the_server", ["sensor 499", "another"])
def test_a_record_of_hundreds_of_columns_is_compared_whole(plant: Plant, of_the_server: str) -> None:
    """Protects records of 200 columns: the server writes so long a list as its digest, and a client with the
    same list was red until the first version of the model, and check failed."""
    names = [f"sensor {number:03}" for number in range(500)]
    plant.change("features = 2", f"features = {json.dumps(names)}")
    plant.change('features = ["x0", "x1"]', f"features = {json.dumps(names)}")
    client = another_server(plant, '"sensor 499"', f'"{of_the_server}"', samples=0)
    if of_the_server in names:
        assert client.role.trouble is None
        assert plant.check() == (0, {})
    else:
        assert "federation.features is" in (client.role.trouble or "")
        assert plant.check()[0] == 4


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        (
            'staleness = "lockstep"',
            'staleness = "async"',
            'learning.staleness is "async" there and "lockstep" here',
        ),
        ("clients = 50", "clients = 5", "federation.clients is 5 there and 50 here"),
        ('staleness = "bounded"\nmax_staleness = 3', 'staleness = "async"', None),
    ],
)
def test_a_pace_that_server_and_client_do_not_share_is_told(
    plant: Plant, caplog: Logs, here: str, there: str, told: str | None
) -> None:
    """Protects a federation whose members wait or count differently: both logs used to be silent. A stranger
    may have written the record, so the client does not stop.
    """
    plant.change(there, here)
    client = another_server(plant, here, there)
    assert client.role.trouble is None
    code, failed = plant.check()
    if told is None:
        assert (code, failed) == (0, {})
        assert "other settings" not in caplog.text
        return
    assert code == 4
    assert told in failed["what plant.model says"]
    assert caplog.text.count(told) == 1


def test_a_model_of_a_release_without_settings_is_still_refused_loudly(plant: Plant) -> None:
    """Protects mixed releases: without the record of settings a wrong fingerprint still turns the client red,
    until one fits."""
    client = plant.start()
    plant.settle()
    for fingerprint in (1, None):
        own = client.role.fingerprint  # type: ignore[attr-defined]
        marker = ShardVersion(1, own if fingerprint is None else fingerprint, 2, 0, 1, 1)
        plant.bus.write([Outgoing("plant.model", MARKER_KEY, SHARD_VERSION.encode(marker), 0)])
        plant.settle()
        assert (client.role.trouble is None) == (fingerprint is None)
        assert plant.check()[0] == (0 if fingerprint is None else 4)


def test_check_takes_back_a_state_of_a_release_without_settings(plant: Plant) -> None:
    """Protects from green before a start that ends: the role itself may find that the state is of another
    federation, although nothing says what it was made with."""
    plant.start("pofmkl-server")
    plant.start()
    for number in range(12):
        plant.sample(SITES[number % len(SITES)], number)
        plant.settle()
    plant.stop()
    without_settings(plant.bus)
    assert plant.check("pofmkl-server")[0] == 0
    plant.change("seed = 7", "seed = 8")
    code, failed = plant.check("pofmkl-server")
    assert (code, [*failed]) == (4, ["restoring the state"])


def test_a_record_of_settings_alone_decides_nothing_where_the_model_fits(plant: Plant) -> None:
    """Protects clients from a stranger who writes to the model's topic: if a version fits, the record of
    settings is ignored."""
    plant.start("pofmkl-server")
    client = plant.start()
    for number in range(12):
        plant.sample(SITES[number % len(SITES)], number)
        plant.settle()
    forged = Outgoing(
        "plant.model",
        STATE_SETTINGS_KEY,
        bytes(8),
        0,
        ((STATE_SETTINGS_HEADER, b'{"federation.seed": 666}'),),
    )
    plant.bus.write([forged])
    plant.settle()
    assert client.role.trouble is None
    for content in (b"{", b"[1]", b"\xff", b'{"federation.seed": {"a": [[[]]]}}', b"[" * 100_000):
        plant.bus.write([replace_headers(forged, content)])
        plant.settle()
        assert client.role.trouble is None
    assert plant.check()[0] == 0


def replace_headers(record: Outgoing, content: bytes) -> Outgoing:
    return Outgoing(
        record.topic, record.key, record.value, record.partition, ((STATE_SETTINGS_HEADER, content),)
    )


# ---- samples and labels


def test_a_label_field_that_no_record_has_is_told(plant: Plant, caplog: Logs) -> None:
    """Protects from a mistyped field: every record is readable and predicted, but nothing would ever be
    learnt."""
    plant.change('label = "y"', 'label = "yy"')
    client = plant.start()
    for number in range(60):
        plant.sample(SITES[number % len(SITES)], number)
    code, failed = plant.check()
    assert code == 4
    told = failed["labels of readings"]
    assert (
        "none has the field 'yy' that samples.label names, and nothing would be learnt, did you mean 'y'?"
        in told
    )
    assert "id, site, x0, x1, y" in told
    plant.settle()
    assert "none of 60 samples had a label in the field 'yy'" in (client.role.trouble or "")
    assert caplog.text.count("had a label in the field 'yy'") == 1
    plant.sample("a", 61, yy=5.0)
    plant.settle()
    assert client.role.trouble is None


def test_check_names_a_client_whose_labels_have_stopped(plant: Plant) -> None:
    """Protects who looks with `check` after labels stopped: beside a history and other clients the share of
    labelled samples looked fine. A stream in which labels are rare is not told."""
    for number in range(60):
        plant.sample("a", number)
        plant.sample("b", number, **({"y": None} if number % 4 else {}))
    assert plant.check()[0] == 0
    assert "have no label" not in plant.details["labels of readings"]
    for number in range(60, 66):
        plant.sample("a", number, y=None)
    assert plant.check()[0] == 0
    assert "; the newest samples of a have no label, all before had" in plant.details["labels of readings"]


def test_unlabelled_samples_of_a_client_that_has_learnt_are_no_trouble(plant: Plant) -> None:
    """Protects streams with rare labels: their client has learnt before, and a restart does not forget
    that."""
    plant.run()
    client = plant.start()
    for number in range(60):
        plant.sample(SITES[number % len(SITES)], number, y=None)
    plant.settle()
    assert client.role.trouble is None


def test_labels_outside_their_range_are_told(plant: Plant, caplog: Logs) -> None:
    """Protects the unit of errors: the share of labels outside the range and an example are reported."""
    for number in range(10):
        plant.sample("a", number, y=25.0 if number < 3 else 5.0)
    code, failed = plant.check()
    assert code == 4
    assert (
        "3 of 10 labels were outside samples.label_range = [0.0, 10.0], the last 25"
        in failed["labels outside range"]
    )
    client = plant.start()
    plant.settle()
    assert "3 of 10 labels were outside samples.label_range" in caplog.text
    assert scraped(client.metrics.render().decode(), "labels_outside_range_total") == 3


def test_a_range_that_is_far_too_wide_for_the_labels_is_told(plant: Plant) -> None:
    """Protects the weights of models: one label of 1e9 in a file made `streamfl init` write a range a hundred
    thousand times too wide. Errors were twice as large, and everything was green.
    """
    for number in range(60):
        plant.sample(SITES[number % len(SITES)], number, y=5.0 + number / 60)
    plant.check()
    assert "samples.label_range" not in plant.details
    plant.change("label_range = [0.0, 10.0]", "label_range = [0.0, 1000000000.0]")
    failed = plant.check()[1]
    assert "samples.label_range" not in failed
    assert "are between 5 and 5.983333" in plant.details["samples.label_range"]
    assert "1e-09 of the range [0.0, 1000000000.0]" in plant.details["samples.label_range"]


def test_binary_keys_that_are_read_as_text_are_told(plant: Plant) -> None:
    """Protects clients' names: a small number in eight bytes is also text, so the name would be control
    characters."""
    plant.change('client = "site"\n', "")
    for number in range(3):
        record = {"id": f"r{number}", "x0": 0.5, "x1": 1, "y": 5.0}
        plant.bus.write([Outgoing("readings", number.to_bytes(8, "big"), json.dumps(record).encode())])
    code, failed = plant.check()
    assert code == 4
    assert "3 of 3 records have a key that is no text" in failed["keys of readings"]
    assert 'key = "int64"' in failed["keys of readings"]
    plant.change('topic = "readings"\n', 'topic = "readings"\nkey = "int64"\n')
    assert "keys of readings" not in plant.check()[1]


def test_a_topic_that_is_not_keyed_by_client_is_told(plant: Plant, caplog: Logs) -> None:
    """Protects samples from being refused for a lack of places that five sites do not need: 34 of 60 were
    lost, and the suggested remedy would have given each site several states.
    """
    for number in range(60):
        plant.sample(SITES[number % len(SITES)], number, key=f"r{number}")
    code, failed = plant.check()
    assert code == 4
    assert "come in the partitions" in failed["not keyed by client"]
    client = plant.start()
    plant.settle()
    assert "Write the topic with the client's name as the key" in (client.role.trouble or "")
    assert caplog.text.count("Write the topic with the client's name as the key") == 1
    letters = [dict(letter.headers)["text"].decode() for letter in plant.bus.read("plant.dead-letters")]
    assert letters
    assert not [text for text in letters if "raise federation.clients" in text]
    # The trouble ends: later records all have the client's key.
    for number in range(1100):
        plant.sample("a", number)
    plant.settle()
    assert client.role.trouble is None


def test_one_record_with_another_key_fails_a_check_until_it_was_read(plant: Plant) -> None:
    """Protects a topic that is right but for one record: workers read on behind it and were ready, while
    `check` failed for good, and called for another key of the whole topic."""
    for number in range(60):
        plant.sample(SITES[number % len(SITES)], number)
    plant.sample("a", 60, key="b")
    name = "not keyed by client"
    assert plant.check()[0] == 4
    assert name in plant.details
    plant.start()
    plant.stop()
    assert plant.check() == (0, {})
    assert "come in the partitions" in plant.details[name]
    assert "only readings-" in plant.details[name]
    # A second one is no stray any more.
    plant.sample("b", 61, key="a")
    plant.sample("c", 62, key="b")
    plant.start()
    plant.stop()
    assert name in plant.check()[1]


def test_one_record_of_a_user_that_was_refused_is_a_warning_behind_it(plant: Plant) -> None:
    """The same for a record that cannot be read: it is a dead letter, and the topic goes on."""
    for number in range(4):
        plant.sample("a", number)
    plant.bus.write([Outgoing("readings", b"a", b"no JSON")])
    assert plant.check()[0] == 4
    plant.start()
    plant.stop()
    # Nothing says yet how the topic goes on.
    assert plant.check()[0] == 4
    plant.sample("a", 5)
    assert plant.check() == (0, {})
    assert "5 of 6 records readable" in plant.details["records of readings"]
    plant.bus.write([Outgoing("readings", b"a", b"no JSON")])
    plant.sample("a", 6)
    plant.start()
    plant.stop()
    assert "records of readings" in plant.check()[1]


def with_labels(plant: Plant) -> None:
    plant.change('label = "y"\n', 'sample_id = "id"\n')
    plant.text += LABELS
    plant.create()


def test_labels_keyed_otherwise_than_samples_are_told(plant: Plant, caplog: Logs) -> None:
    """Protects late labels: those in another partition than their sample never meet it. 44 of 60 were lost
    silently."""
    with_labels(plant)
    client = plant.start()
    for number in range(60):
        site = SITES[number % len(SITES)]
        plant.sample(site, number)
        plant.label(f"r{number}", site, key=f"r{number}")
    code, failed = plant.check()
    assert code == 4
    assert "they never meet. Write both topics with the same keys" in failed["labels keyed otherwise"]
    plant.settle()
    assert "they never meet" in (client.role.trouble or "")
    assert caplog.text.count("they never meet") == 1
    plant.now += 100
    caplog.clear()
    plant.settle()
    assert "labels were forgotten after 60 s (labels.expiry_seconds) without their sample" in caplog.text


def test_labels_that_are_read_before_their_samples_are_told_too(plant: Plant) -> None:
    """Protects against the order in which two topics are read: on Kafka labels often come first."""
    with_labels(plant)
    client = plant.start()
    for number in range(10):
        plant.label(f"r{number}", key="other", partition=0)
    plant.settle()
    assert client.role.trouble is None
    plant.bus.write(
        [Outgoing("readings", b"a", json.dumps({"site": "a", "id": "r1", "x0": 1, "x1": 2}).encode(), 2)]
    )
    plant.settle()
    assert "came in partition 0, its samples come in partition 2" in (client.role.trouble or "")


def test_labels_that_come_later_than_the_limit_are_told_with_the_limit(plant: Plant) -> None:
    """Protects labels that come hours behind a fast stream: their samples have made room for newer ones, and
    the operator was told of keys alone."""
    with_labels(plant)
    plant.change("expiry_seconds = 60", "expiry_seconds = 60\nlimit = 10")
    client = plant.start()
    for number in range(60):
        plant.sample("a", number)
        if number >= 30:
            plant.label(f"r{number - 30}")
        plant.settle()
    assert "than labels.limit samples of a client" in (client.role.trouble or "")


def test_labels_that_name_their_samples_otherwise_are_told(plant: Plant) -> None:
    """Protects late labels with names that never match: nothing is learnt, whatever the keys."""
    with_labels(plant)
    client = plant.start()
    for number in range(30):
        plant.sample("a", number)
        plant.label(f"R-{number}")
    plant.settle()
    assert "none of 30 labels met one of 30 samples" in (client.role.trouble or "")
    plant.label("r1")
    plant.settle()
    assert client.role.trouble is None


def test_labels_whose_samples_were_not_read_yet_are_no_mistake() -> None:
    """Protects users who begin with a history of labels: partitions are read one after the other, and unread
    samples may match."""
    watch = InputWatch(None, "samples.label_range", (0.0, 1.0), True, 10)
    for _ in range(30):
        watch.sample(0, "a", None)
        watch.label(1, "b", 0.5)
    assert watch.trouble(lambda: False) is None
    for _ in range(30):
        watch.sample(1, "b", None)
        watch.label(1, "b", 0.5)
    assert "none of 60 labels met" in str(watch.trouble(lambda: False))


def test_labels_that_are_read_before_their_samples_are_no_mistake() -> None:
    """Protects users with few labels, or whose first labels were deleted: the labels of a history are read
    first, and the first samples without one were taken for samples that are named otherwise."""
    watch = InputWatch(None, "samples.label_range", (0.0, 1.0), True, 10)
    for _ in range(72):
        watch.label(0, "a", 0.5)
    for _ in range(71):
        watch.sample(0, "a", None)
    assert watch.trouble(lambda: False) is None
    watch.sample(0, "a", None)
    assert "none of 72 labels met one of 72" in str(watch.trouble(lambda: False))


def test_check_looks_at_both_ends_of_several_partitions(plant: Plant) -> None:
    """Protects from a check of old records in one partition: the mistake is in the newest records of
    another."""
    plant.bus.write(
        [Outgoing("readings", b"a", json.dumps({"site": "a", "x0": 1, "x1": 2, "y": 5}).encode(), 0)] * 400
    )
    plant.bus.write(
        [Outgoing("readings", b"b", json.dumps({"site": "b", "x0": 1, "x1": 2, "y": 5}).encode(), 2)] * 50
    )
    assert plant.check()[0] == 0
    plant.bus.write([Outgoing("readings", b"b", b'{"site": "b", "x0": 1}', 2)])
    code, failed = plant.check()
    assert code == 4
    assert "readings-2-50 missing_field: x1 is missing" in failed["records of readings"]


def test_group_offsets_that_were_set_back_are_told(plant: Plant, caplog: Logs) -> None:
    """Protects users who reset a group's offsets and wait: the state's own position is used, and `check` and
    the log say how to begin again.
    """
    plant.run()
    assert "does not count" not in caplog.text
    assert plant.check()[0] == 0
    group = plant.bus._groups["plant.pofmkl-client"]
    group.committed = dict.fromkeys(group.committed, 0)
    code, failed = plant.check()
    assert code == 4
    assert (
        "the changelog is ahead of them: readings-0: offset 0, taken up to"
        in failed["offsets of plant.pofmkl-client"]
    )
    plant.start()
    plant.settle()
    assert "ignoring the committed offset: the changelog is ahead of it" in caplog.text
    assert "delete the topics plant.pofmkl-client.state" in caplog.text
    assert len(list(plant.bus.read("plant.predictions"))) == 12


def test_group_offsets_behind_the_state_are_usual_under_at_least_once(plant: Plant, caplog: Logs) -> None:
    """Protects a worker that crashed between its state and its offsets from a preflight that fails for good,
    and its operator from beginning anew: nobody set the offsets back."""
    plant.change("[role]", 'processing_guarantee = "at_least_once"\n[role]')
    plant.run()
    group = plant.bus._groups["plant.pofmkl-client"]
    group.committed = {place: offset - 1 for place, offset in group.committed.items()}
    assert plant.check() == (0, {})
    assert "as after a crash under at_least_once" in plant.details["offsets of plant.pofmkl-client"]
    plant.start()
    plant.settle()
    assert "ahead of it, as after a crash under at_least_once" in caplog.text
    assert len(list(plant.bus.read("plant.predictions"))) == 12


def test_group_offsets_that_kafka_forgot_are_a_warning(plant: Plant) -> None:
    """Protects a pause of more than a week: workers continue from the state, and `check` failed."""
    plant.run()
    plant.bus._groups["plant.pofmkl-client"].committed = {}
    assert plant.check() == (0, {})
    assert "Workers continue from the state" in plant.details["offsets of plant.pofmkl-client"]
    plant.start()
    plant.stop()
    assert plant.check() == (0, {})
    assert len(list(plant.bus.read("plant.predictions"))) == 12


def test_records_that_were_deleted_unread_are_told(plant: Plant, caplog: Logs) -> None:
    """Protects users who stopped the workers for too long: `check` reports the loss before the start, and
    both it and `inspect` after.
    """
    plant.run()
    for number in range(12, 24):
        plant.sample("a", number)
    [where] = {
        record.partition
        for record in plant.bus.read("readings")
        if json.loads(record.value or b"")["id"] == "r23"
    }
    log = plant.bus._topics["readings"].partitions[where]
    position = log.end - 12
    log.drop(log.end - 2)
    plant.check()
    told = f"of partition {where} 10 unread records are gone: offsets {position} to {position + 9}"
    assert told in plant.details["retention of readings"]
    plant.start()
    plant.stop()
    assert "records were deleted before they were read" in caplog.text
    plant.check()
    told = (
        f"of partition {where} 10 records were deleted before they were read, the last of them at offset "
        f"{position + 9}"
    )
    assert told in plant.details["retention of readings"]
    _, out, _ = plant.command("inspect", plant.folder / "pofmkl-client.toml", "--format", "json")
    unread = {one["partition"]: one["deleted unread"] for one in json.loads(out)["inputs"]}
    assert unread == {partition: 10 if partition == where else 0 for partition in range(3)}


def test_what_a_worker_reads_while_its_state_is_shown_is_not_behind(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects from a false alarm: a long changelog takes seconds to read, and what came meanwhile was shown
    as unread."""
    plant.run()
    real = inspect.taken_back

    def taken_back(configured: Configured, bus: Bus, counted: CountedState) -> tuple[Role, Tasks]:
        found = real(configured, bus, counted)
        for number in range(12, 24):
            plant.sample("a", number)
        plant.start()
        plant.stop()
        return found

    monkeypatch.setattr(inspect, "taken_back", taken_back)
    _, out, _ = plant.command("inspect", plant.folder / "pofmkl-client.toml", "--format", "json")
    inputs = json.loads(out)["inputs"]
    assert sum(one["end"] for one in inputs) >= 24
    assert [one["behind"] for one in inputs] == [0] * len(inputs)


def test_a_worker_that_reads_on_while_it_is_inspected_is_no_mistake(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, caplog: Logs
) -> None:
    """Protects from a false alarm that tells people to begin anew: `inspect` asks for the group's offsets
    before it reads the changelog, and a worker under load has committed both meanwhile."""
    plant.run()
    real = inspect._Onlooker.restore

    def restore(self: Any, topic: str, partition: int) -> Iterator[Record]:
        plant.run()
        return real(self, topic, partition)

    monkeypatch.setattr(inspect._Onlooker, "restore", restore)
    code, out, _ = plant.command("inspect", plant.folder / "pofmkl-client.toml", "--format", "json")
    assert code == 0
    assert [one["behind"] for one in json.loads(out)["inputs"]] == [0] * len(json.loads(out)["inputs"])
    assert "ignoring the committed offset" not in caplog.text


def test_times_by_which_retention_goes_wrong_are_told(plant: Plant) -> None:
    """Protects replayed records of last year, which retention deletes at once, and a disk from records of
    next year."""
    options = {
        "cleanup.policy": "delete",
        "message.timestamp.type": "CreateTime",
        "retention.ms": str(7 * 86_400_000),
    }
    plant.bus._topics["readings"]._spec = replace(plant.bus._topics["readings"]._spec, options=options)
    days = (-400, -1, 0, 400)
    for number in range(len(days)):
        plant.sample("a", number)
    [log] = [one for one in plant.bus._topics["readings"].partitions if one.end]
    log._records = [
        structs.replace(one, timestamp=time.time() + day * 86_400)
        for one, day in zip(log._records, days, strict=True)
    ]
    plant.check()
    told = plant.details["retention of readings by time"]
    assert "1 older than its retention of 7 days" in told
    assert "1 with a time in the future" in told
    options["message.timestamp.type"] = "LogAppendTime"
    plant.check()
    assert "retention of readings by time" not in plant.details


def test_a_history_that_retention_deleted_before_the_first_worker_is_told(plant: Plant) -> None:
    """Protects who loads last year's records with their own times: Kafka deletes them within minutes, and
    check said that there were no records yet."""
    plant.check()
    assert "retention of readings" not in plant.details
    for number in range(5):
        plant.sample("a", number)
    [log] = [one for one in plant.bus._topics["readings"].partitions if one.end]
    log.drop(log.end)
    plant.check()
    assert "up to 5 records" in plant.details["retention of readings"]
    # What was read and then deleted is as it should be.
    plant.sample("a", 5)
    plant.run()
    log.drop(log.end)
    plant.check()
    assert "retention of readings" not in plant.details


def test_a_state_topic_with_partitions_that_nothing_uses_goes_on(tmp_path: Path, command: Command) -> None:
    """Protects from the remedy for partitions that were added to the wrong topic: Kafka removes none, and a
    worker that was refused called for more partitions of its input, which its state could not follow."""
    wide = Plant(tmp_path, command)
    wide.bus.create([TopicSpec("plant.pofmkl-client.state", 5, compacted=True)])
    wide.create()
    wide.run()
    assert wide.check() == (0, {})
    assert "3 partitions of it are used" in wide.details["further partitions of plant.pofmkl-client.state"]
    assert {record.partition for record in wide.state()} <= {0, 1, 2}
    wide.start()
    wide.stop()
    # Too few are still refused.
    narrow = Plant(tmp_path, command)
    narrow.url += "-narrow"
    narrow.bus = MemoryBus.at(narrow.url)
    narrow.bus.create([TopicSpec("plant.pofmkl-client.state", 2, compacted=True)])
    narrow.create()
    assert "topic plant.pofmkl-client.state" in narrow.check()[1]


@pytest.mark.parametrize(("kept", "told"), [("0", True), ("3599999", True), ("3600000", False)])
def test_tombstones_that_are_soon_deleted_are_told(plant: Plant, kept: str, told: bool) -> None:
    """Protects a restore that compaction overtakes: the value of a key was read, its deletion is gone."""
    topic = plant.bus._topics["plant.pofmkl-client.state"]
    topic._spec = replace(topic._spec, options={"delete.retention.ms": kept})
    assert plant.check() == (0, {})
    assert ("tombstones of plant.pofmkl-client.state" in plant.details) is told


def test_users_topics_are_made_only_when_asked_for(tmp_path: Path, plant: Plant) -> None:
    """Protects from a mistyped name: a topic made for it stays empty, and everything looks well."""
    plant.url += "-new"
    plant.bus = MemoryBus.at(plant.url)
    plant.change('topic = "readings"', 'topic = "readngs"')
    plant.settings()
    config = plant.folder / "pofmkl-client.toml"
    code, out, error = plant.command("topics", config, "--create", "--format", "json")
    assert code == 4
    assert "plant.model" in json.loads(out)["created"]
    assert "did not create readngs, which is yours, nor plant.pofmkl-client.state" in error
    assert plant.bus.describe(["readngs", "plant.pofmkl-client.state"]) == {}
    code, failed = plant.check()
    assert (
        "create readngs first: this one has as many partitions" in failed["topic plant.pofmkl-client.state"]
    )
    assert "see that its name is right" in failed["topic readngs"]
    plant.bus.create([TopicSpec("readngs", 5, compacted=False)])
    assert plant.command("topics", config, "--create")[0] == 0
    assert plant.bus.describe(["plant.pofmkl-client.state"])["plant.pofmkl-client.state"].partitions == 5
    plant.change('topic = "readngs"', 'topic = "others"')
    plant.settings()
    plant.command("topics", config, "--create-inputs")
    assert plant.bus.describe(["others"])["others"].partitions == 5
    plant.change('name = "plant"', 'name = "new"')
    plant.change('topic = "others"', 'topic = "more"')
    plant.settings()
    plant.command("topics", config, "--create-inputs")
    assert plant.bus.describe(["more"])["more"].partitions == 4


def test_what_may_have_any_number_of_partitions_has_the_users(plant: Plant) -> None:
    """Protects joins of predictions with samples: records with the same key are in the same partition
    number."""
    plant.change('name = "plant"', 'name = "other"')
    plant.change('topic = "readings"', 'topic = "six"')
    plant.settings()
    plant.bus.create([TopicSpec("six", 6, False)])
    config = plant.folder / "pofmkl-client.toml"
    code, out, _ = plant.command("topics", config, "--create", "--format", "json")
    assert code == 0
    found = {topic["name"]: topic["partitions"] for topic in json.loads(out)["topics"]}
    assert {found[f"other.{name}"] for name in ("predictions", "dead-letters", "pofmkl-client.state")} == {6}
    assert found["other.updates"] == 1
    # It is not a rule: topics created as before are accepted too.
    plant.change('name = "other"', 'name = "older"')
    plant.settings()
    plant.command("topics", config, "--create", "--partitions", 4)
    assert plant.bus.describe(["older.predictions"])["older.predictions"].partitions == 4
    assert plant.command("topics", config)[0] == 0


def test_one_name_for_two_federations_is_told(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects two teams with the same federation name: for one system the state reveals it, for two systems
    the topics."""
    other = System("another", "a system of somebody else's", ("another-role",), "another:ROLES")
    systems = installed_systems()
    monkeypatch.setattr(preflight, "installed_systems", lambda: (*systems, other))
    plant.run()
    plant.change('topic = "readings"', 'topic = "theirs"')
    plant.create()
    assert (
        'samples.topic was "readings", is "theirs"' in plant.check()[1]["state in plant.pofmkl-client.state"]
    )
    plant.change('topic = "theirs"', 'topic = "readings"')
    plant.bus.create([TopicSpec("plant.another-role.state", 1, compacted=True)])
    code, failed = plant.check()
    assert code == 4
    assert "plant.another-role.state" in failed["federation.name"]
    code, _, error = plant.command("run", plant.folder / "pofmkl-client.toml")
    assert code == 2
    assert "another system's roles have used it" in error


# ---- what a check may not say, for it does not take the state back


def run_both(plant: Plant, samples: int = 40) -> None:
    """Client and server work together for a while, and end."""
    plant.start("pofmkl-server")
    plant.start()
    for number in range(samples):
        plant.now += 1
        plant.sample(SITES[number % len(SITES)], number)
        plant.settle()
    plant.stop()


@pytest.mark.parametrize("staleness", ["async", "lockstep"])
def test_a_healthy_federation_passes_its_check(plant: Plant, staleness: str) -> None:
    """Protects from false alarms: versions, rounds and late updates are only known from the state, which
    check does not read."""
    plant.change('staleness = "async"', f'staleness = "{staleness}"')
    run_both(plant)
    assert plant.check("pofmkl-server") == (0, {})
    assert plant.check() == (0, {})


def test_labels_whose_samples_are_not_looked_at_are_no_finding(plant: Plant) -> None:
    """Protects long topics: labels among their first and last records rarely match samples among these."""
    with_labels(plant)
    for number in range(100):
        plant.sample("a", number)
        plant.label(f"r{number - 20}")
    client = plant.start()
    plant.settle()
    assert client.role.trouble is None
    assert plant.check() == (0, {})


def test_a_server_that_cannot_begin_is_told_by_what_it_lacks(plant: Plant) -> None:
    """Protects a new federation: `run` would end at once, for a reason that has nothing to do with the
    bus."""
    plant.change("features = 2\n", "")
    for samples in (0, 3):
        for number in range(samples):
            plant.sample("a", number)
        plant.start()
        plant.stop()
        code, failed = plant.check("pofmkl-server")
        assert code == 2
        assert list(failed) == ["start of the role"]
        assert "federation.features is missing" in failed["start of the role"]
        assert "pofmkl-server.toml" in failed["start of the role"]


def test_updates_of_before_the_features_were_given_are_no_finding(plant: Plant) -> None:
    """Protects an upgrade: old updates fit other settings; new ones have to fit these."""
    round_ = msgspec.msgpack.encode([None, False, 2])
    plant.change("features = 2\n", "")
    plant.bus.write([Outgoing("plant.pofmkl-server.state", b"round", round_, 0)])
    # The features are in the state.
    assert plant.check("pofmkl-server") == (0, {})
    run_both(plant)
    plant.change("clients = 5\n", "clients = 5\nfeatures = 2\n")
    for kind in ("pofmkl-server", "pofmkl-client"):
        plant.start(kind)
        plant.settle()
    plant.stop()
    assert plant.check("pofmkl-server") == (0, {})
    old = next(iter(plant.bus.read("plant.updates")))
    plant.bus.write([Outgoing(old.topic, old.key, old.value, old.partition)])
    code, failed = plant.check("pofmkl-server")
    assert (code, list(failed)) == (4, ["processing"])
    assert "1 record refused" in failed["processing"]
