"""The text of ``--help`` of every command: every word is printed, brackets included."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys

import pytest
import typer
from command_line import Command

from streamfl import __version__
from streamfl.cli import COMMANDS as OWN
from streamfl.cli import command_places
from streamfl.contract.system import load

PLACES = {name: load(place) for name, place in command_places().items()}
COMMANDS = {name: found for name, found in PLACES.items() if not isinstance(found, typer.Typer)}


def words(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_loses_no_word(monkeypatch: pytest.MonkeyPatch, command: Command, name: str) -> None:
    """Protects the reader of --help: '[labels]' is the name of a section, and markup would swallow it."""
    monkeypatch.setenv("COLUMNS", "200")
    code, shown, _ = command(name, "--help")
    assert code == 0
    assert words(inspect.getdoc(COMMANDS[name]) or "") in words(shown)
    for text in helps(name):
        assert words(text) in words(shown)


def helps(command: str) -> list[str]:
    """The help texts of a command's parameters."""
    parameters = inspect.signature(COMMANDS[command], eval_str=True).parameters.values()
    notes = [note for parameter in parameters for note in getattr(parameter.annotation, "__metadata__", ())]
    return [note.help for note in notes if isinstance(note, typer.models.ParameterInfo) and note.help]


@pytest.mark.parametrize("group", sorted(PLACES.keys() - COMMANDS.keys()))
def test_help_of_a_group_has_the_style_of_all_help(
    monkeypatch: pytest.MonkeyPatch, command: Command, group: str
) -> None:
    """Protects the reader of `streamfl members --help`: it has no boxes, which a screen reader spells out, no
    options that only the program itself has, and sentences that are whole."""
    monkeypatch.setenv("COLUMNS", "100")
    code, shown, _ = command(group, "--help")
    assert code == 0
    assert "Commands:" in shown
    assert not {"╭", "--show-completion", "..."} & set(shown.split())
    for command in PLACES[group].registered_commands:
        first = (inspect.getdoc(command.callback) or "").partition(". ")[0].partition("\n\n")[0]
        assert words(first) in words(shown)


def test_the_version_is_that_of_the_package(command: Command) -> None:
    """Protects bug reports: one command prints the release, without any configuration."""
    assert command("--version")[:2] == (0, f"streamfl {__version__}\n")


def test_the_list_of_commands_says_what_each_does(monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """Protects the list of commands: it is read from the sources, and a command without a help line would be
    a bare name."""
    monkeypatch.setenv("COLUMNS", "200")
    _, shown, _ = command("--help")
    lines = re.split(r"\n  (?=\S)", shown.partition("Commands:")[2])[1:]
    listed = {name: text for name, *text in map(str.split, lines)}
    assert listed.keys() == PLACES.keys()
    for name, found in COMMANDS.items():
        assert words(" ".join(listed[name])) in words(inspect.getdoc(found) or ""), name
    assert all(len(text) > 3 for text in listed.values())


def test_a_mistyped_command_is_answered_with_the_one_meant(command: Command) -> None:
    """Protects against typing errors: the message suggests the closest name."""
    code, _, told = command("inti")
    assert code == 2
    assert "No such command 'inti'. Did you mean 'init'?" in told
    assert "Did you mean" not in command("zzz")[2]


def test_help_waits_for_no_tools() -> None:
    """Protects the first second: help loads no learner's libraries and no system's tools.

    The four commands that people type first do not even load the settings reader.
    """
    first = [["--version"], ["--help"], ["simulate", "--help"], ["compare", "--help"]]
    every = [*first, *([name, "--help"] for name in OWN if [name, "--help"] not in first)]
    program = f"""
import contextlib, io, json, sys
from streamfl.cli import main
for arguments in {every}:
    sys.argv = ["streamfl", *arguments]
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    print(json.dumps([arguments, sorted(sys.modules)]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [arguments for arguments, _ in said] == every
    for arguments, loaded in said:
        libraries = {"scipy", "river", "pandas", "matplotlib", "rich.progress"}
        libraries.update(["pydantic_settings"] if arguments in first else [])
        assert libraries.intersection(loaded) == set(), arguments
        # Modules behind .tools belong to the system; commands and sources define the options.
        parts = {name.partition(".tools.")[2] for name in loaded if name.startswith("streamfl.")}
        assert parts <= {"", "commands", "replay"}, arguments
