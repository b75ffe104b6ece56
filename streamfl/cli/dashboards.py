"""``streamfl dashboards``: dashboards for Grafana, and alert rules for Prometheus with the pages that say
what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import installed_systems
from streamfl.monitoring.files import alert_files, dashboard_text, dashboards_of
from streamfl.terminal.console import print_text, say

__all__ = ["dashboards"]

NOTE = "Written by `streamfl dashboards`."


def dashboards(
    name: Annotated[
        str | None, typer.Argument(help="The dashboard to print, or to write alone; left out: all.")
    ] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="FOLDER", help="The folder to write to; left out: print.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also overwrite files that differ.")] = False,
    runbooks: Annotated[
        str | None,
        typer.Option(
            "--runbooks",
            help="The URL where you publish the runbook pages, so that alerts link to them: of their folder, "
            "or with {page} for a page's name.",
        ),
    ] = None,
) -> None:
    """Write Grafana's dashboards and Prometheus' alert rules of every installed system, or print one
    dashboard as JSON.

    If a file exists with other content, nothing is written, because it may have been edited. --force
    overwrites it.
    """
    boards = {board.name: board for board in dashboards_of(installed_systems())}
    if name is not None and name not in boards:
        raise ConfigurationError(f"{name}: there is no such dashboard; there are {', '.join(boards)}")
    if runbooks is not None and "://" not in runbooks:
        raise ConfigurationError(
            f"--runbooks {runbooks}: a URL is needed, such as https://wiki.example/streamfl"
        )
    if out is None:
        if name is None:
            for board in boards.values():
                print_text(f"{board.name:20} {board.title}")
            say("--out FOLDER writes them, with alert rules; a name prints one")
        else:
            print_text(dashboard_text(boards[name]).rstrip("\n"))
        return
    chosen = [boards[name]] if name else [*boards.values()]
    files = {board.filename: dashboard_text(board) for board in chosen}
    if name is None:
        files |= alert_files(installed_systems(), NOTE, _folder(runbooks or ""))
    if not out:
        raise ConfigurationError("--out: the folder has no name; . is the working directory")
    _write(out, files, force)
    for file in files:
        say(f"wrote {Path(out) / file}")


def _write(out: str, files: Mapping[str, str], force: bool) -> None:
    """Write the files. ConfigurationError if one exists with other content, without ``force``."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {file: (folder / file).read_bytes() for file in files if (folder / file).exists()}
        changed = [file for file, content in there.items() if content != files[file].encode()]
        if changed and not force:
            raise ConfigurationError(
                f"--out {out}: {', '.join(changed)} {'says' if len(changed) == 1 else 'say'} something else "
                "(another release, or edited), and nothing was written: write to another folder and compare, "
                "or overwrite with --force"
            )
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--out {out}: cannot be written: {error.strerror or error}") from None


def _folder(url: str) -> str:
    """The URL with a slash at the end, unless it has ``{page}`` where a page's name belongs."""
    return url if not url or "{page}" in url or url.endswith("/") else f"{url}/"
