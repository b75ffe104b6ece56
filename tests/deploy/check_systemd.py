"""The unit, checked by systemd's own tools, and a worker under its system call filter."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from broker import Broker, free_ports
from image import ROOT

UNIT = ROOT / "deploy" / "systemd" / "streamfl@.service"


@pytest.fixture(name="unit")
def _unit(tmp_path: Path) -> Path:
    """The unit with a program that exists here."""
    path = tmp_path / UNIT.name
    program = Path(sys.executable).with_name("streamfl")
    path.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/streamfl/bin/streamfl", str(program)))
    return path


def test_systemd_understands_every_line(unit: Path) -> None:
    """Protects the hardening: systemd ignores an unknown key, with a line in a log that nobody reads."""
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("ProtectClock=yes", "ProtectClocks=yes"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert "ProtectClocks" in done.stderr


def test_little_is_left_to_a_worker_that_was_taken_over(unit: Path) -> None:
    """Protects the machine: systemd's own exposure score, from 0 to 10, stays as low as docs/deploy.md
    says."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True, text=True
    )
    [exposure] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    said = re.findall(
        r"Overall exposure level for \S+: ([\d.]+)", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    )
    assert [float(one) for one in said] >= [float(exposure)]


# The parts of systemd's setup that a process can apply to itself.
CONFINED = """
import ctypes, errno, os, sys
import pyseccomp
number = {"PR_SET_NO_NEW_PRIVS": 38, "PR_SET_MDWE": 65}
process = ctypes.CDLL(None, use_errno=True)
for name, value in number.items():
    if process.prctl(value, 1, 0, 0, 0):
        sys.exit(f"{name}: {os.strerror(ctypes.get_errno())}")
rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
for name in sys.argv[1].split(","):
    try:
        rules.add_rule(pyseccomp.ALLOW, name)
    except (OSError, RuntimeError):
        pass  # another processor's
rules.load()
os.execv(sys.argv[2], sys.argv[2:])
"""


def allowed_calls() -> set[str]:
    """The system calls that the unit's filter allows."""
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True
    ).stdout
    members: dict[str, list[str]] = {}
    for block in re.split(r"\n(?=@)", text):
        head, *lines = block.splitlines()
        members[head.strip()] = [
            line.strip() for line in lines if line.startswith("    ") and "#" not in line
        ]

    def expanded(name: str) -> set[str]:
        return set().union(*(expanded(one) for one in members[name])) if name.startswith("@") else {name}

    found = expanded("@default")
    for line in re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(encoding="utf-8"), re.MULTILINE):
        names = set().union(*(expanded(name) for name in line.lstrip("~").split()))
        found = found - names if line.startswith("~") else found | names
    return found


@pytest.mark.parametrize("scheme", ["kafka", "kafka+librdkafka"])
def test_a_worker_needs_no_call_that_is_filtered(scheme: str, tmp_path: Path) -> None:
    """Protects the first start under systemd: a worker needs no refused system call, and no memory that
    becomes executable."""
    calls = allowed_calls()
    assert {"read", "execve", "futex", "socket"} <= calls
    assert not {"mount", "chown", "reboot", "ptrace"} & calls
    [port] = free_ports(1)
    program = [sys.executable, "-P", "-m", "streamfl"]
    configuration = str(ROOT / "deploy" / "server.toml")
    with Broker() as broker:
        environment = {
            **os.environ,
            "STREAMFL_METRICS__PORT": str(port),
            "STREAMFL_BUS__URL": f"{scheme}://{broker.address}",
        }
        environment["PYTHONPATH"] = f"{ROOT}:{ROOT / 'connectors'}"
        subprocess.run(
            [*program, "topics", configuration, "--create"], env=environment, check=True, capture_output=True
        )
        command = [sys.executable, "-c", CONFINED, ",".join(sorted(calls)), *program, "run", configuration]
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        try:
            while not serves(port):
                assert worker.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.1)
        finally:
            worker.terminate()
            assert worker.wait(30) == 0, (tmp_path / "log").read_text()
    assert "Operation not permitted" not in (tmp_path / "log").read_text()


def serves(port: int) -> bool:
    """Whether a worker is ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except urllib.error.HTTPError as error:
        error.close()
    except OSError:
        pass
    return False
