"""What ``--help`` says of every command: every word of it, brackets included."""

from __future__ import annotations

import inspect
import re

import pytest
import typer
from command_line import run_command

from streamfl.cli import app

COMMANDS = {info.callback.__name__.replace("_", "-"): info.callback for info in app.registered_commands if info.callback}


def words(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_loses_no_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """Protects the reader of --help: '[labels]' is the name of a section, and markup would swallow it."""
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, _ = run_command(monkeypatch, capsys, command, "--help")
    assert code == 0
    callback = COMMANDS[command]
    assert words(inspect.getdoc(callback) or "") in words(shown)
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        for found in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(found, typer.models.ParameterInfo) and found.help:
                assert words(found.help) in words(shown), parameter.name


def test_there_are_brackets_to_lose() -> None:
    """Protects the test above from testing nothing."""
    source = "".join(inspect.getsource(callback) for callback in COMMANDS.values())
    assert re.search(r"help=\"[^\"]*\[labels\]", source)
