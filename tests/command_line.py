"""The command ``streamfl`` in the test's own process. To start a process takes longer than most commands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamfl.cli import main
from streamfl.cli.topics import topics

# Arguments after ``streamfl``. Gives exit code, stdout and stderr.
Command = Callable[..., tuple[int, str, str]]


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


def make_topics(config: Path, partitions: int | None = None, kind: str | None = None) -> None:
    """Make the topics of a settings file's role, the user's own included. kind: another role than the
    file's."""
    with pytest.MonkeyPatch.context() as patch:
        if kind is not None:
            patch.setenv("STREAMFL_ROLE__KIND", kind)
        topics(config, create_inputs=True, partitions=partitions)
