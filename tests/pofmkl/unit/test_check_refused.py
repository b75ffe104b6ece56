"""``streamfl check`` of a topic between members with records that were refused long ago."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_command

from streamfl.cli.preflight import read_configuration
from streamfl.runtime.bus import Outgoing, TopicSpec
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus


def test_what_was_refused_long_ago_is_no_failure_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Protects who runs a check at each deployment: one record that a stranger once wrote kept it red, and
    nothing said from when it was or what would help."""
    url = f"memory://{tmp_path.name}"
    bus = MemoryBus.at(url)
    bus.create([TopicSpec("trips", 1, compacted=False)])
    files = {kind: tmp_path / f"{kind}.toml" for kind in ("pofmkl-client", "pofmkl-server")}

    def ride(first: int, last: int) -> None:
        rows = [{"km": n % 7, "slope": n % 3, "minutes": 3 * (n % 7)} for n in range(first, last)]
        bus.write([Outgoing("trips", b"dock", json.dumps(row).encode()) for row in rows])

    def work(*kinds: str) -> None:
        workers = [build_worker(read_configuration(files[kind]).settings, bus) for kind in kinds]
        while sum(worker.step(0.0) for worker in workers):
            pass
        for worker in workers:
            worker.close()

    def checked() -> tuple[int, str, str]:
        command = ("check", files["pofmkl-server"], "--format", "json")
        code, out, _ = run_command(monkeypatch, capsys, *command)
        found = {one["check"]: one for one in json.loads(out)["checks"]}["records of plant.updates"]
        return code, found["detail"], found["remedy"]

    ride(0, 30)
    said = ("--from-topic", "trips", "--label", "minutes", "--url", url, "--federation", "plant")
    small = ("--set", "learning.features_per_kernel=4", "--set", "federation.clients=1")
    for kind, file in files.items():
        assert run_command(monkeypatch, capsys, "init", file, "--role", kind, *said, *small)[0] == 0
        assert run_command(monkeypatch, capsys, "topics", file, "--create")[0] == 0
    work(*files)
    assert checked()[0] == 0
    bus.write([Outgoing("plant.updates", b"x", b"garbage", 0)])
    code, detail, remedy = checked()
    assert code == 4
    assert "the last of them was written at 20" in detail
    assert "passes again once a later record is readable" in remedy
    work("pofmkl-server")
    assert checked()[0] == 4
    ride(30, 33)
    work(*files)
    code, detail, remedy = checked()
    assert code == 0
    assert detail.endswith("and later ones are readable")
    assert remedy == "nothing: workers have read on; what they refused is in plant.dead-letters"
