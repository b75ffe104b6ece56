"""The commands that look and begin anew, of a role whose system says no more than every system does."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.cli.preflight import read_configuration
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.vafl.state import ALIGNED_ENTITY, COORDINATOR_STATE

CONFIGURATION = """
[federation]
name = "credit"
parties = ["bank", "shop"]
embedding_size = 1
[bus]
url = "memory://{name}"
[role]
kind = "vafl-coordinator"
[labels]
topic = "defaults"
entity = "customer"
label = "defaulted"
"""


def test_a_member_can_be_looked_at_and_not_be_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects what was promised: a member whose state is part of it is shown from its changelog, and never
    forgotten."""
    config = tmp_path / "coordinator.toml"
    config.write_text(CONFIGURATION.format(name=tmp_path.name))
    bus = MemoryBus.at(f"memory://{tmp_path.name}")
    run_command(monkeypatch, capsys, "topics", config, "--create-inputs", "--partitions", 2)
    _, out, _ = run_command(monkeypatch, capsys, "inspect", config)
    assert out.startswith("Figures that are not 0: none"), "nothing is remembered yet, and nothing denied"
    bus.write([Outgoing("defaults", b"a", b'{"customer": "a", "defaulted": 1}')])
    with closing(build_worker(read_configuration(config).settings, bus)) as worker:
        while worker.step(0.0):
            pass
    code, out, _ = run_command(monkeypatch, capsys, "inspect", config, "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert {one["name"]: one["value"] for one in found["figures"]}["entities"] == 1
    assert sum(one["behind"] for one in found["inputs"]) == 0
    remembered = {one["key"]: one["records"] for one in found["remembered"]}
    assert (remembered.keys(), remembered[ALIGNED_ENTITY.key]) == (
        {row.key for row in COORDINATOR_STATE.rows},
        1,
    )
    code, _, error = run_command(monkeypatch, capsys, "inspect", config, "--client", "a")
    assert (code, "has no clients" in error) == (2, True)
    before = list(bus.read("credit.vafl-coordinator.state"))
    code, _, error = run_command(monkeypatch, capsys, "reset", config, "--all")
    assert (code, "cannot be reset" in error) == (2, True)
    assert list(bus.read("credit.vafl-coordinator.state")) == before
