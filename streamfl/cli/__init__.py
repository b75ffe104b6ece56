"""The command ``streamfl``: one module a command, and one place where errors become exit codes.

0 ok; 2 the configuration or the command line is wrong; 3 the bus is unavailable; 4 a check failed; 5 the data cannot be used;
6 what lies in a topic cannot be read; 70 the worker did not go round for ``bus.stall_timeout_seconds`` and ended itself; 71, from
:mod:`streamfl.entry`, the machine gives too little.
"""

from __future__ import annotations

import sys

import typer
from threadpoolctl import threadpool_limits

from streamfl.cli import check, compare, dead_letters, demo, features, forget, members, replay, run, simulate, skip, topics
from streamfl.cli.output import BUS_UNAVAILABLE, CONFIGURATION, DATA, UNREADABLE, say
from streamfl.role import ConfigurationError
from streamfl.runtime.bus import BusUnavailable, Unreadable
from streamfl.samples import DataError

__all__ = ["app", "main"]

app = typer.Typer(
    name="streamfl",
    help="Online federated learning as long-running Kafka consumers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Brackets in a help text are names of sections, not markup.
    rich_markup_mode=None,
)
for _command in (
    run.run,
    check.check,
    topics.topics,
    replay.replay,
    dead_letters.dead_letters,
    skip.skip,
    forget.forget,
    features.features,
    simulate.simulate,
    compare.compare,
    demo.demo,
):
    app.command()(_command)
app.add_typer(members.members)


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


def _fail(code: int, error: Exception) -> None:
    say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
    sys.exit(code)
