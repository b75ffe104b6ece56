"""The source distribution: everything that is needed to test, read and change streamfl."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from streamfl import __version__

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "connectors", "dashboards", "deploy", "docs", "examples", "streamfl", "tests")
FILES = ("*.md", "LICENSE", "MANIFEST.in", "Makefile", "mkdocs.yml", "pyproject.toml", "setup.py")
LEFT_BEHIND = ("__pycache__", ".egg-info", ".pytest_cache")


def sources() -> set[str]:
    """Every file of the project, by its path, found without git, because an unpacked archive has none."""
    found = [path for pattern in FILES for path in ROOT.glob(pattern)]
    found += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    names = {path.relative_to(ROOT).as_posix() for path in found}
    return {name for name in names if not any(mark in name for mark in LEFT_BEHIND)}


@pytest.fixture(scope="module", name="archive")
def _archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because a build writes into its source folder."""
    folder = tmp_path_factory.mktemp("source")
    for name in sources():
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "copy" / name).write_bytes((ROOT / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "build",
        "--sdist",
        "--no-isolation",
        "--outdir",
        str(folder),
        str(folder / "copy"),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [archive] = folder.glob("*.tar.gz")
    return archive


@pytest.mark.long
def test_it_has_every_file_of_the_repository(archive: Path) -> None:
    """Protects packagers: tests, pages, dashboards and examples are included, and no leftovers of a build or
    a run."""
    expected = sources()
    with tarfile.open(archive) as found:
        names = {member.name.partition("/")[2] for member in found.getmembers() if member.isfile()}
    assert expected - names == set()
    made = {"PKG-INFO", "setup.cfg"}
    assert {name for name in names - expected - made if ".egg-info/" not in name} == set()


def test_it_says_what_it_is(archive: Path) -> None:
    """Protects the page of a package index: name, author, licence and README are there, and no invalid
    address."""
    with tarfile.open(archive) as found:
        [name] = [name for name in found.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO")]
        file = found.extractfile(name)
        assert file is not None
        told = email.message_from_bytes(file.read())
    assert (told["Name"], told["Version"], told["Author"]) == ("streamfl", __version__, "streamfl")
    heading = "Unreleased" if ".dev" in __version__ else f"{__version__} ("
    assert f"\n## {heading}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), (
        "the changelog lacks this release"
    )
    assert told["License-Expression"] == "Apache-2.0"
    assert told.get_all("Project-URL") is None
    assert str(told.get_payload()).startswith("# streamfl")
