"""The quickstart's commands, run unchanged, with a file in place of its broker."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from command_line import Command
from laptop import Laptop

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, connect

TEXT = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
READINGS = 480


@pytest.fixture(name="laptop")
def _laptop(tmp_path: Path) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path)
    yield laptop
    laptop.close()


def blocks(step: str) -> list[list[str]]:
    """A step's commands: each indented block, and lines joined where a command spans several."""
    [section] = re.findall(rf"^## {step}\. .*?(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    found = re.findall(r"((?:^    [^\n]*\n)+)", section, re.MULTILINE)
    return [
        re.split(r"\n(?=streamfl|mkdir)", re.sub(r"^    ", "", block, flags=re.MULTILINE).strip())
        for block in found
    ]


Do = Callable[[list[str]], str]


@pytest.fixture(name="do")
def _do(laptop: Laptop, monkeypatch: pytest.MonkeyPatch, command: Command) -> Do:
    """Runs streamfl commands in this process, which starts faster than a new one each. Returns their
    output."""
    monkeypatch.chdir(laptop.folder)

    def do(commands: list[str]) -> str:
        said = []
        for words in commands:
            code, out, error = command(*shlex.split(words.removeprefix("streamfl ")))
            assert code == 0, f"{words}: {out}{error}"
            said.append(out)
        return "".join(said)

    return do


@pytest.mark.long
def test_the_quickstart_runs_as_it_stands(laptop: Laptop, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects a new user's first quarter of an hour: a table is evaluated, then predicted by processes, then
    a topic is."""
    make, (init, simulate, compare) = blocks("2")
    laptop.shell("\n".join(make))
    do([init])
    assert "each client on its own" in do([simulate])
    assert "running-mean" in do([f"{compare} --methods default,local,running-mean"])
    prepare, run, look = blocks("3")
    do(prepare)
    for command in run:
        laptop.start(command)
    laptop.wait_for(READINGS)
    said = do(look)
    assert "readings-" in said
    assert "model_version" in said
    laptop.stop()
    [(folder, *commands)] = [lines for lines in blocks("4") if "mkdir" in lines[0]]
    assert folder == "mkdir kafka && cd kafka"
    (laptop.folder / "kafka").mkdir()
    monkeypatch.chdir(laptop.folder / "kafka")
    cluster = f"sqlite://{laptop.folder}/cluster.db"
    with closing(connect(cluster)) as bus:
        bus.create([TopicSpec("readings", 2, compacted=False)])
        rows = [
            {"device": f"press-{number % 8}", "t1": 20 + number % 7, "t2": number % 5, "lever": 3.5}
            for number in range(80)
        ]
        bus.write([Outgoing("readings", row["device"].encode(), json.dumps(row).encode()) for row in rows])
    commands = [
        line.replace("kafka://localhost:9092", cluster) for line in commands if not line.endswith("&")
    ]
    assert sum(cluster in line for line in commands) == 1
    assert "plant.predictions" in do(commands)
