"""A release as users get it: both packages built as for a release, and the wheel installed by pip without the
repository.

Dependencies are downloaded, so this takes a minute or two and is not part of `make test`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from streamfl import __version__

ROOT = Path(__file__).parents[2]


@dataclass
class Installed:
    """An environment with the wheel, an empty folder to work in, and the built packages."""

    environment: Path
    work: Path
    wheel: Path
    source: Path

    def run(self, command: str, *arguments: str) -> str:
        """The standard output of a command in the environment. It has to succeed."""
        # Without this process's environment, so that the repository is not found.
        clean = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        ran = subprocess.run(
            [str(self.environment / "bin" / command), *arguments],
            cwd=self.work,
            env=clean | {"PATH": f"{self.environment}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout


@pytest.fixture(scope="module", name="installed")
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("release")
    left = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, folder / "copy", ignore=left)
    _run(sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(folder / "copy"))
    [wheel], [source] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    _run(sys.executable, "-m", "venv", str(folder / "environment"))
    _run(str(folder / "environment" / "bin" / "pip"), "install", "-q", f"{wheel}[plots]")
    (folder / "work").mkdir()
    return Installed(folder / "environment", folder / "work", wheel, source)


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_it_says_which_release_it_is(installed: Installed) -> None:
    """Protects bug reports and upgrades: file names, metadata and the command name the same release."""
    assert installed.wheel.name == f"streamfl-{__version__}-py3-none-any.whl"
    assert installed.source.name == f"streamfl-{__version__}.tar.gz"
    assert installed.run("streamfl", "--version") == f"streamfl {__version__}\n"
    assert f"Version: {__version__}\n" in installed.run("pip", "show", "streamfl")
    installed.run("pip", "check")


def test_the_demo_runs(installed: Installed) -> None:
    """Protects the first minute with streamfl: dependencies are complete, and the demo's files are in the
    wheel."""
    assert json.loads(installed.run("streamfl", "demo", "--format", "json"))
    assert list(installed.work.glob("*.png"))


def test_dashboards_and_rules_come_out_of_it(installed: Installed) -> None:
    """Protects deployments from the wheel: the same files as in the repository, with the runbooks that alerts
    name."""
    installed.run("streamfl", "dashboards", "--out", "boards")
    made = {path.name: path.read_text(encoding="utf-8") for path in (installed.work / "boards").iterdir()}
    own = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "dashboards").iterdir()}
    rules = {name for name in own if name.endswith(".yaml")}
    assert {name: made[name] for name in own.keys() - rules} == {
        name: own[name] for name in own.keys() - rules
    }
    for name in rules:
        assert _without_links(made[name]) == _without_links(own[name])
        named = re.findall(r'runbook: "([^"#]+)#', made[name])
        assert named
        assert set(named) <= made.keys()


def _without_links(rules: str) -> list[str]:
    """The lines without comments, and without the runbooks' addresses."""
    return [line for line in rules.splitlines() if "runbook:" not in line and not line.startswith("#")]


def test_the_source_makes_the_same_wheel(installed: Installed, tmp_path: Path) -> None:
    """Protects packagers: the source distribution has everything that is in the wheel."""
    with tarfile.open(installed.source) as archive:
        archive.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path / "dist"), str(folder))
    [again] = (tmp_path / "dist").glob("*.whl")
    contents = []
    for path in (installed.wheel, again):
        with zipfile.ZipFile(path) as archive:
            contents.append(
                {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
            )
    assert contents[0] == contents[1]
