"""The example of a package with a format, models and a connector: once installed, it works as its page
says."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from streamfl_process import run_streamfl, start_streamfl

from streamfl.runtime.bus import Outgoing, connect

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugins"
ROWS = 600


class Site:
    """A folder with the package, installed as by pip, the example's settings and a shell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # pip leaves its build files beside the sources.
        source = shutil.copytree(EXAMPLE, folder / "source")
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*pip, "--target", folder / "site", source], check=True, timeout=300)
        shutil.copy(EXAMPLE / "client.toml", folder)
        paths = os.pathsep.join([str(folder / "site"), *filter(None, sys.path)])
        (folder / "bin").mkdir()
        for name, command in (("streamfl", f"{sys.executable} -m streamfl"), ("python3", sys.executable)):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (folder / "bin" / name).chmod(0o755)
        path = os.pathsep.join([str(folder / "bin"), os.environ["PATH"]])
        self.environment = os.environ | {
            "PYTHONPATH": paths,
            "PATH": path,
            "HALL_NORTH": "sqlite://north.db",
            "COLUMNS": "200",
        }

    def shell(self, script: str) -> str:
        ended = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, f"{script}\n{ended.stdout}\n{ended.stderr}"
        return ended.stdout

    def streamfl(self, command: str) -> str:
        """A command of the page that needs no shell, in a process that starts faster."""
        program, *arguments = command.split()
        assert program == "streamfl"
        return str(run_streamfl(*arguments, cwd=self.folder, env=self.environment, check=True).stdout)

    def run_until(self, predictions: int) -> str:
        """Run the worker until there are this many predictions, and stop it. Returns its log."""
        log = self.folder / "log"
        with log.open("w") as out, closing(connect(f"sqlite://{self.folder}/north.db")) as bus:
            worker = start_streamfl("run", "client.toml", cwd=self.folder, env=self.environment, stderr=out)
            try:
                deadline = time.monotonic() + 120
                while sum(1 for _ in bus.read("presses.predictions")) < predictions:
                    assert time.monotonic() < deadline, log.read_text()
                    assert worker.poll() is None, log.read_text()
                    time.sleep(0.2)
            finally:
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(60) == 0, log.read_text()
        return log.read_text()


def test_its_laws_pass() -> None:
    """Protects users who copy the example: its models pass the laws, run as its page says."""
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


@pytest.mark.long
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """Protects users who copy the package: its format, models and connector are found, work, and continue
    after a restart."""
    site = Site(tmp_path)
    text = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    first, then = re.findall(r"^((?:    [^\n]*\n)+)", text, re.MULTILINE)
    install, address, topics, *script, run = [line[4:] for line in first.splitlines()]
    assert (install, address, run) == (
        "pip install .",
        "export HALL_NORTH=sqlite://north.db",
        "streamfl run client.toml",
    )
    site.streamfl(topics)
    site.shell("\n".join(script))
    with closing(connect(f"sqlite://{tmp_path}/north.db")) as bus:
        assert b"press=b temp=0 speed=2 force=40.0" in [record.value for record in bus.read("readings")]
        bus.write([Outgoing("readings", b"a", b"no line of it")])
        assert "failed" not in site.run_until(ROWS)
        # Snapshots of models with state were written: the next worker begins with them.
        remembered = [record for record in bus.read("presses.pofmkl-client.state") if record.key is not None]
        assert any(record.key.startswith(b"challenger/\0\1aquick") for record in remembered)
        [letter] = bus.read("presses.dead-letters")
        assert letter.value == b"no line of it"
        bus.write([Outgoing("readings", b"a", b"press=a temp=3 speed=2 force=41")])
        assert "begins anew" not in site.run_until(ROWS + 1)
    said = site.streamfl(then.splitlines()[-1].strip())
    assert re.search(r"\bholt [01]\.\d\d", said), said
    assert re.search(r"\bline [01]\.\d\d", said), said
