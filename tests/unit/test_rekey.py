"""``streamfl rekey`` on the memory bus: the rekeyed topic, and a client that learns from it."""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from command_line import Command
from scraped import scraped

from streamfl.cli.access import rights
from streamfl.cli.preflight import Configured, inspect_topics, read_configuration
from streamfl.cli.rekey import rekeying, rekeyings
from streamfl.contract.channels import Channels, TopicSpec
from streamfl.contract.measurement import declared
from streamfl.contract.role import ConfigurationError
from streamfl.records.header_propagation import time_in
from streamfl.rekeying.kind import rekey_kind
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.remembered_settings import ways_to_begin_anew
from streamfl.runtime.worker import Worker

CONFIG = """
[federation]
name = "plant"
clients = 5
[bus]
url = "{url}"
commit_interval_ms = 0
max_poll_records = 7
[role]
kind = "pofmkl-client"
[samples]
topic = "by-site"
client = "meta.site"
sample_id = "id"
features = ["temp", "hum"]
label = "load"
[samples.rekey]
topic = "readings"
{more}
[learning]
# What is tried here needs no server, so that no backlog may wait for one.
catch_up_samples = 0
features_per_kernel = 4
"""
ASSEMBLE = """
[samples.assemble]
seconds = 10
time = "ts"
time_unit = "s"
name = "sensor"
value = "value"
expiry_seconds = 30
"""
SITES = [f"site-{number}" for number in range(5)]
counter = itertools.count()


class Plant:
    """A bus with a plant's topics, and a configuration for them."""

    def __init__(self, folder: Path, more: str = "", partitions: int = 3) -> None:
        self.url = f"memory://rekey-{next(counter)}"
        self.path = folder / "client.toml"
        self.path.write_text(CONFIG.format(url=self.url, more=more))
        self.bus = MemoryBus.at(self.url)
        self.now = 1000.0
        self.bus.create(
            [
                TopicSpec(name, count, compacted=False, users=True)
                for name, count in (("readings", partitions), ("by-site", 2))
            ]
        )
        for configured in (*rekeyings(self.configured), self.configured):
            self.bus.create(
                [
                    replace(found.spec, partitions=found.partitions)
                    for found in inspect_topics(configured, self.bus, 2)
                ]
            )

    @property
    def configured(self) -> Configured:
        return read_configuration(self.path)

    def worker(self, stream: str = "samples") -> Worker:
        own = rekeying(self.configured, stream)
        return build_worker(own.settings, self.bus, clock=lambda: self.now, kind=own.kind)

    def write(self, *contents: dict[str, Any] | bytes, key: bytes | None = None, partition: int = 0) -> None:
        values = [
            content if isinstance(content, bytes) else json.dumps(content).encode() for content in contents
        ]
        self.bus.write(
            [
                Outgoing("readings", key, value, partition, (("traceparent", b"t%d" % len(value)),))
                for value in values
            ]
        )

    def samples(self) -> dict[str, list[dict[str, Any]]]:
        """The rekeyed records by client. Each client's are in one partition."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        places: dict[str, set[int]] = defaultdict(set)
        for record in self.bus.read("by-site"):
            client = (record.key or b"").decode()
            places[client].add(record.partition)
            found[client].append(json.loads(record.value or b""))
        assert all(len(place) == 1 for place in places.values())
        return found


def drain(*workers: Worker) -> None:
    while sum(worker.step(0) for worker in workers):
        pass


def test_records_keyed_otherwise_go_to_their_clients_partition(tmp_path: Path) -> None:
    """Protects clients from being a different client in each partition: every record once, unchanged, in its
    client's partition."""
    plant = Plant(tmp_path)
    sent = [{"meta": {"site": site}, "id": number, "temp": 1.0} for number in range(12) for site in SITES]
    for number, content in enumerate(sent):
        plant.write(content, key=b"device-%d" % number, partition=number % 3)
    first, second = plant.worker(), plant.worker()
    drain(first, second)
    found = plant.samples()
    assert {client: sorted(sample["id"] for sample in samples) for client, samples in found.items()} == {
        site: list(range(12)) for site in SITES
    }
    record = next(iter(plant.bus.read("by-site")))
    headers = dict(record.headers)
    assert headers.keys() == {"traceparent", "streamfl.time", "streamfl.from"}
    assert headers["streamfl.from"].startswith(b"readings-")


@pytest.mark.parametrize(
    ("told", "kept"), [(b"1700000000000", b"1700000000000"), (b"yesterday", None), (b"", None)]
)
def test_a_time_that_cannot_be_read_hides_no_time(tmp_path: Path, told: bytes, kept: bytes | None) -> None:
    """Protects the event time: a stranger's header is kept if it is a time, otherwise the record's own time
    replaces it."""
    plant = Plant(tmp_path)
    value = json.dumps({"meta": {"site": "site-1"}, "id": 1, "temp": 1.0}).encode()
    plant.bus.write([Outgoing("readings", b"k", value, 0, (("streamfl.time", told),))])
    own = next(iter(plant.bus.read("readings"))).timestamp
    drain(plant.worker())
    (record,) = plant.bus.read("by-site")
    assert time_in(record.headers) == (int(kept) / 1000 if kept else pytest.approx(own, abs=0.001))


def test_what_names_no_client_is_a_dead_letter(tmp_path: Path) -> None:
    """Protects the stream: a record without a client is dead-lettered, with the full path in the reason."""
    plant = Plant(tmp_path)
    plant.write({"meta": {}, "temp": 1.0}, b"{", {"meta": {"site": "site-1"}, "temp": 1.0})
    drain(plant.worker())
    assert list(plant.samples()) == ["site-1"]
    letters = {
        dict(letter.headers)["error"]: dict(letter.headers)["text"]
        for letter in plant.bus.read("plant.dead-letters")
    }
    assert letters.keys() == {b"missing_field", b"malformed"}
    assert b"meta.site is missing" in letters[b"missing_field"]


def sensor(site: str, name: str, value: float, ts: float) -> dict[str, Any]:
    return {"meta": {"site": site}, "sensor": name, "value": value, "ts": ts}


def test_what_is_missing_at_expiry_goes_on_without_it_and_late_values_are_told(tmp_path: Path) -> None:
    """Protects a site with a broken sensor from waiting for ever, and a late value from being lost
    silently."""
    plant = Plant(tmp_path, ASSEMBLE)
    worker = plant.worker()
    plant.write(sensor("site-1", "temp", 1.0, 5.0), sensor("site-1", "load", 3.0, 7.0))
    drain(worker)
    plant.now += 29
    drain(worker)
    assert plant.samples() == {}
    plant.now += 2
    drain(worker)
    assert plant.samples() == {
        "site-1": [{"ts": 7.0, "temp": 1.0, "load": 3.0, "meta": {"site": "site-1"}, "id": "0"}]
    }
    plant.write(sensor("site-1", "temp", 1.5, 8.0), sensor("site-1", "hum", 2.0, 8.0))
    drain(worker)
    assert len(plant.samples()["site-1"]) == 1
    [letter] = plant.bus.read("plant.dead-letters")
    assert dict(letter.headers)["error"] == b"late"
    figures = worker.metrics.render().decode()
    assert {one.name for one in worker.role.measure()} == {
        one.name for one in declared(*rekey_kind("samples").metrics)
    }
    assert scraped(figures, "assembled_samples_total", reason="expired") == 1
    assert scraped(figures, "surplus_values_total") == 1
    assert scraped(figures, "incomplete_samples_total") == 1


def test_a_span_is_over_with_a_later_record_of_the_same_client_alone(tmp_path: Path) -> None:
    """Protects a site that sends late, from a buffer, from another site whose clock is ahead."""
    plant = Plant(
        tmp_path, ASSEMBLE.replace("expiry_seconds", 'several = "mean"\ngrace_seconds = 5\nexpiry_seconds')
    )
    worker = plant.worker()
    plant.write(
        sensor("site-1", "temp", 1.0, 5.0),
        sensor("site-1", "temp", 3.0, 6.0),
        sensor("site-2", "temp", 1.0, 900.0),
    )
    plant.write(sensor("site-1", "hum", 1.0, 14.9))
    drain(worker)
    assert plant.samples() == {}
    plant.write(sensor("site-1", "hum", 1.0, 15.0))
    drain(worker)
    assert [sample["temp"] for sample in plant.samples()["site-1"]] == [2.0]


def test_a_record_behind_the_end_of_its_span_is_what_the_settings_say(tmp_path: Path) -> None:
    """Protects the texts of the settings: what is late is counted by event time, and what has waited long by
    the worker's clock."""
    plant = Plant(tmp_path, ASSEMBLE.replace("expiry_seconds", "grace_seconds = 5\nexpiry_seconds"))
    worker = plant.worker()
    plant.write(sensor("site-1", "temp", 1.0, 25.0), sensor("site-1", "temp", 2.0, 45.0))
    drain(worker)
    assert [sample["temp"] for sample in plant.samples()["site-1"]] == [1.0], (
        "the span from 20 to 30 is over, from 40 to 50 open"
    )
    # A value that the written sample has, one that it lacks, and one of a span from 0 to 10 of which nothing
    # was written.
    plant.write(
        sensor("site-1", "temp", 7.0, 26.0),
        sensor("site-1", "hum", 3.0, 26.0),
        sensor("site-1", "hum", 4.0, 5.0),
    )
    drain(worker)
    assert [dict(letter.headers)["error"] for letter in plant.bus.read("plant.dead-letters")] == [b"late"]
    figures = worker.metrics.render().decode()
    assert scraped(figures, "surplus_values_total") == 1
    assert scraped(figures, "samples_in_assembly") == 2
    plant.now += 31
    drain(worker)
    assert sorted(sample["ts"] for sample in plant.samples()["site-1"]) == [5.0, 25.0, 45.0]


def test_a_client_predicts_samples_in_several_records(tmp_path: Path) -> None:
    """Protects the whole way: from one sensor a record to predictions with the sample's own time and
    trace."""
    plant = Plant(
        tmp_path,
        ASSEMBLE.replace("[samples.assemble]", '[samples.assemble]\nfields = ["temp", "hum", "load"]'),
    )
    text = (
        plant.path.read_text()
        .replace('"meta.site"', '"site"')
        .replace("[samples.rekey]", '[samples.rekey]\nby = "meta.site"')
    )
    plant.path.write_text(text)
    for span in range(4):
        for name in ("temp", "hum", "load"):
            plant.write(sensor("site-1", name, 0.1 * span, 10.0 * span + 1))
    client = build_worker(plant.configured.settings, plant.bus, clock=lambda: plant.now)
    drain(plant.worker(), client)
    drain(client)
    predictions = list(plant.bus.read("plant.predictions"))
    assert [json.loads(record.value or b"")["sample"] for record in predictions] == ["0", "10", "20", "30"]
    assert [dict(record.headers)["streamfl.time"] for record in predictions] == [
        b"1000",
        b"11000",
        b"21000",
        b"31000",
    ]
    assert all("traceparent" in dict(record.headers) for record in predictions)
    assert list(plant.bus.read("plant.dead-letters")) == []


def test_two_topics_are_two_processes(tmp_path: Path, command: Command) -> None:
    """Protects labels from being silently left unchanged when both topics have other keys."""
    labels = (
        '[labels]\ntopic = "l"\nsample_id = "id"\nlabel = "y"\n[labels.rekey]\ntopic = "outcomes"\nby = '
        '"site"\n'
    )
    plant = Plant(tmp_path)
    plant.path.write_text(plant.path.read_text().replace('label = "load"\n', "") + labels)
    code, _, said = command("rekey", plant.path)
    assert (code, "--stream samples and --stream labels" in said) == (2, True)
    own = rekeying(plant.configured, "labels")
    assert own.settings.group == "plant.pofmkl-client.rekey-labels"
    assert own.kind.channels(own.settings).outputs == {"keyed": "l"}


def test_check_says_of_a_topic_that_it_is_not_keyed_by_client(tmp_path: Path, command: Command) -> None:
    """Protects a newcomer whose topic is keyed by device: the error and the command to run are in one
    message."""
    plant = Plant(tmp_path)
    text = plant.path.read_text()
    plant.path.write_text(
        text.replace('"by-site"', '"readings"').replace('[samples.rekey]\ntopic = "readings"\n', "")
    )
    for number in range(12):
        plant.write(
            {"meta": {"site": "site-1"}, "id": number, "temp": 1.0, "hum": 0.5, "load": 0.5},
            partition=number % 3,
        )
    _, told, _ = command("check", plant.path, "--format", "json")
    assert "`streamfl rekey CONFIG`" in told
    plant.path.write_text(text)
    _, told, _ = command("check", plant.path, "--format", "json")
    found = {one["check"]: one for one in json.loads(told)["checks"]}
    assert found["records of readings"]["detail"] == "12 of 12 records readable"
    assert found["would write to by-site"]["detail"].startswith("12 records from these")
    assert not any("streamfl rekey" in one["detail"] for one in found.values())


def test_topics_are_made_and_rights_told_for_both(tmp_path: Path, command: Command) -> None:
    """Protects the start: the topics and rights of `streamfl rekey` are created and printed with the
    role's."""
    plant = Plant(tmp_path, ASSEMBLE)
    plant.path.write_text(
        plant.path.read_text().replace("rekey-", "fresh-").replace('"by-site"', '"clients"')
    )
    MemoryBus.at(plant.url.replace("rekey-", "fresh-")).create(
        [TopicSpec("readings", 3, compacted=False, users=True)]
    )
    _, told, _ = command("topics", plant.path, "--create", "--format", "json")
    found = json.loads(told)
    partitions = {topic["name"]: topic["partitions"] for topic in found["topics"]}
    assert (
        partitions["plant.pofmkl-client.rekey-samples.pieces"]
        == partitions["plant.pofmkl-client.rekey-samples.state"]
        == 3
    )
    # As many as the topic that it is made from.
    assert partitions["clients"] == 3
    needed = {right.name for one in rekeyings(plant.configured) for right in rights(one)}
    assert needed >= {
        "readings",
        "clients",
        "plant.pofmkl-client.rekey-samples",
        "plant.pofmkl-client.rekey-samples:",
    }


VERTICAL = """
[federation]
name = "loans"
parties = ["bank", "shop"]
embedding_size = 2
[role]
kind = "vafl-party"
[party]
name = "shop"
[samples]
topic = "baskets-by-customer"
entity = "customer"
features = ["food", "toys"]
[samples.rekey]
topic = "baskets"
[samples.assemble]
id = "customer"
"""


def test_a_party_of_a_vertical_federation_has_it_too(tmp_path: Path) -> None:
    """Protects the other systems: their topics are keyed by entity too, without code of their own for
    that."""
    path = tmp_path / "party.toml"
    path.write_text(VERTICAL)
    [own] = rekeyings(read_configuration(path))
    channels = own.kind.channels(own.settings)
    assert {source.topic for source in channels.inputs.values()} == {
        "baskets",
        "loans.shop.rekey-samples.pieces",
    }
    assert channels.outputs["keyed"] == "baskets-by-customer"
    assert own.settings.dead_letters == "loans.shop.dead-letters"
    own.kind.build(own.settings)


def test_nothing_of_it_is_in_what_a_state_is_made_with(tmp_path: Path) -> None:
    """Protects running federations: adding [samples.rekey] keeps the existing state valid."""
    plain, with_it = Plant(tmp_path), None
    before = plain.configured.kind.state_settings(plain.configured.settings).values
    with_it = Plant(tmp_path, ASSEMBLE)
    assert with_it.configured.kind.state_settings(with_it.configured.settings).values == before
    text = plain.path.read_text()
    plain.path.write_text(text[: text.index("[samples.rekey]")] + text[text.index("[learning]") :])
    assert plain.configured.kind.state_settings(plain.configured.settings).values == before
    assert not any("rekey" in key or "assemble" in key for key in before)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('format = "csv"\ncolumns = ["site", "temp"]\n', ""),
        ('[samples.assemble]\nseconds = 5\nid = "x"\n', "seconds or id is expected"),
        ('[samples.assemble]\nseconds = 5\nname = "x"\n', "value is missing"),
        ('[samples.assemble]\nid = "x"\ngrace_seconds = 5\n', "grace_seconds has no meaning with id"),
        ('topic2 = "x"\n', "is not known"),
    ],
)
def test_settings_that_do_not_go_together_are_told(tmp_path: Path, more: str, said: str) -> None:
    """Protects the operator: a mistake is reported by its key before anything is written."""
    plant = Plant.__new__(Plant)
    plant.path = tmp_path / "client.toml"
    plant.path.write_text(CONFIG.format(url="memory://none", more=more))
    if said:
        with pytest.raises(ConfigurationError, match=said):
            plant.configured.kind.build(plant.configured.settings)
        return
    own = rekeying(plant.configured, "samples")
    own.kind.build(own.settings)
    assert own.kind.channels(own.settings).inputs["source"].topic == "readings"


def test_lines_of_csv_become_json_by_client(tmp_path: Path) -> None:
    """Protects a topic whose format differs from the new topic's: fields are copied by name."""
    plant = Plant(tmp_path, 'format = "csv"\ncolumns = ["site", "temp"]\nby = "site"\n')
    plant.write(b"north,21.5", b"south,3")
    drain(plant.worker())
    assert plant.samples() == {
        "north": [{"site": "north", "temp": "21.5"}],
        "south": [{"site": "south", "temp": "3"}],
    }


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("", b"north"),
        ('key = "uuid"', b"12345678-1234-5678-1234-567812345678"),
        ('key = "uuid"', bytes(range(16))),
        ('key = "json"\nkey_field = "id"', b'{"id":7,"kind":"pump"}'),
        ('key = "int64"', bytes(8)),
    ],
)
def test_a_key_that_is_not_said_to_change_stays_byte_by_byte(
    tmp_path: Path, settings: str, key: bytes
) -> None:
    """Protects samples from ending up apart from their labels: a key that is spelt differently belongs to
    another partition."""
    plant = Plant(tmp_path)
    text = plant.path.read_text().replace('client = "meta.site"', settings)
    plant.path.write_text(text)
    plant.write({"temp": 1}, key=key)
    drain(plant.worker())
    [record] = plant.bus.read("by-site")
    assert record.key == key
    assert record.partition == plant.bus.partition_of(key, 2)


def test_a_topic_is_written_once_more_only_if_asked(tmp_path: Path, command: Command) -> None:
    """Protects a rekeyed topic from a second copy of everything: Kafka forgets a group's offsets after seven
    days."""
    plant = Plant(tmp_path)
    plant.write(*({"meta": {"site": site}, "id": 1, "temp": 1.0} for site in SITES))
    worker = plant.worker()
    drain(worker)
    code, _, error = command("reset", plant.path, "--all", "--stream", "samples")
    assert (code, "stop them first" in error) == (2, True)
    worker.close()
    group = rekeying(plant.configured, "samples").settings.group
    plant.bus._groups[group].committed.clear()
    again = plant.worker()
    drain(again)
    again.close()
    assert sum(map(len, plant.samples().values())) == len(SITES)
    assert command("reset", plant.path, "--all", "--stream", "samples")[0] == 0
    drain(plant.worker())
    assert {site: len(found) for site, found in plant.samples().items()} == dict.fromkeys(SITES, 2)
    assert "--all --stream samples;" in ways_to_begin_anew(Channels({}, {}, {}), group)
    assert command("reset", plant.path, "--client", "a", "--stream", "samples")[0] == 2


def test_an_infinity_is_no_missing_value(tmp_path: Path) -> None:
    """Protects clients' means: JSON writes an infinity as null, and the client would silently fill it in."""
    msgpack = [
        msgspec.msgpack.encode({"meta": {"site": "a"}, "id": "1", "temp": value})
        for value in (math.inf, math.nan)
    ]
    plant = Plant(tmp_path, 'format = "msgpack"')
    plant.write(*msgpack)
    drain(plant.worker())
    assert [one["temp"] for one in plant.samples()["a"]] == ["inf", None]
    sensor = Plant(tmp_path, ASSEMBLE)
    sensor.write(b'{"meta": {"site": "a"}, "sensor": "temp", "value": 1e999, "ts": 5}')
    drain(sensor.worker())
    [letter] = sensor.bus.read("plant.dead-letters")
    assert b"value is inf" in dict(letter.headers)["text"]


def test_what_was_refused_goes_back_and_what_stops_it_is_passed_over(
    tmp_path: Path, command: Command
) -> None:
    """Protects the operator: the commands for a role's own topics also work for this one, with the same
    configuration."""
    plant = Plant(tmp_path)
    plant.write({"meta": {"site": "a"}, "n": 0}, {"site": "b", "n": 1})
    worker = plant.worker()
    drain(worker)
    worker.close()
    plant.path.write_text(
        plant.path.read_text().replace('topic = "readings"', 'topic = "readings"\nby = "site"')
    )
    _, told, _ = command("dead-letters", plant.path, "--replay", "--format", "json")
    assert json.loads(told)["replayed"] == 1
    code, _, _ = command(
        "skip",
        plant.path,
        "--topic",
        "readings",
        "--partition",
        0,
        "--offset",
        2,
        "--format",
        "json",
    )
    assert code == 0
    drain(plant.worker())
    assert list(plant.samples()) == ["a"], "the one that came back was passed over"
    reasons = [dict(letter.headers).get("error") for letter in plant.bus.read("plant.dead-letters")]
    assert sorted(filter(None, reasons)) == [b"missing_field", b"skipped"]


def test_another_topic_is_refused_where_records_were_written(tmp_path: Path) -> None:
    """Protects changed settings: records already read are not read again, so the new topic would silently
    stay empty."""
    plant = Plant(tmp_path)
    plant.write({"meta": {"site": "site-1"}, "temp": 1.0})
    before = plant.worker()
    drain(before)
    before.close()
    plant.path.write_text(plant.path.read_text().replace('topic = "by-site"', 'topic = "by-place"'))
    plant.bus.create([TopicSpec("by-place", 2, compacted=False, users=True)])
    with pytest.raises(ConfigurationError, match="reset CONFIG --all --stream samples"):
        drain(plant.worker())
