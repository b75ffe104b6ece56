"""The command line of a kernel federation: replay to a party that also knows the labels, the demo, topics and
rights."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import run_command

from streamfl.contract.channels import TopicSpec
from streamfl.fdskl.tools import demo as demo_kernel
from streamfl.runtime.memory_bus import MemoryBus

BANK = """
[federation]
name = "credit"
seed = 11
parties = ["bank", "shop", "post"]
[bus]
url = "memory://{bus}"
[role]
kind = "fdskl-worker"
[party]
name = "{name}"
[samples]
topic = "{topic}"
features = {features}
{more}
"""
PAGE = (Path(__file__).parents[3] / "docs" / "fdskl.md").read_text(encoding="utf-8")
LABELS = '[labels]\ntopic = "outcomes"\nlabel = "defaulted"\n'


class Line:
    """The command line in this process, in a folder and on a memory bus of the test's own."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]
    ) -> None:
        self._monkeypatch, self._capture = monkeypatch, capture
        self.folder = folder
        self.bus = MemoryBus.at(f"memory://{folder.name}")

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        return run_command(self._monkeypatch, self._capture, *arguments)

    def member(self, name: str, features: str, more: str = "") -> Path:
        path = self.folder / f"{name}.toml"
        topic = {"bank": "accounts", "shop": "baskets", "post": "parcels"}[name]
        path.write_text(
            BANK.format(bus=self.folder.name, name=name, topic=topic, features=features, more=more)
        )
        assert self("topics", path, "--create-inputs", "--partitions", 1)[0] == 0
        return path

    def read(self, topic: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            ((record.key or b"").decode(), json.loads(record.value or b"")) for record in self.bus.read(topic)
        ]


@pytest.fixture(name="line")
def _line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


@pytest.fixture(name="data")
def _data(tmp_path: Path) -> Path:
    frame = pd.DataFrame({"customer": list("abcdef"), "age": [1.0, 2, np.nan, 4, 5, 6], "visits": range(6)})
    frame["defaulted"] = [0.0, 1, 1, np.nan, 1, 0]
    path = tmp_path / "history.csv"
    frame.to_csv(path, index=False)
    return path


def test_replay_to_a_party_with_labels_writes_both(line: Line, data: Path) -> None:
    """Protects the first try of the party that knows the labels: its columns and its labels go to their own
    topics under the entity's name; a row without a label is shown, and one without a number in its columns is
    not.
    """
    config = line.member("bank", '["age"]', LABELS)
    code, out, error = line(
        "replay", config, "--data", data, "--entity-column", "customer", "--format", "json"
    )
    assert code == 0, error
    told = json.loads(out)
    assert (told["topic"], told["records"], told["dropped"]) == ("accounts", 5, 1)
    assert line.read("accounts") == [
        (name, {"age": age}) for name, age in zip("abdef", (1.0, 2.0, 4.0, 5.0, 6.0), strict=True)
    ]
    assert line.read("outcomes") == [
        (name, {"defaulted": label}) for name, label in zip("abef", (0.0, 1.0, 1.0, 0.0), strict=True)
    ]


def test_labels_of_a_replay_can_be_late(line: Line, data: Path) -> None:
    """Protects experiments with late labels: none is written before so many more rows, all are in the end,
    also with a limit."""
    config = line.member("bank", '["visits"]', LABELS)
    # Labels follow their rows in the order of what is written, which the memory bus shows by topic alone: so
    # one row at a time.
    written: list[tuple[str, str]] = []
    write = line.bus.write

    def noted(records: Any) -> None:
        written.extend((record.topic, record.key.decode()) for record in records)
        write(records)

    line._monkeypatch.setattr(line.bus, "write", noted)
    code, _, error = line(
        "replay", config, "--data", data, "--entity-column", "customer", "--label-delay", 2, "--limit", 4
    )
    assert code == 0, error
    rows = {"accounts": "row", "outcomes": "label"}
    assert [(rows[topic], key) for topic, key in written] == [
        ("row", "a"), ("row", "b"), ("row", "c"), ("label", "a"), ("row", "d"), ("label", "b"),
        ("label", "c"),
    ]  # fmt: skip


def test_replay_to_a_party_without_labels_writes_its_columns_alone(line: Line, data: Path) -> None:
    """Protects labels from going where nobody is to see them, and a user from options without effect."""
    config = line.member("shop", '["x"]')
    arguments = (
        "--data",
        data,
        "--entity-column",
        "customer",
        "--label",
        "defaulted",
        "--split",
        "bank=age,shop=visits,post=age",
    )
    assert line("replay", config, *arguments)[0] == 0
    assert line.read("baskets") == [(name, {"x": float(row)}) for row, name in enumerate("abcdef")]
    code, _, error = line("replay", config, *arguments, "--label-delay", 2)
    assert code == 2
    assert "--label-delay has no meaning here" in error


def test_ranges_of_a_replay_leave_the_label_out(line: Line, data: Path) -> None:
    """Protects the label: where columns are named by ranges, its column, called as [labels] says, is none of
    them."""
    config = line.member("bank", '["x", "y"]', LABELS)
    assert line("replay", config, "--data", data, "--split", "bank=0:2,shop=0:1,post=0:1")[0] == 0
    assert line.read("accounts")[0] == ("0", {"x": 1.0, "y": 0.0})
    code, _, error = line("replay", config, "--data", data, "--split", "bank=age+defaulted,shop=0:1,post=0:1")
    assert code == 2
    assert "defaulted is the label" in error


@pytest.mark.long
def test_the_demo_shows_what_two_parties_learn_together(
    line: Line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Protects the first impression: together the parties come as far as whoever has one table, far beyond
    each alone and beyond a linear model, as the page says, and what one sends does not follow its column.
    """
    said: list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = []
    draw = demo_kernel._draw

    def noted(out: Path, table: Any, together: Any, levels: Any, heard: Any) -> None:
        entities, sent = heard.first_feature()
        said.append((table.inputs[1][entities, 0], sent))
        draw(out, table, together, levels, heard)

    monkeypatch.setattr(demo_kernel, "_draw", noted)
    picture = tmp_path / "demo.png"
    code, out, error = line("demo", "fdskl", "--out", picture, "--format", "json")
    assert code == 0, error
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = json.loads(out)
    accuracy = {name: one["accuracy"] for name, one in found["runs"].items()}
    assert accuracy["together"] > 0.87
    assert accuracy["together"] == pytest.approx(accuracy["one table"], abs=0.02)
    assert max(accuracy[name] for name in ("linear", "east alone", "north alone")) < 0.75
    assert found["abandoned"] == 0
    for name, title in demo_kernel.TITLES.items():
        (row,) = re.findall(rf"^\| {title} \| ([0-9.]+) \|", PAGE, re.MULTILINE)
        assert float(row) == pytest.approx(accuracy[name], abs=0.015), "the page is not of this demo"
    ((column, sent),) = said
    assert len(sent) > 50
    for turned in (np.cos(sent), np.sin(sent)):
        assert abs(np.corrcoef(turned, column)[0, 1]) < 5 / np.sqrt(len(sent))
    assert sent.max() - sent.min() > 5.0


def test_the_example_of_the_page_prints_what_the_page_says(line: Line) -> None:
    """Protects the reader's trust: the command of the page, with its file, comes to the figures that stand
    below it."""
    (command,) = re.findall(r"^    streamfl (simulate .*river:.*)$", PAGE, re.MULTILINE)
    config = line.folder / "host.toml"
    config.write_text(
        '[federation]\nname = "sites"\nparties = ["host", "page", "traffic"]\n[role]\nkind = "fdskl-worker"\n'
    )
    arguments = [config if word == "host.toml" else word for word in shlex.split(command)]
    code, out, error = line(*arguments, "--format", "json")
    assert code == 0, error
    found = json.loads(out)

    def told(title: str) -> list[float]:
        (row,) = re.findall(rf"^\| {title} \| (.*) \|$", PAGE, re.MULTILINE)
        return [float(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,.]*[0-9]|[0-9]", row)]

    assert told("Entities")[:3] == [found["entities"], 3, found["test_entities"]]
    assert told("Accuracy, test entities")[0] == pytest.approx(found["accuracy"], abs=0.013)
    assert told("AUC, test entities")[0] == pytest.approx(found["auc"], abs=0.005)
    assert told("Iterations") == [found["iterations"]]
    assert told("Random features")[:2] == [found["features"], found["features_dropped"]]
    assert told("Rounds") == [found["rounds"], found["hops"], found["abandoned"]]
    messages, size = told("Messages between parties")
    assert messages == found["messages"]
    assert size == pytest.approx(found["bytes"], rel=0.001)
    # As the sentence below says it.
    assert size == pytest.approx(1000 * 2048 * 4 * 2, rel=0.01)


def test_predictions_need_as_many_partitions_as_samples(line: Line) -> None:
    """Protects whoever made the topic of predictions beforehand, with one partition: the check passed, and
    the worker ended whenever it predicted an entity of another partition."""
    line.bus.create([TopicSpec("credit.predictions", 1, compacted=False)])
    line.bus.create([TopicSpec(name, 3, compacted=False) for name in ("accounts", "outcomes")])
    path = line.folder / "bank.toml"
    path.write_text(
        BANK.format(bus=line.folder.name, name="bank", topic="accounts", features=["age"], more=LABELS)
    )
    assert line("topics", path, "--create")[0] == 4
    code, out, _ = line("check", path, "--format", "json")
    failed = {one["check"]: one for one in json.loads(out)["checks"] if not one["passed"]}
    assert (code, list(failed)) == (4, ["topic credit.predictions"])
    assert failed["topic credit.predictions"]["detail"] == "has 1 partition, 3 are needed, as accounts has"
    assert failed["topic credit.predictions"]["remedy"] == "give it 3 partitions"
