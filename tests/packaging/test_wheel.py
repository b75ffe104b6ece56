"""The wheel: the files that it carries besides the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
READ = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "streamfl",
    "connectors",
    "dashboards",
)


@pytest.fixture(scope="module", name="contents")
def _contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The wheel's files, by name."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in READ:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, folder / name)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(folder / "made"),
        str(folder),
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = (folder / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_it_carries_the_dashboards(contents: dict[str, bytes]) -> None:
    """Protects `streamfl dashboards` with only the wheel: Grafana's builders are missing there, so the files
    are needed."""
    found = {name: content for name, content in contents.items() if name.startswith("streamfl/dashboards/")}
    assert found == {
        f"streamfl/dashboards/{path.name}": path.read_bytes() for path in (ROOT / "dashboards").glob("*.json")
    }


def test_it_carries_no_proof(contents: dict[str, bytes]) -> None:
    """Protects a worker's image from what only proves the systems: a tenth of what was installed, recorded
    messages most of it."""
    folders = {name.partition("/")[0] for name in contents if ".dist-info/" not in name}
    assert folders == {"streamfl", "streamfl_connectors"}
    assert [name for name in contents if name.endswith(".jsonl") or "/proof/" in name] == []
    [registered] = [content for name, content in contents.items() if name.endswith("/entry_points.txt")]
    assert b"streamfl.systems" in registered
    assert b"streamfl.proofs" not in registered
