"""A system is one folder. The manifests are complete, and imports and names stay within bounds."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grimp
import pytest
from house.sources import parsed
from releases import Federation
from soak.subject import find_soaked, soaked_systems

from streamfl.contract.system import System, installed_systems, load, systems_with
from streamfl.testing.proof import GROUP, installed_proofs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The package of each system of this repository, by name.
PACKAGES = {
    name: place.partition(":")[0] for name, place in PROJECT["entry-points"]["streamfl.systems"].items()
}
OWN = {system.name: system for system in installed_systems() if system.name in PACKAGES}
# Every module and folder of tests/, where the proofs are.
TESTS = {path.stem for path in (ROOT / "tests").iterdir() if path.is_dir() or path.suffix == ".py"}
# Packages that only a system's tools may import. They run roles; a role does not know them.
ABOVE = (
    "streamfl.cli",
    "streamfl.simulation",
    "streamfl.testing",
    "streamfl.runtime",
    "streamfl.reference",
    "streamfl.terminal",
)


@pytest.fixture(name="graph", scope="module")
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        "streamfl", "streamfl_connectors", include_external_packages=True, cache_dir=None
    )


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def imports(graph: grimp.ImportGraph) -> Iterator[tuple[str, str]]:
    for module in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            yield module, imported


def test_every_folder_with_roles_is_a_system_with_a_manifest() -> None:
    """Protects the checks below from missing a system that has no manifest."""
    with_roles = {f"streamfl.{path.parent.name}" for path in (ROOT / "streamfl").glob("*/roles.py")}
    assert with_roles == set(PACKAGES.values())
    assert OWN.keys() == PACKAGES.keys(), "the entry point's name and the manifest's have to be equal"


def test_no_system_imports_another_and_nothing_else_imports_one(graph: grimp.ImportGraph) -> None:
    """Protects the removal of a system and the addition of one: each is a single folder."""
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports(graph)
        for package in PACKAGES.values()
        if within(imported, package) and not within(module, package)
    ]
    assert wrong == []


def test_roles_import_neither_tools_nor_what_runs_them(graph: grimp.ImportGraph) -> None:
    """Protects workers: a role is a state machine without a bus, and production code does not depend on
    simulations."""
    wrong = [
        f"{module} imports {imported}"
        for module, imported in imports(graph)
        for package in PACKAGES.values()
        if within(module, package)
        and not within(module, f"{package}.tools")
        and (within(imported, f"{package}.tools") or any(within(imported, room) for room in ABOVE))
    ]
    assert wrong == []


def code_strings_and_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name and string of a module except its documentation, which may cite an equation's paper."""
    documentation = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
            yield node.lineno, node.value
        elif isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def test_nothing_outside_a_system_names_one() -> None:
    """Protects the general rooms: code that names a system has to be edited for the next system."""
    folders = [ROOT / "streamfl" / package.rpartition(".")[2] for package in PACKAGES.values()]
    found, names = [], [name.replace("-", "_") for name in PACKAGES]
    for path in sorted([*(ROOT / "streamfl").rglob("*.py"), *(ROOT / "connectors").rglob("*.py")]):
        if any(folder in path.parents for folder in folders):
            continue
        for line, text in code_strings_and_names(parsed(path)):
            if any(name in text.lower().replace("-", "_").replace(" ", "_") for name in names):
                found.append(f"{path.relative_to(ROOT)}:{line}: {text}")
    assert found == []


# What every worker loads is loaded once.
LOADED_BY = """
import json, os, sys
import streamfl.cli.run
from streamfl.cli import main
from streamfl.runtime.worker import Worker
for name, file in json.loads(sys.argv[1]).items():
    if not os.fork():
        Worker.run = lambda worker, stop: print(name, *sys.modules)
        sys.argv = ["streamfl", "run", file]
        main()
    os.wait()
"""


@pytest.mark.long
def test_a_worker_loads_its_own_system_and_no_tools(tmp_path: Path) -> None:
    """Protects production from simulation code, and a worker's start from loading systems that it does not
    run, or scikit-learn, which takes as much memory as all the rest. One member is enough: a system's kinds
    of roles are in one module."""
    members = {}
    for name in soaked_systems():
        (tmp_path / name).mkdir()
        with closing(Federation(name, tmp_path / name)) as federation:
            members[name] = str(next(iter(federation.files.values())))
    ended = subprocess.run(
        [sys.executable, "-c", LOADED_BY, json.dumps(members)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    loaded = {name: set(modules) for name, *modules in map(str.split, ended.stdout.splitlines())}
    assert loaded.keys() == members.keys(), ended.stderr
    for name, modules in loaded.items():
        assert f"{PACKAGES[name]}.roles" in modules
        assert {"sklearn", "pandas", "scipy.stats"}.isdisjoint(modules)
        # Manifests are read, but the modules that they name are not loaded.
        others = [package for other, package in PACKAGES.items() if other != name]
        assert not [
            module
            for module in modules
            if {"tools", "proof"} & {*module.split(".")}
            or any(within(module, room) for room in ("streamfl.testing", *others) if module != room)
        ]


@pytest.mark.parametrize("system", OWN.values(), ids=OWN.keys())
def test_what_a_manifest_names_is_there(system: System) -> None:
    """Protects users from parts that only fail when they are used."""
    places = [system.roles, system.simulate, system.demo, system.dashboards]
    named = (system.sources, system.commands, system.exports, system.readers, system.inspect)
    for place in (*places, *(place for group in named for place in group.values())):
        assert place is None or load(place) is not None
    assert load(system.roles).keys() == set(system.kinds)
    assert {*system.sources, *system.inspect} <= set(system.kinds)
    assert set(system.extras) <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("system", OWN.values(), ids=OWN.keys())
def test_systems_have_the_same_furniture(system: System) -> None:
    """Protects a reader who knows one system and opens another: the same files are in the same places."""
    package = PACKAGES[system.name]
    tools = ("commands", "simulate", "demo", "dashboard")
    rooms = [
        f"{package}.{room}" for room in ("config", "messages", "roles", *(f"tools.{room}" for room in tools))
    ]
    rooms += [
        f"{package.rpartition('.')[2]}.proof.{room}" for room in ("scenario", "checks", "faults", "fuzz")
    ]
    assert [room for room in rooms if importlib.util.find_spec(room) is None] == []
    for part in ("simulate", "demo", "dashboards"):
        assert system.name in systems_with(part)


@pytest.mark.parametrize("name", OWN)
def test_every_system_has_a_proof(name: str) -> None:
    """Protects `make simulate` and `make fuzz` from a system that they leave out, and then say that
    everything holds."""
    proof = installed_proofs()[name]
    assert load(proof.faults or "")
    assert load(proof.fuzz or "")


def test_what_is_installed_knows_no_proof(graph: grimp.ImportGraph) -> None:
    """Protects whoever has the wheel alone: what stands in tests/ is not there, and is registered by its own
    pyproject.toml."""
    assert [
        f"{module} imports {imported}"
        for module, imported in imports(graph)
        if imported.partition(".")[0] in TESTS
    ] == []
    registered = tomllib.loads((ROOT / "tests" / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "entry-points"
    ]
    assert registered[GROUP].keys() == OWN.keys()
    assert GROUP not in PROJECT["entry-points"]


@pytest.mark.parametrize("name", OWN)
def test_every_system_can_be_soaked(name: str) -> None:
    """Protects `make soak SYSTEM=name`: only a soak with kills on a real broker shows that a system survives
    them."""
    assert find_soaked(name)[0] == name


def test_no_source_file_is_too_long() -> None:
    """Protects the reader: a very long file is responsible for too much."""
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for folder in ("streamfl", "connectors", "examples")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > 400} == {}
