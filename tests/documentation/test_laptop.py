"""The tutorial of a federation on a laptop: its files and commands, run unchanged."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from laptop import Laptop
from page_commands import page_text

from streamfl.runtime.bus import connect

# What follows the tutorial says more of the bus.
TEXT = page_text("laptop.md").partition("\n## The bus in a file\n")[0]
# An indented block of commands, one of code, or one of settings, with the text before it.
BLOCKS = re.compile(
    r"```(?P<kind>toml|python)\n(?P<code>.*?)```|^(?P<shell>(?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE
)


@pytest.fixture(name="laptop")
def _laptop(tmp_path: Path) -> Iterator[Laptop]:
    laptop = Laptop(tmp_path)
    yield laptop
    laptop.close()


@pytest.mark.long
def test_the_tutorial_runs_as_it_stands(laptop: Laptop) -> None:
    """Protects a new user's first hour: every file and command of the page works as described, with real
    processes."""
    said: list[str] = []
    for block in BLOCKS.finditer(TEXT):
        if block["kind"] == "toml":
            (laptop.folder / ("client.toml" if "[samples]" in block["code"] else "server.toml")).write_text(
                block["code"]
            )
        elif block["kind"] == "python":
            (laptop.folder / "look.py").write_text(block["code"])
            assert re.fullmatch(r"press-2 [\d.-]+\n", laptop.shell("python3 look.py"))
        else:
            script = "\n".join(line[4:] for line in block["shell"].splitlines())
            if "reset" in script:
                laptop.stop()
            if script.startswith("streamfl run"):
                for command in script.splitlines():
                    laptop.start(command)
                laptop.wait_for(480)
                with closing(connect(f"sqlite://{laptop.folder}/plant.db")) as bus:
                    presses = {(record.partition, record.key) for record in bus.read("readings")}
                # Both client processes have something to do.
                assert Counter(partition for partition, _ in presses) == {0: 4, 1: 4}
            else:
                said.append(laptop.shell(script))
    everything = "".join(said)
    assert "serving_on=" in laptop.log, "the second client's port"
    for word in ("press-1", "prediction", "last seen", "kernels", "a second"):
        assert word in everything, word
    assert "ACLs" not in everything
    for kind in ("server", "client", "client"):
        laptop.start(f"streamfl run {kind}.toml &")
    laptop.wait_for(2 * 482)
    assert laptop.shell("streamfl read client.toml dead-letters --format json") == ""
