"""The documents: their statements about keys, reasons and files agree with the code."""

from __future__ import annotations

import importlib
import operator
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

from streamfl.cli import app, command_places
from streamfl.contract.measurement import declared
from streamfl.contract.system import installed_systems, load
from streamfl.pofmkl.config import PofmklSettings
from streamfl.rekeying.assembly import AssemblyMetrics
from streamfl.rekeying.role import RekeyingMetrics
from streamfl.runtime.metrics import EVERY_WORKER
from streamfl.terminal.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/*.md")])


def test_exit_codes_are_documented() -> None:
    """Protects supervisors: restart rules are written from the document."""
    text = (ROOT / "docs" / "dead-letters.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {0, *ExitCode}


def commands_in(text: str) -> set[tuple[str, ...]]:
    """The words of every streamfl command in a text, in a block or within a sentence, without shell syntax.

    In a block a command may span several lines, and may follow a variable, another program or a pipe.
    """
    text = re.sub(r" *\\\n\s*", " ", text)
    shown = re.findall(r"`streamfl ([a-z][^`\n]*)", text)
    for line in re.findall(r"^(?:    |\t)\s*([^#\n][^\n]*)", text, re.MULTILINE):
        shown += re.findall(
            r"(?<![\w/.\[\]'\"-])streamfl ([a-z](?:(?!\bstreamfl [a-z])[^\n])*)", line.partition("  #")[0]
        )
    words = set()
    for line in shown:
        command = re.split(r"  +#| [<>|&]|; |\$\(|\)", line)[0]
        words.add(
            tuple(shlex.split(command, comments=True) if command.count("'") % 2 == 0 else command.split())
        )
    return words


def shown_commands() -> set[tuple[str, ...]]:
    """The commands of every document."""
    return {words for path in DOCUMENTS for words in commands_in(path.read_text(encoding="utf-8"))}


def test_commands_in_the_documents_exist() -> None:
    """Protects users who copy a command: its name and its options exist."""
    shown = shown_commands()
    assert len(shown) > 100
    assert {words[0] for words in shown} <= command_places().keys()
    group: Any = typer.main.get_command(app)
    context: Any = typer.Context(group)
    # Building a command takes longer than searching.
    commands = {name: group.get_command(context, name) for name in {words[0] for words in shown}}
    for words in shown:
        command, words = commands[words[0]], words[1:]
        while (
            hasattr(command, "get_command")
            and words
            and (inner := command.get_command(context, words[0])) is not None
        ):
            command, words = inner, words[1:]
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        # Options in brackets are optional.
        asked = {word.strip("[].,").partition("=")[0] for word in words if word.lstrip("[").startswith("--")}
        assert asked <= known | {"--help"}, f"{command.name}: {asked - known}"


def test_targets_of_make_in_the_documents_exist() -> None:
    """Protects users who copy a make command and its variables."""
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", rules, re.MULTILINE))
    variables = set(re.findall(r"\$\(([A-Z]+)\)", rules))
    shown = [
        found
        for path in DOCUMENTS
        for found in re.findall(
            r"(?:^    |`)make((?: [A-Za-z][\w=-]*)+)", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    assert len(shown) > 20
    for words in map(str.split, shown):
        assert words[0] in targets, words
        assert {word.partition("=")[0] for word in words[1:] if "=" in word} <= variables, words


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    """Protects the reader from dead links: linked files exist, and so do the headings within them."""
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name).resolve() if name else path
        assert linked.exists(), target
        if linked.suffix != ".md":
            continue
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, target


def test_tests_that_documents_name_exist() -> None:
    """Protects readers who look for the proof of a claim: its test must not have been renamed or dropped.

    A system's own test is written with its folder, `system/test_of_it`. It may only be missing together with
    the folder."""
    tests = ROOT / "tests"
    own = {system.name for system in installed_systems()}
    defined: dict[str, set[str]] = {}
    for path in [*tests.rglob("test_*.py"), *(ROOT / "streamfl" / "testing").rglob("*.py")]:
        folder = path.relative_to(tests).parts[0] if path.is_relative_to(tests) else ""
        for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text())):
            defined.setdefault(name, set()).add(folder if folder in own else "")
    named = {
        place for path in DOCUMENTS for place in re.findall(r"`(?:(\w+)/)?(test_\w+)`", path.read_text())
    }
    assert len(named) > 20
    gone = {(folder, name) for folder, name in named if folder and not (tests / folder).exists()}
    assert not {name for _, name in gone} & defined.keys()
    assert not {(folder, name) for folder, name in named - gone if folder not in defined.get(name, ())}


def test_metrics_that_documents_name_exist() -> None:
    """Protects who asks Prometheus for a metric as a page says it: of a name that no worker exports it tells
    nothing, which looks as if nothing had happened. CHANGELOG also names what is gone."""
    groups = [*EVERY_WORKER, RekeyingMetrics, AssemblyMetrics]
    for system in installed_systems():
        groups += [group for kind in load(system.roles).values() for group in kind.metrics]
    exported = {str(metric) for metric in declared(*groups)}
    named = {
        (path.name, name)
        for path in DOCUMENTS
        if path.name != "CHANGELOG.md"
        for name in re.findall(r"`(streamfl_[a-z_]+[a-z])\b", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 100
    assert not {(path, name) for path, name in named if name not in exported | {"streamfl_connectors"}}


def test_configurations_in_the_readme_are_valid() -> None:
    """Protects the first try: settings copied from the README have to load, and client and server have to
    agree."""
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    settings = [PofmklSettings(**tomllib.loads(block)) for block in blocks]
    assert sorted(item.role.kind for item in settings) == ["pofmkl-client", "pofmkl-server"]
    assert settings[0].federation == settings[1].federation
    assert settings[0].learning == settings[1].learning
    assert settings[0].kernels == settings[1].kernels


def test_who_learns_what_is_told_of_every_system() -> None:
    """Protects people who decide whether to take part: the one table has each system, and each line says who
    learns what."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^## In one table\n\n(.*?)\n\n", text, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    told = {re.sub(r"[^a-z]", "", re.sub(r"\(.*\)", "", cell).lower()) for cell, *_ in rows}
    places = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
        "streamfl.systems"
    ]
    assert {name.replace("-", "") for name in places} <= told
    for row in rows:
        assert len(row) == 4, row
        assert row[1], row
        assert row[2], row


def test_nobody_is_told_to_fetch_streamfl_from_pypi() -> None:
    """Protects readers of pages and notebooks: the name is free on PyPI, so whoever takes it would get their
    own package installed. An extra adds to the streamfl that is there."""
    for page in [*DOCUMENTS, *(ROOT / "examples").glob("*/*.ipynb")]:
        assert not re.search(r"pip install '?streamfl\b(?!\[)", page.read_text(encoding="utf-8")), page


def test_what_plug_ins_are_told_to_use_is_there() -> None:
    """Protects authors of plug-ins: each class, Protocol or exception named on their pages exists under that
    name."""
    text = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    places = set(re.findall(r"`(streamfl(?:\.[a-z_]+)*)\.([A-Z]\w+)", text))
    places |= {
        (module, name)
        for names, module in re.findall(r"^\| ((?:`\w+`,? ?)+) \| `(streamfl[.\w]+)` \|", text, re.MULTILINE)
        for name in re.findall(r"\w+", names)
    }
    assert len(places) > 15
    for module, name in places:
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"


def test_the_new_names_on_the_page_of_upgrades_are_there() -> None:
    """Protects authors of plug-ins from before: each name that a table gives in the place of an old one can
    be imported."""
    text = (ROOT / "docs" / "upgrades.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## If you have a system.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
    checked = 0
    for now in re.findall(r"^\| .* \| (.*) \|$", section, re.MULTILINE):
        place = ""
        # After a semicolon a cell names attributes of objects.
        for name in re.findall(r"`([A-Za-z_.]+)(?:\(.*?\))?`", now.partition(";")[0]):
            place = name if name.startswith("streamfl.") else place
            if place:
                assert is_there(place if name == place else f"{place}.{name}"), now
                checked += 1
    assert checked > 60


def test_the_places_of_equations_are_there() -> None:
    """Protects who looks for a paper's equation: the table leads to a module, and to a function in it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [section] = re.findall(r"^## Where the equations are.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
    places = re.findall(r"`([a-z_]+(?:/[a-z_]+)+)`(?: \(((?:`[\w.]+`(?:, )?)+)\))?", section)
    assert len(places) > 25
    for path, names in places:
        module = importlib.import_module(f"streamfl.{path.replace('/', '.')}")
        for name in re.findall(r"[\w.]+", names):
            assert operator.attrgetter(name)(module), f"{path}: {name}"


def is_there(place: str) -> bool:
    """Whether a module, or something in one, has this dotted name."""
    try:
        importlib.import_module(place)
    except ModuleNotFoundError:
        module, _, name = place.rpartition(".")
        return hasattr(importlib.import_module(module), name)
    return True
