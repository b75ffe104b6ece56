"""The command ``streamfl``: one module a command, and one place where errors become exit codes
(:mod:`.exit_codes`)."""

from __future__ import annotations

import ast
import functools
import importlib.util
import logging
import sys
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from threadpoolctl import threadpool_limits
from typer.core import TyperGroup

from streamfl import __version__
from streamfl.contract.role import BadRecord, ConfigurationError, DataError, NotYetReadable
from streamfl.contract.system import installed_systems, load, load_parts
from streamfl.runtime.bus import BusUnavailable, Unreadable
from streamfl.runtime.log import write_warnings_as_lines
from streamfl.runtime.pool import WorkEnded
from streamfl.terminal.console import print_text, say
from streamfl.terminal.exit_codes import ExitCode

__all__ = ["app", "command_places", "main"]

log = logging.getLogger(__name__)

COMMANDS = {
    "init": "streamfl.cli.init:init",
    "run": "streamfl.cli.run:run",
    "rekey": "streamfl.cli.rekey:rekey",
    "check": "streamfl.cli.check:check",
    "topics": "streamfl.cli.topics:topics",
    "write": "streamfl.cli.write:write",
    "read": "streamfl.cli.read:read",
    "updates": "streamfl.cli.read:updates",
    "inspect": "streamfl.cli.inspect:inspect",
    "top": "streamfl.cli.top:top",
    "replay": "streamfl.cli.replay:replay",
    "dead-letters": "streamfl.cli.dead_letters:dead_letters",
    "skip": "streamfl.cli.skip:skip",
    "reset": "streamfl.cli.reset:reset",
    "repartition": "streamfl.cli.repartition:repartition",
    "forget": "streamfl.cli.forget:forget",
    "simulate": "streamfl.cli.simulate:simulate",
    "report": "streamfl.cli.report:report",
    "demo": "streamfl.cli.demo:demo",
    "dashboards": "streamfl.cli.dashboards:dashboards",
    "members": "streamfl.cli.members:members",
}

# Characters. Longer sentences about a command are cut in a list of commands.
LONGEST_SENTENCE = 400

# Brackets in a help text are names of sections, not markup.
_STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class _Group(TyperGroup):
    """A command with commands of its own, each listed with the whole first sentence about it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, self.commands[name].get_short_help_str(LONGEST_SENTENCE))
                    for name in self.list_commands(ctx)
                ]
            )


class _Commands(TyperGroup):
    """The commands of streamfl and of every installed system, each imported when it is run: a worker must not
    load all of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(command_places())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = command_places().get(cmd_name)
        if place is None:
            meant = " or ".join(map(repr, get_close_matches(cmd_name, command_places())))
            return ctx.fail(f"No such command {cmd_name!r}. Did you mean {meant}?") if meant else None
        if cmd_name in COMMANDS:
            found = load(place)
        elif (found := load_parts({cmd_name: place}).get(cmd_name)) is None:
            return None
        alone = typer.Typer(**_STYLE)
        if not isinstance(found, typer.Typer):
            alone.command(cmd_name)(found)
            return typer.main.get_command(alone)
        # Beneath another one a group has that one's style.
        alone.add_typer(found, name=cmd_name, cls=_Group)
        return typer.main.get_group(alone).commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        # Set here, because the command's libraries are loaded by now. A worker is one thread: for matrices as
        # small as a kernel's waiting for other threads costs more than they gain.
        ctx.with_resource(threadpool_limits(1))
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, text)
                    for name, place in command_places().items()
                    if (text := _summary(place)) is not None
                ]
            )


def _summary(place: str) -> str | None:
    """The first sentence of the docstring of a command, or of the module of a group of commands; None: it
    cannot be found.

    The module is parsed, not imported, so that listing the commands does not need the libraries of each.
    """
    module, _, name = place.partition(":")
    try:
        found = importlib.util.find_spec(module)
        tree = ast.parse(found.loader.get_source(module))  # type: ignore[union-attr]
    except Exception as error:
        log.warning("%s cannot be found and is left out: %s", place, error)
        return None
    # A command with options from systems wraps a function whose name begins with an underscore.
    own = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in (name, f"_{name}")
    ]
    text = ast.get_docstring((own or [tree])[0]) or ""
    first, stop, _ = " ".join(text.partition("\n\n")[0].split()).rpartition("``: ")[2].partition(". ")
    return f"{first[:1].upper()}{first[1:]}{stop.strip()}"


@functools.cache
def command_places() -> dict[str, str]:
    """The place of each command, by name. A name belongs to streamfl itself, or to the first system that has
    it."""
    places = dict(COMMANDS)
    for system in installed_systems():
        for name, place in system.commands.items():
            if places.setdefault(name, place) != place:
                log.warning("the command %r of %s is left out: another one has this name", name, system.name)
    return places


app = typer.Typer(name="streamfl", cls=_Commands, no_args_is_help=True, **_STYLE | {"add_completion": True})


def _print_version(asked: bool) -> None:
    if asked:
        print_text(f"streamfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Online federated learning as long-running Kafka consumers."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    write_warnings_as_lines()
    try:
        app()
    except (BadRecord, ConfigurationError) as error:
        _fail(ExitCode.CONFIGURATION, error)
    except (BusUnavailable, NotYetReadable) as error:
        _fail(ExitCode.BUS_UNAVAILABLE, error)
    except DataError as error:
        _fail(ExitCode.DATA, error)
    except Unreadable as error:
        _fail(ExitCode.UNREADABLE, error)
    except WorkEnded as error:
        _fail(ExitCode.LACKING_RESOURCES, error)


def _fail(code: int, error: Exception) -> None:
    say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
    sys.exit(code)
