"""The command ``streamfl``: one module a command, and one place where errors become exit codes.

0 ok; 2 the configuration or the command line is wrong; 3 the bus is unavailable; 4 a check failed; 5 the data cannot be used;
6 what lies in a topic cannot be read; 70 the worker did not go round for ``bus.stall_timeout_seconds`` and ended itself; 71, from
:mod:`streamfl.entry`, the machine gives too little.
"""

from __future__ import annotations

import functools
import logging
import sys
from typing import Annotated, Any

import typer
from threadpoolctl import threadpool_limits
from typer.core import TyperGroup

from streamfl import __version__
from streamfl.console import BUS_UNAVAILABLE, CONFIGURATION, DATA, UNREADABLE, say
from streamfl.entry import SYSTEM
from streamfl.records.samples import DataError
from streamfl.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Unreadable
from streamfl.runtime.pool import WorkEnded
from streamfl.system import installed_systems, load, load_parts

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
    "forget": "streamfl.cli.forget:forget",
    "simulate": "streamfl.cli.simulate:simulate",
    "report": "streamfl.cli.report:report",
    "demo": "streamfl.cli.demo:demo",
    "dashboards": "streamfl.cli.dashboards:dashboards",
    "members": "streamfl.cli.members:members",
}

# Brackets in a help text are names of sections, not markup.
_STYLE: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}


class _Commands(TyperGroup):
    """The commands of streamfl and of every installed system, each imported when it is asked for: a worker needs no laboratory."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(command_places())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        place = command_places().get(cmd_name)
        if place is None:
            return None
        if cmd_name in COMMANDS:
            found = load(place)
        elif (found := load_parts({cmd_name: place}).get(cmd_name)) is None:
            return None
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(**_STYLE)
            alone.command(cmd_name)(found)
            found = alone
        return typer.main.get_command(found)


@functools.cache
def command_places() -> dict[str, str]:
    """By name, where each command stands; a name belongs to streamfl itself, or to the first system that has it."""
    places = dict(COMMANDS)
    for system in installed_systems():
        for name, place in system.commands.items():
            if places.setdefault(name, place) != place:
                log.warning("the command %r of %s is left out: another has the name", name, system.name)
    return places


app = typer.Typer(name="streamfl", cls=_Commands, no_args_is_help=True, **_STYLE | {"add_completion": True})


def _print_version(asked: bool) -> None:
    if asked:
        print(f"streamfl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Online federated learning as long-running Kafka consumers."""


def main() -> None:
    """Run the command line of this process and exit with its code."""
    try:
        # A worker is one thread: products as small as a kernel's lose more by waiting for others than they gain.
        with threadpool_limits(1):
            app()
    except ConfigurationError as error:
        _fail(CONFIGURATION, error)
    except BusUnavailable as error:
        _fail(BUS_UNAVAILABLE, error)
    except DataError as error:
        _fail(DATA, error)
    except Unreadable as error:
        _fail(UNREADABLE, error)
    except WorkEnded as error:
        _fail(SYSTEM, error)


def _fail(code: int, error: Exception) -> None:
    say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
    sys.exit(code)
