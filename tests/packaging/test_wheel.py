"""The wheel: the files that it carries besides the code."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
READ = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "streamfl", "connectors", "dashboards")


def test_it_carries_the_dashboards(tmp_path: Path) -> None:
    """Protects `streamfl dashboards` with only the wheel: Grafana's builders are missing there, so the files are needed."""
    for name in READ:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "made"), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    [wheel] = (tmp_path / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        found = {name: archive.read(name) for name in archive.namelist() if name.startswith("streamfl/dashboards/")}
    assert found == {f"streamfl/dashboards/{path.name}": path.read_bytes() for path in (ROOT / "dashboards").glob("*.json")}
