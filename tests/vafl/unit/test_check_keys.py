"""``streamfl check`` where some members have keys and one has none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_command
from identities import Keys

from streamfl.cli.preflight import read_configuration
from streamfl.runtime.bus import Outgoing, TopicSpec
from streamfl.runtime.kinds import build_worker
from streamfl.runtime.memory_bus import MemoryBus

CONFIG = """
[federation]
name = "loans"
parties = ["bank", "shop"]
embedding_size = 1
{members}
[bus]
url = "memory://{bus}"
commit_interval_ms = 0
{identity}
[role]
kind = "{kind}"
{own}
"""
OWN = {
    "head": '[labels]\ntopic = "results"\nlabel = "y"\n',
    "bank": '[party]\nname = "bank"\n[samples]\ntopic = "seen-bank"\nfeatures = ["x"]\n',
    "shop": '[party]\nname = "shop"\n[samples]\ntopic = "seen-shop"\nfeatures = ["x"]\n',
}


@pytest.mark.parametrize("bare", ["shop", "head"])
def test_a_member_without_keys_among_members_with_keys_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bare: str
) -> None:
    """Protects the operator who left [identity] out of one file: the others refuse all that this member
    writes, and its own check was green."""
    keys, bus = Keys(tmp_path, "loans"), MemoryBus.at(f"memory://{tmp_path.name}")
    bus.create([TopicSpec(name, 1, compacted=False) for name in ("results", "seen-bank", "seen-shop")])
    files = {name: tmp_path / f"{name}.toml" for name in OWN}
    for name, file in files.items():
        kind = "vafl-coordinator" if name == "head" else "vafl-party"
        keys.add(name, kind, speaks_for=() if name == "head" else (name,))
        with_keys = bare != name
        file.write_text(
            CONFIG.format(
                members=f'members = "{keys.file}"' if with_keys else "",
                identity=f'[identity]\nkey_file = "{keys.key_file(name)}"' if with_keys else "",
                bus=tmp_path.name,
                kind=kind,
                own=OWN[name],
            )
        )
    for file in files.values():
        assert run_command(monkeypatch, capsys, "topics", file, "--create")[0] == 0
    for number in range(4):
        entity, label = f"e{number}".encode(), json.dumps({"y": number % 2}).encode()
        bus.write([Outgoing(f"seen-{party}", entity, b'{"x": 1}') for party in ("bank", "shop")])
        bus.write([Outgoing("results", entity, label)])
    workers = [build_worker(read_configuration(file).settings, bus) for file in files.values()]
    while sum(worker.step(0.0) for worker in workers):
        pass
    for worker in workers:
        worker.close()

    failed: dict[str, dict[str, str]] = {}
    for name, file in files.items():
        _, out, _ = run_command(monkeypatch, capsys, "check", file, "--format", "json")
        checks = json.loads(out)["checks"]
        failed[name] = {one["check"]: one["detail"] for one in checks if not one["passed"]}
        assert any(one["check"] == "identity" for one in checks)
    told = failed[bare].pop("identity")
    assert "no keys, but other members have them: loans." in told
    assert "is sealed or signed" in told
    refused = {"shop": "head", "head": "bank"}[bare]
    topic = {"shop": "loans.shop.embeddings", "head": "loans.bank.gradients"}[bare]
    if bare == "shop":
        assert "unsigned" in failed[refused][f"records of {topic}"]
    assert all("identity" not in found for found in failed.values())
