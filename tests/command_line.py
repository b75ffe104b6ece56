"""The command ``streamfl`` in the test's own process."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from streamfl.cli import main


def run_command(
    monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str], *arguments: object
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``streamfl`` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["streamfl", *map(str, arguments)])
    capture.readouterr()
    code: Any = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code or 0
    return int(code), *capture.readouterr()
