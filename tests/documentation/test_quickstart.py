"""The quickstart: its commands, run as they stand there. In the place of its broker is the file of its third step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from laptop import Laptop

TEXT = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")
READINGS = 480


@pytest.fixture(name="laptop")
def _laptop(tmp_path: Path) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path)
    yield laptop
    laptop.close()


def blocks(step: str) -> list[list[str]]:
    """The commands of a step, an indented block each; one that goes over several lines is one."""
    [section] = re.findall(rf"^## {step}\. .*?(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    found = re.findall(r"((?:^    [^\n]*\n)+)", section, re.MULTILINE)
    return [re.split(r"\n(?=streamfl|mkdir)", re.sub(r"^    ", "", block, flags=re.MULTILINE).strip()) for block in found]


@pytest.mark.long
def test_the_quickstart_runs_as_it_stands(laptop: Laptop) -> None:
    """Protects the first quarter of an hour of a new user: a table of theirs is judged, then predicted by processes, then a topic is."""
    make, judge = blocks("2")
    laptop.shell("\n".join(make))
    init, simulate, compare = judge
    laptop.shell(init)
    assert "MSE, each client on its own" in laptop.shell(simulate)
    assert "running-mean" in laptop.shell(f"{compare} --methods default,local,running-mean")
    prepare, run, look = blocks("3")
    laptop.shell("\n".join(prepare))
    for command in run:
        laptop.start(command)
    laptop.wait_for(READINGS)
    said = laptop.shell("\n".join(look))
    assert "readings-" in said
    assert "model_version" in said
    [kafka] = [lines for lines in blocks("4") if "mkdir" in lines[0]]
    laptop.stop()
    script = "\n".join(line for line in kafka if not line.endswith("&")).replace("kafka://localhost:9092", "sqlite://../plant.db")
    assert script.count("--from-topic") == 2
    assert "plant.predictions" in laptop.shell(script)
