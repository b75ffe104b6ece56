"""The example of a connector: it passes the laws, and workers run on it once it is installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from distributions import distribution

from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Outgoing, Unreadable, connect
from streamfl.runtime.memory_bus import MemoryBus

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "deflating_bus"


def test_its_laws_pass() -> None:
    """Protects users who copy the example: it passes the laws, run as its page says."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)])}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(EXAMPLE),
        "test_laws.py",
    ]
    ended = subprocess.run(
        command, cwd=EXAMPLE, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout
    assert " passed" in ended.stdout
    assert "skipped" not in ended.stdout


@pytest.fixture(name="installed")
def _installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The state after ``pip install``: the module can be imported, and its entry points are known."""
    distribution(EXAMPLE, tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()


@pytest.mark.usefixtures("installed")
def test_it_is_found_by_its_scheme_and_stores_less() -> None:
    """Protects the extension point for other buses: the URL's scheme is enough, records come back unchanged,
    and take less space."""
    bus = connect("deflate+memory://found")
    bus.create([TopicSpec("readings", 1, compacted=False)])
    bus.write([Outgoing("readings", b"key", b"a" * 1000), Outgoing("readings", b"key", None)])
    assert [record.value for record in bus.read("readings")] == [b"a" * 1000, None]
    [stored, nothing] = MemoryBus.at("memory://found").read("readings")
    assert stored.value is not None
    assert len(stored.value) < 100
    assert nothing.value is None


@pytest.mark.usefixtures("installed")
def test_what_is_not_deflated_is_told_by_its_place() -> None:
    """Protects the operator of a topic with another writer: the error names the record, as with every
    connector."""
    bus, inner = connect("deflate+memory://strange"), MemoryBus.at("memory://strange")
    bus.create([TopicSpec("readings", 1, compacted=False)])
    inner.write([Outgoing("readings", b"key", b"plain")])
    with pytest.raises(Unreadable, match="readings-0-0"):
        list(bus.read("readings"))
