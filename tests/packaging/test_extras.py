"""Extras, as the documents and the messages of errors say that they are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_an_extra_is_added_to_the_streamfl_that_is_installed() -> None:
    """Protects whoever copies `pip install 'streamfl[…]'`: no index has streamfl, and pip needs none where it is installed."""
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--dry-run", "--disable-pip-version-check"]
    done = subprocess.run([*command, "streamfl[avro,librdkafka]"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Would install" not in done.stdout


def test_no_document_installs_streamfl_from_an_index() -> None:
    """Protects the first minute: somebody else's package could have that name one day, and today none has."""
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"pip install (-U |--upgrade )?['\"]?streamfl(?![\w\[-])", text), path
        if re.search(r"^python3 -m venv|^    python3 -m venv", text, re.MULTILINE):
            assert not re.search(r"pip install '?streamfl\[[\w,-]+\]'?\n", text), path
