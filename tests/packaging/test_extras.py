"""Extras: the installation commands in the documents and in error messages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_extra_is_added_to_the_streamfl_that_is_installed() -> None:
    """Protects users who copy `pip install 'streamfl[…]'`: no index has streamfl, and pip needs none once it
    is installed."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--dry-run",
        "--disable-pip-version-check",
    ]
    done = subprocess.run([*command, "streamfl[avro,librdkafka]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def test_no_document_installs_streamfl_from_an_index() -> None:
    """Protects the first minute: no index has this package today, and another package could take the name."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-U |--upgrade )?['\"]?streamfl(?![\w\[-])", text), path
        if re.search(r"^python3 -m venv|^    python3 -m venv", text, re.MULTILINE):
            assert not re.search(r"pip install '?streamfl\[[\w,-]+\]'?\n", text), path
