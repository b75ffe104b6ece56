"""``streamfl check`` of the topic with turns, whose records carry their own signatures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.cli.preflight import read_configuration
from streamfl.fdskl.messages import TURN, Turn
from streamfl.runtime.bus import Outgoing, TopicSpec
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

CONFIG = """
[federation]
name = "risk"
parties = ["bank", "shop"]
active = ["bank", "shop"]
[bus]
url = "memory://{bus}"
[role]
kind = "fdskl-worker"
[party]
name = "bank"
[samples]
topic = "accounts"
features = ["x"]
[labels]
topic = "outcomes"
label = "y"
[learning]
solver = "sgd"
"""


def test_a_turn_that_was_refused_long_ago_is_no_failure_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who runs a check at each deployment: one record of a stranger, or one key that was revoked
    after a rotation, kept it red although workers have long read on."""
    bus, file = MemoryBus.at(f"memory://{tmp_path.name}"), tmp_path / "bank.toml"
    file.write_text(CONFIG.format(bus=tmp_path.name))
    bus.create([TopicSpec(name, 1, compacted=False) for name in ("accounts", "outcomes")])
    assert run_command(monkeypatch, capsys, "topics", file, "--create")[0] == 0

    def checked() -> tuple[bool, str]:
        _, out, _ = run_command(monkeypatch, capsys, "check", file, "--format", "json")
        found = {one["check"]: one for one in json.loads(out)["checks"]}["records of risk.turns"]
        return found["passed"], found["remedy"]

    bus.write([Outgoing("risk.turns", None, b"garbage", 0)])
    assert not checked()[0]
    turn = Turn(1, 1, "shop", 1, False, 0, 0, 1.0, 1.0)
    bus.write([Outgoing("risk.turns", None, TURN.encode(turn), 0)])
    worker = build_worker(read_configuration(file).settings, bus)
    while worker.step(0.0):
        pass
    worker.close()
    assert checked() == (
        True,
        "nothing: workers have read on; what they refused is in risk.bank.dead-letters",
    )
