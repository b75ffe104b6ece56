"""The unit, as systemd's own tools judge it, and a worker under its system calls."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "streamfl@.service"
MOST_EXPOSURE = 1.5


@pytest.fixture(name="unit")
def _unit(tmp_path: Path) -> Path:
    """The unit with a program that is here."""
    path = tmp_path / UNIT.name
    program = Path(sys.executable).with_name("streamfl")
    path.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/streamfl/bin/streamfl", str(program)))
    return path


def test_systemd_understands_every_line(unit: Path) -> None:
    """Protects the hardening: systemd ignores a key that it does not know, with a line in a log that nobody reads."""
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert "ProtectClocks" in done.stderr


def test_little_is_left_to_a_worker_that_was_taken_over(unit: Path) -> None:
    """Protects the machine: systemd's own score, 0 for nothing and 10 for everything, stays as low as docs/systemd.md says."""
    done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True, text=True)
    [exposure] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= MOST_EXPOSURE
