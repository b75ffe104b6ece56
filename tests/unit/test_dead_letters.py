"""``streamfl dead-letters`` on the memory bus: it shows the letters of a worker, and sends each back once."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command

from streamfl.cli.dead_letters import replay as command
from streamfl.configuration.settings import load_settings
from streamfl.contract.channels import TopicSpec
from streamfl.contract.role import Record
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import BusUnavailable, Outgoing, Polled, Step
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus, MemorySession

CONFIG = """
[federation]
name = "plant"
clients = 40
[bus]
url = "{url}"
connect_timeout_seconds = 0.5
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
features = [{features}]
[learning]
features_per_kernel = 4
preset = "paper"
"""
BAD = b'{"device": "press", "x": "hot"}'
MISSING = b'{"device": "press"}'


class TroubledSession(MemorySession):
    """A session that calls the bus's hooks around its own calls."""

    _bus: TroubledBus

    def commit(self, step: Step) -> None:
        self._bus.before_commit()
        super().commit(step)
        self._bus.after_commit()

    def poll(self, timeout: float, max_records: int) -> Polled:
        self._bus.before_poll()
        return super().poll(timeout, max_records)


class TroubledBus(MemoryBus):
    """A memory bus with hooks before and after a commit and before a poll."""

    def __init__(self) -> None:
        super().__init__()
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.before_poll: Callable[[], None] = lambda: None

    @property
    def session_type(self) -> type[MemorySession]:
        return TroubledSession

    def quiet(self) -> None:
        self.before_commit = self.after_commit = self.before_poll = lambda: None


class Plant:
    """A federation on the test's own bus, and the command line in this process."""

    def __init__(self, folder: Path, command: Command) -> None:
        self._command = command
        self.url = f"memory://{folder.name}-dead-letters"
        bus = TroubledBus.at(self.url)
        assert isinstance(bus, TroubledBus)
        self.bus = bus
        self.config = folder / "client.toml"
        self.configure("x")

    def configure(self, *features: str) -> None:
        self.config.write_text(
            CONFIG.format(url=self.url, features=", ".join(f'"{name}"' for name in features))
        )

    def create(self, partitions: int = 2) -> None:
        assert self("topics", "--create-inputs", "--partitions", partitions)[0] == 0

    def __call__(self, name: str, *arguments: object) -> tuple[int, str, str]:
        return self._command(name, self.config, *arguments)

    def letters(self, *arguments: object) -> list[dict[str, Any]]:
        code, out, error = self("dead-letters", "--format", "json", *arguments)
        assert (code, error) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    def replay(self, *arguments: object) -> dict[str, Any]:
        code, out, error = self("dead-letters", "--replay", "--format", "json", *arguments)
        assert code == 0, error
        result: dict[str, Any] = json.loads(out)
        return result

    def refuse(self, *records: Outgoing) -> None:
        """Write samples, and let a worker of the role refuse the wrong ones."""
        self.bus.write(records)
        self.work()

    def work(self) -> None:
        worker = build_worker(load_settings(self.config, PofmklSettings), self.bus)
        while worker.step(0.0):
            pass
        worker.close()

    def replayed(self) -> list[Record]:
        return [record for record in self.bus.read("readings") if "replayed_from" in dict(record.headers)]


@pytest.fixture
def plant(tmp_path: Path, command: Command) -> Plant:
    return Plant(tmp_path, command)


def test_a_reason_that_no_letter_has_is_told_with_those_that_there_are(plant: Plant) -> None:
    """Protects users who mistype a reason from an empty answer that looks as if nothing had been refused."""
    plant.create()
    assert plant.letters("--reason", "nope") == []
    plant.refuse(*[Outgoing("readings", b"press", BAD, 1)] * 3, Outgoing("readings", b"press", MISSING, 0))
    for more in ((), ("--replay",)):
        code, out, error = plant("dead-letters", "--reason", "nope", "--reason", "not_numeric", *more)
        assert (code, out) == (2, "")
        assert "--reason nope: no letter" in error
        assert "not_numeric (3), missing_field (1)" in error
    assert len(plant.letters("--reason", "missing_field")) == 1


def test_letters_are_shown_as_they_were_refused(plant: Plant) -> None:
    """Protects the search for a cause: place, key, reason, headers and value are the refused record's."""
    plant.create()
    plant.refuse(
        Outgoing("readings", b"press", b'{"x": 1, "device": "press"}', 1),
        Outgoing("readings", b"press", BAD, 1, (("trace", b"a1"),)),
        Outgoing("readings", b"\xff", b"\x80\x81", 0),
    )
    first, second = sorted(plant.letters(), key=lambda letter: letter["partition"])
    assert (second["topic"], second["partition"], second["offset"]) == ("readings", 1, 1)
    assert (second["key"], second["reason"], second["value"]) == ("press", "not_numeric", BAD.decode())
    assert second["headers"] == [{"name": "trace", "value": "a1"}]
    assert (second["replayed"], second["truncated_from"]) == (False, None)
    assert first["reason"] == "malformed"
    assert base64.b64decode(first["key_base64"]) == b"\xff"
    assert base64.b64decode(first["value_base64"]) == b"\x80\x81"
    assert [letter["reason"] for letter in plant.letters("--reason", "malformed")] == ["malformed"]
    table = plant("dead-letters")[1]
    assert "readings-1-1" in table
    assert "not_numeric" in table


def test_a_strangers_letter_fills_no_terminal(plant: Plant) -> None:
    """Protects whoever looks at the letters: no worker writes a long text, but a stranger may."""
    plant.create()
    plant.refuse(Outgoing("readings", b"press", BAD, 0))
    [letter] = plant.bus.read("plant.dead-letters")
    forged = tuple((name, b"y" * 100_000 if name == "text" else content) for name, content in letter.headers)
    plant.bus.write([Outgoing(letter.topic, b"press", BAD, 0, forged)])
    assert [len(letter["text"]) for letter in plant.letters() if letter["text"][0] == "y"] == [1000]


def test_the_newest_letters_are_shown(plant: Plant) -> None:
    """Protects terminal and memory from a topic full of letters: the limit keeps the newest, in order of
    time."""
    plant.create()
    for number in range(5):
        plant.refuse(Outgoing("readings", b"press", b"bad %d" % number, number % 2))
    assert [letter["value"] for letter in plant.letters("--limit", 3)] == ["bad 2", "bad 3", "bad 4"]


def test_followed_letters_come_as_they_are_refused(plant: Plant) -> None:
    """Protects someone who follows letters: existing ones come first, each once, and Ctrl-C ends with
    success."""
    plant.create()
    plant.refuse(Outgoing("readings", b"press", b"before", 0))
    polls: list[None] = []

    def happen() -> None:
        polls.append(None)
        if len(polls) == 3:
            plant.bus.before_poll = lambda: None
            plant.refuse(Outgoing("readings", b"press", b"after", 0), Outgoing("readings", b"press", BAD, 1))
            plant.bus.before_poll = happen
        if len(polls) == 6:
            raise KeyboardInterrupt

    plant.bus.before_poll = happen
    assert [letter["value"] for letter in plant.letters("--follow", "--reason", "malformed")] == [
        "before",
        "after",
    ]
    polls.clear()
    code, out, _ = plant("dead-letters", "--follow")
    assert code == 0
    assert [line.split()[-1] for line in out.splitlines() if "malformed" in line] == [
        "before",
        "after",
        "after",
    ]


def test_a_replay_brings_the_record_back_as_it_was(plant: Plant) -> None:
    """Protects the record's meaning: same place, key, value and headers, and a mark that shows a second
    failure."""
    plant.create()
    plant.refuse(
        Outgoing("readings", b"press", BAD, 1, (("trace", b"a1"), ("trace", b"a2"))),
        Outgoing("readings", None, MISSING, 0),
        Outgoing("readings", b"gone", None, 0),
    )
    places = {letter["value"]: letter["letter"].encode() for letter in plant.letters()}
    result = plant.replay()
    assert (result["replayed"], result["partitions_elsewhere"]) == (3, [])
    found = {record.value: record for record in plant.replayed()}
    again = found[BAD]
    assert (again.partition, again.key) == (1, b"press")
    assert again.headers == (("trace", b"a1"), ("trace", b"a2"), ("replayed_from", places[BAD.decode()]))
    assert (found[MISSING].partition, found[MISSING].key) == (0, None)
    assert (found[None].partition, found[None].key) == (0, b"gone")
    assert all(letter["replayed"] for letter in plant.letters())
    plant.work()
    second = [letter for letter in plant.letters() if not letter["replayed"]]
    assert len(second) == 3
    assert {one["headers"][-1]["name"] for one in second} == {"replayed_from"}
    # Only the last replay's mark is kept: a record that fails again and again does not grow.
    assert plant.replay()["replayed"] == 3
    assert [len(record.headers) for record in plant.replayed() if record.value == BAD] == [3, 3]


def test_letters_that_were_passed_over_are_kept(plant: Plant) -> None:
    """Protects letters of another reason, and those beyond the limit, from a replay that did not choose
    them."""
    plant.create()
    plant.refuse(*[Outgoing("readings", b"k", value, 0) for value in (BAD, MISSING) * 4])
    result = plant.replay("--reason", "missing_field", "--limit", 3)
    assert (result["replayed"], result["not_replayed"]["limit"]) == (3, 1)
    assert Counter(record.value for record in plant.replayed()) == {MISSING: 3}
    assert [plant.replay()["replayed"] for _ in range(2)] == [5, 0]
    assert Counter(record.value for record in plant.replayed()) == {MISSING: 4, BAD: 4}


def test_no_letter_writes_where_this_role_does_not_read(plant: Plant) -> None:
    """Protects every other topic: a letter with forged, cut or foreign headers stays where it is."""
    plant.create()
    plant.bus.create([TopicSpec("secret", 2, compacted=False)])
    plant.refuse(
        Outgoing("readings", b"large", b"x" * 1_000_001, 0),
        # A sender's own headers that look like a letter's.
        Outgoing(
            "readings",
            b"sly",
            BAD,
            0,
            (("topic", b"secret"), ("partition", b"1"), ("offset", b"0"), ("replayed", b"9")),
        ),
    )

    def forged(topic: bytes, partition: bytes, reason: bytes = b"malformed") -> Outgoing:
        cause = (
            ("topic", topic),
            ("partition", partition),
            ("offset", b"3"),
            ("error", reason),
            ("text", b""),
        )
        return Outgoing("plant.dead-letters", b"k", b"v", 0, cause)

    plant.bus.write(
        [
            forged(b"secret", b"0"),
            forged(b"plant.model", b"0"),
            forged(b"plant.predictions", b"0"),
            forged(b"readings", b"2"),
            forged(b"readings", b"-1"),
            # A damaged batch is not a record.
            forged(b"readings", b"0", b"unreadable"),
            Outgoing("plant.dead-letters", b"k", b"v", 0),
            Outgoing("plant.dead-letters", b"k", b"[0]", 0, (("replayed", b"nine"),)),
            Outgoing("plant.dead-letters", b"k", b"[0,", 0, (("replayed", b"9"),)),
        ]
    )
    result = plant.replay()
    assert result["replayed"] == 1
    assert result["not_replayed"] == {
        "limit": 0,
        "truncated": 1,
        "unreadable": 1,
        "other_topic": 4,
        "not_a_letter": 4,
    }
    assert [record.key for record in plant.replayed()] == [b"sly"]
    for topic in ("secret", "plant.model", "plant.predictions"):
        assert list(plant.bus.read(topic)) == []
    code, out, error = plant("dead-letters", "--replay")
    assert (code, out) == (0, "")
    assert "replayed 0 dead letters" in error
    assert "cut short" in error
    assert [
        letter["truncated_from"] > 1_000_000 for letter in plant.letters() if letter["truncated_from"]
    ] == [True]


@pytest.mark.parametrize("seed", [0, 3])
def test_every_letter_goes_back_once_whatever_happens(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Protects exactly-once: replays may die before or after a commit, choose reasons and limits, or run two
    at once."""
    monkeypatch.setattr(command, "STEP_LETTERS", 3)
    generator = np.random.default_rng(seed)
    plant.create(3)
    records = [
        Outgoing(
            "readings", b"client-%d" % (number % 5), (BAD, MISSING, b"%d" % number)[number % 3], number % 3
        )
        for number in range(40)
    ]
    plant.refuse(*records)
    letters = Counter(letter["letter"] for letter in plant.letters())
    assert set(letters.values()) == {1}
    assert len(letters) == 40
    commits = [0]

    def trouble() -> None:
        commits[0] += 1
        happens = generator.integers(6)
        if happens == 0:
            raise BusUnavailable("died here")
        if happens == 1 and commits[0] < 40:
            # Another replay joins the group, takes partitions over, and ends before this one goes on.
            plant("dead-letters", "--replay", "--limit", generator.integers(1, 9))

    for _ in range(12):
        plant.bus.before_commit = plant.bus.after_commit = trouble
        chosen = [
            (),
            ("--reason", "not_numeric"),
            ("--reason", "missing_field", "--limit", 2),
            ("--limit", 4),
        ]
        code, _, error = plant("dead-letters", "--replay", *chosen[generator.integers(4)])
        assert code in (0, 3), error
        assert (
            max(
                Counter(dict(record.headers)["replayed_from"] for record in plant.replayed()).values(),
                default=1,
            )
            == 1
        )
    plant.bus.quiet()
    plant.replay()
    assert commits[0] > 12
    assert Counter(dict(record.headers)["replayed_from"].decode() for record in plant.replayed()) == letters
    assert plant.replay()["replayed"] == 0


def test_a_partition_that_another_replay_has_is_named(plant: Plant) -> None:
    """Protects against a replay that looks complete but is not: letters held by another replay are
    reported."""
    plant.create()
    plant.refuse(Outgoing("readings", b"a", BAD, 0), Outgoing("readings", b"b", BAD, 1))
    other = plant.bus.session(command.Subscription("plant.dead-letters-replay", ("plant.dead-letters",)))
    other.poll(0.0, 1)
    mine = plant.replay()["partitions_elsewhere"]
    assert len(mine) == 1
    code, _, error = plant("dead-letters", "--replay")
    assert code == 0
    assert f"another replay is running and has partitions {mine}" in error
    other.close()
    assert plant.replay()["partitions_elsewhere"] == []
    assert len(plant.replayed()) == 2


def test_a_note_that_cannot_be_read_yet_is_waited_for(plant: Plant) -> None:
    """Protects against a double replay: a commit whose end marker is still missing is recognised by its
    offset."""
    plant.create()
    plant.refuse(Outgoing("readings", b"a", BAD, 0))
    place = next(iter(plant.bus.read("plant.dead-letters"))).partition
    before = plant.bus.session(command.Subscription("plant.dead-letters-replay", ("plant.dead-letters",)))
    before.poll(0.0, 1)
    before.commit(Step({("plant.dead-letters", place): 1}))
    before.close()
    code, _, error = plant("dead-letters", "--replay")
    assert code == 3
    assert "cannot be read yet" in error
    plant.bus.write([Outgoing("plant.dead-letters", None, b"[0]", place, (("replayed", b"1"),))])
    assert plant.replay()["replayed"] == 0
    assert plant.replayed() == []


def test_what_cannot_be_done_is_said(plant: Plant) -> None:
    """Protects scripts: a wrong use ends with exit code 2 and one line."""
    for arguments in (("--replay", "--follow"), ("--replay",), ()):
        code, out, error = plant("dead-letters", *arguments)
        assert (code, out) == (2, "")
        assert error.startswith("error: ")
        assert "Traceback" not in error
