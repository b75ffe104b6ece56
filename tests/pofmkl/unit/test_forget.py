"""``streamfl forget`` with a POF-MKL client: its place is free again."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.configuration.settings import load_settings
from streamfl.pofmkl.config import PofmklSettings
from streamfl.runtime.bus import Outgoing, connect
from streamfl.runtime.kinds import build_worker

CONFIG = """
[federation]
name = "plant"
clients = 2
features = ["x"]
[bus]
url = "memory://{name}"
connect_timeout_seconds = 0.5
commit_interval_ms = 0
[role]
kind = "pofmkl-client"
[samples]
topic = "readings"
client = "device"
label = "y"
[learning]
preset = "paper"
features_per_kernel = 4
"""


def test_a_forgotten_client_gives_its_place_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects the way out of full seats: a name that was a mistake is forgotten, and another one is let
    in."""
    config = tmp_path / "client.toml"
    config.write_text(CONFIG.format(name=tmp_path.name))
    assert run_command(monkeypatch, capsys, "topics", config, "--create-inputs", "--partitions", 2)[0] == 0
    bus = connect(f"memory://{tmp_path.name}")

    def work(*names: str) -> set[bytes | None]:
        """Write a sample of each and have the role work it off; the clients that were predicted."""
        content = [json.dumps({"device": name, "x": 0.5, "y": 0.2}).encode() for name in names]
        bus.write(
            [
                Outgoing("readings", name.encode(), value, 0)
                for name, value in zip(names, content, strict=True)
            ]
        )
        with closing(build_worker(load_settings(config, PofmklSettings), bus)) as worker:
            for _ in range(30):
                worker.step(0.0)
        return {record.key for record in bus.read("plant.predictions")}

    assert work("press", "pres", "lathe") == {b"press", b"pres"}
    code, out, error = run_command(
        monkeypatch, capsys, "forget", config, "--client", "pres", "--format", "json"
    )
    assert code == 0, error
    assert json.loads(out) == {"client": "pres", "partitions": [0]}
    assert run_command(monkeypatch, capsys, "forget", config, "--client", "pres")[0] == 2
    assert work("lathe") == {b"press", b"pres", b"lathe"}
