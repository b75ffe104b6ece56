"""Records of a labels' topic, their settings, and the commands that read and write them."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command

from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.encoding.wire import MAXIMUM_BYTES
from streamfl.pofmkl.config import PofmklSettings
from streamfl.records.formats import format_named
from streamfl.records.labels import LabelReader, LabelsSection
from streamfl.runtime.bus import Outgoing, connect

CONFIG = """
[federation]
name = "plant"
clients = 3
[bus]
url = "{url}"
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
sample_id = "id"
features = ["x0", "x1"]
[labels]
topic = "results"
sample_id = "reading"
label = "lever"
[learning]
features_per_kernel = 4
"""


def reader(label_range: tuple[float, float] | None = (0.0, 1.0), **section: Any) -> LabelReader:
    return LabelReader(
        LabelsSection(**{"topic": "t", "sample_id": "s", "label": "y", **section}), label_range
    )


def record(value: bytes | None, key: bytes | None = b"dev") -> Record:
    return Record("t", 3, 17, key, value)


@pytest.mark.parametrize("name", ["json", "msgpack"])
def test_a_label_is_scaled_and_other_fields_are_ignored(name: str) -> None:
    """Protects the learning scale: a label means the same with its sample or alone, in either format."""
    read = reader((10, 30), format=name)
    found = read.decode(record(format_named(name).encode({"s": "r1", "y": 15, "more": [1], "client": None})))
    assert (found.client, found.sample, found.label) == ("dev", "r1", 0.25)


def test_client_by_key_or_by_field() -> None:
    """Protects the join: the client's name comes from where the section says. A name may be a whole
    number."""
    assert reader().decode(record(b'{"s": "1", "y": 0.5, "c": "other"}')).client == "dev"
    quoted = reader(client='the "client"')
    assert quoted.decode(record(b'{"s": "1", "y": 0.5, "the \\"client\\"": "other"}')).client == "other"
    found = reader(client="c").decode(record(b'{"s": 7, "y": true, "c": 9}', None))
    assert (found.client, found.sample, found.label) == ("9", "7", 1.0)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "malformed"),
        (b'{"s": "", "y": 1, "c": "x"}', "malformed"),
        (b'{"s": null, "y": 1, "c": "x"}', "malformed"),
        (b'{"s": 1.5, "y": 1, "c": "x"}', "malformed"),
        (b'{"s": "1", "y": 1, "c": true}', "malformed"),
        (b'{"s": "' + b"1" * 300 + b'", "y": 1, "c": "x"}', "malformed"),
        (b'{"y": 1, "c": "x"}', "missing_field"),
        (b'{"s": "1", "c": "x"}', "missing_field"),
        (b'{"s": "1", "y": 1}', "missing_field"),
        (b'{"s": "1", "y": null, "c": "x"}', "label"),
        (b'{"s": "1", "y": "high", "c": "x"}', "label"),
        (b'{"s": "1", "y": NaN, "c": "x"}', "label"),
        (b'{"s": "1", "y": Infinity, "c": "x"}', "label"),
        (b'{"s": "1", "y": 1001, "c": "x"}', "label"),
        (b'{"s": "1", "y": -1001, "c": "x"}', "label"),
        (b" " * (MAXIMUM_BYTES + 1), "oversized"),
    ],
)
def test_a_bad_record_is_refused_for_the_right_reason(value: bytes | None, reason: str) -> None:
    """Protects the worker: the reason labels a metric and a dead letter. Any other exception would stop the
    worker."""
    with pytest.raises(BadRecord) as caught:
        reader(client="c").decode(record(value))
    assert caught.value.reason == reason


def test_a_word_is_refused_with_what_to_write_in_its_place() -> None:
    """Protects who has a topic of classes with names from a dead letter of each record that does not say what
    would be accepted; no setting maps names."""
    for format, written in (("json", b'{"s": "1", "y": "yes"}'), ("csv", b"1,yes")):
        columns = {"columns": ["s", "y"]} if format == "csv" else {}
        with pytest.raises(BadRecord, match=r"y is 'yes'.*write numbers in their place.* 1 and 0"):
            reader(format=format, **columns).decode(record(written))
    with pytest.raises(BadRecord, match=r'label_as = "number" accepts numbers as text$'):
        reader().decode(record(b'{"s": "1", "y": "1"}'))


def test_numbers_that_only_messagepack_has() -> None:
    """Protects a client's weights: a single NaN label would spoil them all."""
    encode = format_named("msgpack").encode
    for label in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(BadRecord) as caught:
            reader(format="msgpack").decode(record(encode({"s": "1", "y": label})))
        assert caught.value.reason == "label"


def test_a_class_has_no_range() -> None:
    """Protects federations with many classes: no class is too large a number, and none is rescaled."""
    for written, label in ((b"1001", 1001.0), (b"65535", 65_535.0), (b"true", 1.0), (b"-2000.5", -2000.5)):
        found = reader(label_range=None).decode(record(b'{"s": "1", "y": %s}' % written))
        assert (found.label, type(found.label)) == (label, float)


def test_a_label_far_outside_its_range_is_refused_by_the_name_of_the_key() -> None:
    """Protects learning from a label in another unit: the text names the key that says what is allowed."""
    with pytest.raises(BadRecord, match=r"samples\.label_range"):
        reader(label_range=(10, 20)).decode(record(b'{"s": "1", "y": 10100}'))


def test_settings_that_make_no_reader() -> None:
    """Protects the reader of the message: it names the section's own key."""
    with pytest.raises(
        ConfigurationError, match="labels: sample_id, label, client are read from the same field"
    ):
        reader(client="s")
    with pytest.raises(ConfigurationError, match=r"labels\.format = 'parquet'.*json.*msgpack"):
        reader(format="parquet")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "client.toml"
    path.write_text(CONFIG.format(url=f"memory://{tmp_path.name}"))
    return path


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('sample_id = "id"\n', "", "samples.sample_id is missing: with [labels]"),
        (
            'sample_id = "id"\n',
            'sample_id = "id"\nlabel = "y"\n',
            "samples.label = 'y': labels come with the samples or",
        ),
        (
            'topic = "results"',
            'topic = "readings"',
            "labels.topic = 'readings': a topic other than the samples'",
        ),
        (
            'topic = "results"',
            'topic = "plant.model"',
            "labels.topic = 'plant.model': a topic other than the federation's own",
        ),
        ('topic = "results"', 'topic = "two words"', "labels.topic = 'two words'"),
        (
            "[learning]",
            '[challengers]\nmodels = ["linear"]\n[learning]',
            "challengers.models has no meaning with [labels]",
        ),
        ('label = "lever"\n', "", "labels.label"),
        ('label = "lever"\n', 'label = "lever"\nexpiry_seconds = 0\n', "labels.expiry_seconds = 0"),
        ('label = "lever"\n', 'label = "lever"\nexpiry_seconds = inf\n', "labels.expiry_seconds = inf"),
        ('label = "lever"\n', 'label = "lever"\nlimit = 0\n', "labels.limit = 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(
    config: Path, old: str, new: str, expected: str
) -> None:
    """Protects the user: otherwise nothing would be learnt, or all twice. The message says which key to
    correct."""
    load_settings(config, PofmklSettings)
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ConfigurationError) as caught:
        load_settings(config, PofmklSettings)
    assert expected in str(caught.value)


def test_labels_without_samples_are_refused(config: Path) -> None:
    """Protects from a section that nothing is joined with."""
    text = config.read_text()
    config.write_text(text[: text.index("[samples]")] + text[text.index("[labels]") :])
    with pytest.raises(ConfigurationError, match=r"samples\.sample_id is missing"):
        load_settings(config, PofmklSettings)


def url_of(config: Path) -> str:
    return load_settings(config, PofmklSettings).bus.url


def checks(found: str) -> dict[str, dict[str, Any]]:
    return {check["check"]: check for check in json.loads(found)["checks"]}


def test_check_says_that_partition_counts_differ(config: Path, command: Command) -> None:
    """Protects the join: with different partition counts a label is in another partition than its sample, and
    nothing is learnt."""
    bus = connect(url_of(config), {})
    bus.create([TopicSpec("readings", 4, compacted=False), TopicSpec("results", 3, compacted=False)])
    assert command("topics", config, "--create-inputs")[0] == 4
    code, out, _ = command("check", config, "--format", "json")
    assert code == 4
    failed = {name: check["detail"] for name, check in checks(out).items() if not check["passed"]}
    assert failed == {"topic results": "has 3 partitions, 4 are needed, as readings has"}
    bus.close()


def test_topics_makes_both_alike_and_check_reads_both(config: Path, command: Command) -> None:
    """Protects the first start: topics are created to fit, and each topic's records are reported as readable
    or not."""
    assert command("topics", config, "--create-inputs", "--partitions", 5)[0] == 0
    bus = connect(url_of(config), {})
    assert [state.partitions for state in bus.describe(["readings", "results"]).values()] == [5, 5]
    sample = Outgoing("readings", b"a", b'{"id": "1", "x0": 1, "x1": 2}')
    bus.write([sample, Outgoing("results", b"a", b'{"reading": "1", "lever": 0.5}')])
    code, out, _ = command("check", config, "--format", "json")
    assert code == 0
    found = checks(out)
    assert (
        found["records of readings"]["detail"]
        == found["records of results"]["detail"]
        == "1 of 1 record readable"
    )
    assert found["would write to plant.predictions"]["detail"].startswith("1 record from these")
    bus.write([Outgoing("results", b"a", b'{"reading": "1"}')])
    code, out, _ = command("check", config, "--format", "json")
    assert code == 4
    assert "missing_field: lever is missing" in checks(out)["records of results"]["detail"]
    bus.close()


def rows_file(folder: Path, rows: int) -> Path:
    data = folder / "rows.npz"
    np.savez(data, X=np.arange(2.0 * rows).reshape(rows, 2), y=np.arange(rows) / rows)
    return data


@pytest.mark.parametrize("delay", [None, 2, 100])
def test_replay_sends_labels_so_many_rows_later(
    delay: int | None, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    """Protects tests of late labels on own data: every label once, with that delay, in its sample's
    partition, never in the sample."""
    config.write_text(
        config.read_text().replace("[labels]\n", '[labels]\nclient = "machine"\nformat = "msgpack"\n')
    )
    command("topics", config, "--create-inputs", "--partitions", 2)
    bus = connect(url_of(config), {})
    records: list[Outgoing] = []
    write = type(bus).write
    monkeypatch.setattr(
        type(bus), "write", lambda self, given: (records.extend(given), write(self, given))[1]
    )
    late = ("--label-delay", delay) if delay is not None else ()
    code, out, _ = command("replay", config, "--data", rows_file(tmp_path, 11), *late, "--format", "json")
    result = json.loads(out)
    assert (code, result["records"], result["labels"], len(records)) == (0, 11, 11, 22)
    decode = {"readings": json.loads, "results": format_named("msgpack").decoder(dict)}
    places = {(one.key, one.partition) for topic in decode for one in bus.read(topic)}
    assert sorted(key or b"" for key, _ in places) == [b"client-0", b"client-1", b"client-2"]
    for key, _ in places:
        own = [(one.topic, decode[one.topic](one.value or b"")) for one in records if one.key == key]
        names = [content["id"] for topic, content in own if topic == "readings"]
        expected: list[tuple[str, dict[str, Any]]] = []
        # Oldest first, after as many of its client's samples as requested.
        for place in range(len(names) + (delay or 0)):
            number = 3 * place + int(names[0])
            sample = {"id": str(number), "x0": 2.0 * number, "x1": 2.0 * number + 1}
            expected += [("readings", sample)] if place < len(names) else []
            for name in names[place - (delay or 0) :][:1] if place >= (delay or 0) else ():
                label = {"machine": (key or b"").decode(), "reading": name, "lever": int(name) / 11}
                expected.append(("results", label))
        assert own == expected
    bus.close()


def test_replay_refuses_a_delay_of_labels_that_come_with_their_samples(
    config: Path, tmp_path: Path, command: Command
) -> None:
    """Protects from an option without effect, and from a missing topic: one line, exit code 2."""
    data = rows_file(tmp_path, 4)
    with closing(connect(url_of(config), {})) as bus:
        bus.create([TopicSpec("readings", 1, compacted=False)])
    code, _, error = command("replay", config, "--data", data)
    assert (code, "topic results does not exist" in error) == (2, True)
    text = config.read_text()
    config.write_text(text[: text.index("[labels]")] + text[text.index("[learning]") :])
    code, _, error = command("replay", config, "--data", data, "--label-delay", 3)
    assert (code, "--label-delay = 3: without the section [labels]" in error) == (2, True)
