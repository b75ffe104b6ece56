"""The command line of a vertical federation: the rights that each role needs, the demo, and checks."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command
from page_commands import page_text

from streamfl.cli.access import rights
from streamfl.cli.preflight import read_configuration
from streamfl.configuration.settings import load_kind, load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, Subscription
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.tools import demo as demo_vertical
from streamfl.vafl.tools.run import VerticalOutcome, run_vertical

SHARED = """
[federation]
name = "loans"
{federation}
[bus]
url = "memory://{bus}"
processing_guarantee = "{guarantee}"
[role]
kind = "{kind}"
"""
VERTICAL = 'parties = ["bank", "shop"]\nembedding_size = 1'
MEMBERS = {
    "vafl-party": (VERTICAL, '[party]\nname = "shop"\n[samples]\ntopic = "baskets"\nfeatures = ["x"]\n'),
    "vafl-coordinator": (VERTICAL, '[labels]\ntopic = "outcomes"\nlabel = "paid"\n'),
    "pofmkl-client": ("clients = 2", '[samples]\ntopic = "readings"\nfeatures = ["x"]\nlabel = "y"\n'),
    "pofmkl-server": ("clients = 2", ""),
}
# By hand: topic to what its principal does there.
READS_WRITES: dict[str, dict[str, set[str]]] = {
    "vafl-party": {
        "baskets": {"Read"},
        "loans.shop.gradients": {"Read"},
        "loans.shop.embeddings": {"Write"},
        "loans.shop.state": {"Read", "Write"},
        "loans.shop.dead-letters": {"Write"},
    },
    "vafl-coordinator": {
        "outcomes": {"Read"},
        "loans.bank.embeddings": {"Read"},
        "loans.shop.embeddings": {"Read"},
        "loans.bank.gradients": {"Write"},
        "loans.shop.gradients": {"Write"},
        "loans.predictions": {"Write"},
        "loans.vafl-coordinator.state": {"Read", "Write"},
        "loans.vafl-coordinator.dead-letters": {"Write"},
    },
    "pofmkl-client": {
        "readings": {"Read"},
        "loans.model": {"Read"},
        "loans.predictions": {"Write"},
        "loans.updates": {"Write"},
        "loans.pofmkl-client.state": {"Read", "Write"},
        "loans.dead-letters": {"Write"},
    },
    "pofmkl-server": {
        "loans.updates": {"Read"},
        "loans.model": {"Read", "Write"},
        "loans.pofmkl-server.state": {"Read", "Write"},
        "loans.dead-letters": {"Write"},
    },
}
GROUPS = {"vafl-party": "loans.shop", **{kind: f"loans.{kind}" for kind in MEMBERS if kind != "vafl-party"}}


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

    def member(self, kind: str, guarantee: str = "exactly_once") -> Path:
        federation, more = MEMBERS[kind]
        path = self.folder / f"{kind}.toml"
        content = SHARED.format(federation=federation, bus=self.folder.name, guarantee=guarantee, kind=kind)
        path.write_text(content + more)
        return path


@pytest.fixture
def line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Line:
    return Line(tmp_path, monkeypatch, capsys)


def parsed(text: str) -> dict[str, Any]:
    """What kafka-acls.sh would make of a line: options to their values, in order."""
    words = shlex.split(text)
    options: dict[str, Any] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        options.setdefault(option, []).append(value)
    return options


@pytest.mark.parametrize("kind", MEMBERS)
def test_rights_are_those_that_the_role_needs_and_no_more(line: Line, kind: str) -> None:
    """Protects parties from each other: whoever grants the printed lines has a role that runs, and nobody
    else's topics open."""
    config = line.member(kind)
    principal = f"User:{read_configuration(config).settings.group}"
    code, out, _ = line("topics", config, "--create-inputs", "--principal", principal)
    assert code == 0
    lines = [parsed(text) for text in out.splitlines() if text.startswith("--allow-principal")]
    assert {one["--allow-principal"][0] for one in lines} == {f"User:{GROUPS[kind]}"}
    topics = {one["--topic"][0]: set(one["--operation"]) for one in lines if "--topic" in one}
    expected = {topic: {*operations, "DescribeConfigs"} for topic, operations in READS_WRITES[kind].items()}
    seen = {topic: operations for topic, operations in topics.items() if topic in expected}
    assert seen == expected
    # What a worker looks at before it starts, and no more of it.
    assert all(topics[topic] == {"Describe", "DescribeConfigs"} for topic in topics.keys() - expected.keys())
    assert not (kind.startswith("vafl") and topics.keys() - expected.keys())
    assert not any("--resource-pattern-type" in one for one in lines if "--topic" in one)
    (group,) = [one for one in lines if "--group" in one]
    assert (group["--group"], group["--operation"]) == ([GROUPS[kind]], ["Read"])
    (transactions,) = [one for one in lines if "--transactional-id" in one]
    assert transactions["--transactional-id"] == [f"{GROUPS[kind]}:"]
    assert (transactions["--operation"], transactions["--resource-pattern-type"]) == (["Write"], ["prefixed"])


@pytest.mark.parametrize(
    ("alignment", "told", "remedy"),
    [
        (
            {},
            ("of one party's embedding alone", "each revision adds one party's"),
            "set alignment.quorum = 3",
        ),
        ({"revise": False}, ("of one party's embedding alone",), "set alignment.quorum = 3"),
        (
            {"quorum": 2},
            ("each revision adds one party's",),
            "set alignment.revise = false, or alignment.quorum = 3",
        ),
        ({"quorum": 2, "revise": False}, (), ""),
        ({"quorum": 3}, (), ""),
    ],
)
def test_who_reads_predictions_learns_of_single_parties(
    alignment: dict[str, Any], told: tuple[str, ...], remedy: str
) -> None:
    """Protects parties from a right that is granted without a thought: it says what predictions tell, and
    what to set."""
    content = {
        "federation": {"name": "f", "parties": ["a", "b", "c"], "embedding_size": 1},
        "role": {"kind": "vafl-coordinator"},
        "labels": {"topic": "outcomes", "label": "y"},
        "alignment": alignment,
    }
    kind = find_kind("vafl-coordinator")
    (caution,) = [
        one.caution
        for one in kind.topics(VaflSettings.model_validate(content))
        if one.name == "f.predictions"
    ]
    assert all(part in caution for part in told)
    assert caution.endswith(remedy)
    assert bool(caution) == bool(told)
    assert not any(
        one.caution
        for one in kind.topics(VaflSettings.model_validate(content))
        if one.name != "f.predictions"
    )


def test_topics_says_what_readers_of_predictions_learn(line: Line) -> None:
    """Protects parties: whoever grants rights by what is printed reads it there, in both formats, and of no
    other role."""
    _, out, _ = line("topics", line.member("vafl-coordinator"))
    (caution,) = [
        text
        for text in out.splitlines()
        if text.startswith("Who reads loans.predictions: the first prediction is")
    ]
    _, out, _ = line("topics", line.member("vafl-coordinator"), "--format", "json")
    assert json.loads(out)["cautions"] == {"loans.predictions": caution.partition(": ")[2]}
    _, out, _ = line("topics", line.member("vafl-party"))
    assert "Who reads" not in out


def test_a_worker_writes_under_its_own_right_and_no_other(tmp_path: Path) -> None:
    """Protects parties from being fenced by each other: each worker's transactional id begins as its own
    printed right says, and as nobody else's does, though one's name begin with the other's.
    """
    joined: list[str] = []

    class Noted(MemoryBus):
        def session(self, subscription: Subscription) -> Any:
            joined.append(subscription.transactional_id)
            return super().session(subscription)

    members = [("f", "p"), ("f", "p-x"), ("f", "p_x"), ("f.p", "q"), ("f-p", "p"), ("f", "p-x-y")]
    allowed: list[str] = []
    for federation, party in members:
        path = tmp_path / "party.toml"
        path.write_text(
            f'[federation]\nname = "{federation}"\nparties = ["{party}"]\nembedding_size = 1\n[role]\nkind = '
            f'"vafl-party"\n[party]\nname = "{party}"\n[samples]\ntopic = "baskets"\nfeatures = ["x"]\n'
        )
        configured = read_configuration(path)
        allowed += [right.name for right in rights(configured) if right.resource == "transactional-id"]
        bus = Noted()
        bus.create([replace(topic, partitions=1) for topic in configured.kind.topics(configured.settings)])
        with closing(build_worker(configured.settings, bus)) as worker:
            worker.step(0.0)
    fits = [[identifier.startswith(prefix) for prefix in allowed] for identifier in joined]
    assert fits == [[one == other for other in members] for one in members]


def test_rights_are_the_same_in_json_and_of_whom_they_are_asked_for(line: Line) -> None:
    """Protects tools that grant rights: the object says the same as the lines, for the principal that was
    named."""
    config = line.member("vafl-party", guarantee="at_least_once")
    _, out, _ = line("topics", config, "--principal", "User:CN=shop, O=Shop")
    lines = [text for text in out.splitlines() if text.startswith("--allow-principal")]
    assert {parsed(text)["--allow-principal"][0] for text in lines} == {"User:CN=shop, O=Shop"}
    assert not any("--transactional-id" in text for text in lines)
    _, out, _ = line("topics", config, "--principal", "User:CN=shop, O=Shop", "--format", "json")
    assert out.count("\n") == 1
    acls = json.loads(out)["acls"]
    assert [one["arguments"] for one in acls] == lines
    for one in acls:
        options = parsed(one["arguments"])
        assert options[f"--{one['resource']}"] == [one["name"]]
        assert options["--operation"] == one["operations"]


def test_check_names_the_topic_where_refused_records_go(line: Line) -> None:
    """Protects whoever looks for refused records: a party's are in a topic of its own."""
    config = line.member("vafl-party")
    line("topics", config, "--create-inputs")
    line.bus.write([Outgoing("baskets", b"e", b"no JSON")])
    code, out, _ = line("check", config, "--format", "json")
    (found,) = [one for one in json.loads(out)["checks"] if one["check"] == "records of baskets"]
    assert code == 4
    assert "loans.shop.dead-letters" in found["remedy"]


def test_a_topic_with_too_few_partitions_for_one_member_may_be_right_for_the_others(line: Line) -> None:
    """Protects a party whose own topic alone has more partitions than the others': to give the topics between
    members as many was said to be the remedy. After it all members are ready, and entities never meet."""
    line.bus.create([TopicSpec("baskets", 3, compacted=False), TopicSpec("loans.shop.embeddings", 2, False)])
    code, out, _ = line("check", line.member("vafl-party"), "--format", "json")
    found = {one["check"]: one for one in json.loads(out)["checks"]}
    assert code == 4
    told = found["topic loans.shop.embeddings"]
    assert told["detail"] == "has 2 partitions, 3 are needed, as baskets has"
    assert "all members need the same number of partitions: if the others' have 2" in told["remedy"]
    assert "if they have 3, give this topic 3" in told["remedy"]


@pytest.mark.long
def test_the_vertical_demo_shows_who_learns_what(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects the first look at a vertical federation: everybody it is to be compared with is there, with a
    picture, and the page's table is the demo's."""
    made: list[VerticalOutcome] = []

    def noted(*arguments: Any, **options: Any) -> VerticalOutcome:
        made.append(run_vertical(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(demo_vertical, "run_vertical", noted)
    picture = line.folder / "vafl.svg"
    code, out, error = line("demo", "vafl", "--out", picture, "--format", "json")
    found = json.loads(out)
    assert (code, found["picture"], error.strip()) == (0, str(picture), f"picture: {picture}")
    runs, alone = found["runs"], ["place alone", "edges alone", "colours alone"]
    assert list(runs) == ["asynchronous", "synchronous", *alone, "one table"]
    assert runs["asynchronous"]["accuracy"] > max(runs[name]["accuracy"] for name in alone)
    assert found["history"]["asynchronous"][-1]["accuracy"] == runs["asynchronous"]["accuracy"]
    assert "<svg" in picture.read_text()
    for name, run in runs.items():
        title = re.escape(demo_vertical.TITLES.get(name, name))
        ((accuracy, seconds),) = re.findall(
            rf"^\| {title} \| ([0-9.]+) \| ([0-9,]+) s \|", page_text("vertical.md"), re.MULTILINE
        )
        assert float(accuracy) == pytest.approx(run["accuracy"], abs=0.006), "the page is not of this demo"
        assert float(seconds.replace(",", "")) == run["virtual_seconds"]
    # The table, of the same runs, and mistakes.
    again = cycle(made.copy())
    monkeypatch.setattr(demo_vertical, "run_vertical", lambda *_, **__: next(again))
    _, out, _ = line("demo", "vafl", "--out", picture)
    assert sum("alone" in text for text in out.splitlines()) == 3
    code, _, error = line("demo", "vafl", "--out", line.folder / "nowhere" / "vafl.png")
    assert (code, "cannot be written" in error) == (2, True)
    code, _, error = line("demo", "other")
    assert (code, "vafl" in error) == (2, True)


def test_commands_of_the_other_system_say_so(line: Line) -> None:
    """Protects whoever tries a command that is for clients alone: a message and exit code 2, not a
    traceback."""
    for command, given in (
        ("features", ("--out", line.folder / "f.npz")),
        ("compare", ("--data", "river:Phishing")),
    ):
        code, out, error = line(command, line.member("vafl-coordinator"), *given)
        assert (code, out) == (2, "")
        assert "role.kind = 'vafl-coordinator'" in error


CUSTOMERS = """\
customer,age,income,visits,paid
ann,30,1.5,4,1
bob,,2.5,5,0
,50,3.5,6,1
dan,60,4.5,,0
eve,70,5.5,8,
fay,80,6.5,9,0
"""


def replayed(line: Line, config: Path, topic: str, *options: object) -> dict[str, dict[str, Any]]:
    """What a replay writes: by key, the record's content. The role itself reads each."""
    code, out, error = line(
        "replay", config, "--data", line.folder / "customers.csv", *options, "--format", "json"
    )
    assert code == 0, error
    records = list(line.bus.read(topic))
    assert (json.loads(out)["topic"], json.loads(out)["records"]) == (topic, len(records))
    kind = find_kind(load_kind(config))
    (source,) = [
        one
        for one in kind.channels(load_settings(config, kind.settings)).inputs.values()
        if one.topic == topic
    ]
    for record in records:
        assert source.decode(record).client == (record.key or b"").decode()
    return {(record.key or b"").decode(): json.loads(record.value or b"") for record in records}


@pytest.fixture
def customers(line: Line) -> Line:
    (line.folder / "customers.csv").write_text(CUSTOMERS)
    for topic in ("baskets", "outcomes"):
        line.bus.create([TopicSpec(topic, 3, compacted=False)])
    return line


def test_replay_writes_a_partys_own_columns_and_the_coordinators_labels(customers: Line) -> None:
    """Protects the join: each member writes its own and nothing else, under names and in partitions that are
    the same at all."""
    line = customers
    party, coordinator = line.member("vafl-party"), line.member("vafl-coordinator")
    split = ("--split", "bank=0:2,shop=visits", "--label", "paid", "--entity-column", "customer")
    shown = replayed(line, party, "baskets", *split, "--rate", 100_000)
    # Without the third, who has no name, and the fourth, who has no visits.
    assert shown == {"ann": {"x": 4}, "bob": {"x": 5}, "eve": {"x": 8}, "fay": {"x": 9}}
    labels = replayed(line, coordinator, "outcomes", "--entity-column", "customer")
    assert labels == {"ann": {"paid": 1}, "bob": {"paid": 0}, "dan": {"paid": 0}, "fay": {"paid": 0}}
    places = {
        topic: {one.key: one.partition for one in line.bus.read(topic)} for topic in ("baskets", "outcomes")
    }
    both = places["baskets"].keys() & places["outcomes"].keys()
    assert {places["baskets"][key] for key in both} == {places["outcomes"][key] for key in both}
    assert all(places["baskets"][key] == places["outcomes"][key] for key in both)


def test_replay_names_entities_by_their_row_and_as_the_settings_say(customers: Line) -> None:
    """Protects data without names: the row's number is the same at every member, whatever rows another one
    lacks."""
    line = customers
    party, coordinator = line.member("vafl-party"), line.member("vafl-coordinator")
    party.write_text(
        party.read_text().replace('features = ["x"]', 'features = "v"\ndimension = 2\nentity = "who"')
    )
    shown = replayed(
        line, party, "baskets", "--split", "bank=age,shop=income+visits", "--label", "paid", "--limit", 4
    )
    assert shown == {str(row): {"v": [row + 1.5, row + 4.0], "who": str(row)} for row in (0, 1, 2, 4)}
    coordinator.write_text(
        coordinator.read_text().replace('label = "paid"', 'label = "y"\nentity = "customer"')
    )
    labels = replayed(line, coordinator, "outcomes", "--label", "paid", "--limit", 2)
    assert labels == {"ann": {"y": 1.0, "customer": "ann"}, "bob": {"y": 0.0, "customer": "bob"}}


def test_replay_takes_the_columns_that_are_called_as_the_fields(customers: Line) -> None:
    """Protects an organisation that has its own table only: no word on the others' columns is asked for."""
    party = customers.member("vafl-party")
    party.write_text(party.read_text().replace('["x"]', '["income", "visits"]'))
    shown = replayed(customers, party, "baskets", "--entity-column", "customer", "--limit", 1)
    assert shown == {"ann": {"income": 1.5, "visits": 4.0}}


@pytest.mark.parametrize(
    ("kind", "options", "code", "expected"),
    [
        ("vafl-party", ("--label-delay", 3), 2, "--label-delay has no meaning with role.kind = 'vafl-party'"),
        ("vafl-party", ("--label", "paid"), 2, "--label has no meaning without --split"),
        ("vafl-party", (), 5, "no column x"),
        (
            "vafl-party",
            ("--split", "bank=age,shop=income+visits", "--label", "paid"),
            2,
            "shop has 2 columns (income, visits)",
        ),
        ("vafl-party", ("--split", "bank=age,shop=paid", "--label", "paid"), 2, "paid is the label"),
        ("vafl-party", ("--split", "shop=visits", "--label", "paid"), 2, "the columns are missing for bank"),
        ("vafl-coordinator", ("--split", "bank=age,shop=visits"), 2, "--split has no meaning"),
        ("vafl-coordinator", ("--client-column", "customer"), 2, "--client-column has no meaning"),
        ("vafl-coordinator", ("--entity-column", "who"), 5, "no column who"),
        ("vafl-coordinator", ("--label", "customer"), 5, "customer does not hold numbers, but 'ann'"),
        ("pofmkl-client", ("--split", "a=0:2"), 2, "--split has no meaning with role.kind = 'pofmkl-client'"),
        ("pofmkl-server", (), 2, "nothing can be replayed"),
    ],
)
def test_replay_refuses_what_makes_no_sense(
    customers: Line, kind: str, options: tuple[object, ...], code: int, expected: str
) -> None:
    """Protects whoever mistypes: an option without effect, or columns that do not fit, end in a message and
    write nothing."""
    found, _, error = customers(
        "replay", customers.member(kind), "--data", customers.folder / "customers.csv", *options
    )
    assert (found, expected in " ".join(error.split())) == (code, True), error
    assert [*customers.bus.read("baskets"), *customers.bus.read("outcomes")] == []


def test_replay_asks_for_the_topic(line: Line) -> None:
    """Protects the first try: a topic that is not there is named, with the command that makes it."""
    (line.folder / "customers.csv").write_text(CUSTOMERS)
    code, _, error = line("replay", line.member("vafl-coordinator"), "--data", line.folder / "customers.csv")
    assert (code, "topic outcomes does not exist" in error) == (2, True)
