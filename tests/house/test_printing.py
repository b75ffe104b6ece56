"""Only ``streamfl.terminal.console`` may print. It makes text printable, because texts from topics reach
terminals."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from house.sources import parsed

ROOT = Path(__file__).parents[2]
# Modules that write to a terminal themselves: the start before anything is loaded, the log, a progress bar,
# and the console.
OWN = {
    Path("streamfl") / name
    for name in ("entry.py", "runtime/log.py", "terminal/progress.py", "terminal/console.py")
}
WRITERS = {"print", "input"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
ECHOES = {
    "echo",
    "secho",
    "echo_via_pager",
    "prompt",
    "confirm",
    "print_exc",
    "print_exception",
    "print_stack",
    "pprint",
}
# A file without any of these words prints nothing, and need not be parsed.
WORDS = re.compile(rf"\b(?:{'|'.join(sorted(WRITERS | STREAMS | ECHOES | {'rich'}))}|os\.write)\b")


def prints(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Lines that print, and the function that prints."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in WRITERS | ECHOES:
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="sys"), attr=name) if name in STREAMS:
                yield node.lineno, f"sys.{name}"
            case ast.Attribute(value=ast.Name(id="typer" | "click" | "traceback" | "pprint"), attr=name) if (
                name in ECHOES
            ):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="os"), attr="write"):
                yield node.lineno, "os.write"
            case ast.ImportFrom(module=str(module), names=names):
                found = {name.name for name in names}
                if module.partition(".")[0] == "rich" or (module == "sys" and found & STREAMS):
                    yield node.lineno, f"from {module}"
            case ast.Import(names=names) if any(name.name.partition(".")[0] == "rich" for name in names):
                yield node.lineno, "rich"


@pytest.mark.long
def test_nothing_prints_around_the_console() -> None:
    """Protects operators' terminals from new commands: no print may write a client's name with escape
    sequences in it."""
    files = [*(ROOT / "streamfl").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]
    assert len(files) > 300
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what}: use streamfl.terminal.console"
        for path in files
        if path.relative_to(ROOT) not in OWN
        if WORDS.search(path.read_text(encoding="utf-8"))
        for line, what in prints(parsed(path))
    ]
    assert wrong == []


def test_every_way_of_printing_is_found() -> None:
    """Protects the check above from finding nothing."""
    ways = (
        "print('a')", "sys.stdout.write('a')", "from sys import stderr", "typer.echo('a')",
        "from rich.console import Console",
        "import rich.table", "os.write(1, b'a')", "traceback.print_exc()", "echo('a')",
    )  # fmt: skip
    assert [way for way in ways if not (WORDS.search(way) and list(prints(ast.parse(way))))] == []
