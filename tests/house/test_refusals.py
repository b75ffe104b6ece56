"""Reasons of refusals. Each reason is declared, because a counter that appears late has no growth at its first value."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import TypeGuard

import streamfl
from streamfl.contract.refusals import REASONS
from streamfl.contract.system import installed_systems

ROOT = Path(__file__).parents[2]
OWN = {Path(*system.roles.split(".")[:-1]): system for system in installed_systems() if system.roles.startswith("streamfl.")}
DOCUMENTED = re.compile(r"^\| `([a-z_]+)` \|", re.MULTILINE)


def told(path: Path) -> set[str]:
    """The reasons that a module gives to a PeerError: in the call, or in a variable of the same function."""
    found: set[str] = set()
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        given = [call.args[0] for call in ast.walk(function) if is_refusal(call)]
        names = {one.id for one in given if isinstance(one, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and {ast.unparse(target) for target in node.targets} & names:
                given += [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
        found |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def is_refusal(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "PeerError" and bool(node.args)


def by_room() -> dict[Path | None, set[str]]:
    """The reasons used in each system's folder, and under None those used elsewhere."""
    found: dict[Path | None, set[str]] = defaultdict(set)
    for folder in (Path(streamfl.__file__).parent, ROOT / "connectors"):
        for path in folder.rglob("*.py"):
            place = path.relative_to(ROOT)
            room = next((own for own in OWN if own in place.parents), None)
            if "tools" not in place.parts and "testing" not in place.parts:
                found[room] |= told(path)
    return found


def test_every_reason_is_declared_where_it_is_told() -> None:
    """Protects the first refusal from being invisible: Prometheus sees no growth in a counter whose first value is 22."""
    rooms = by_room()
    assert rooms[None] - set(REASONS) - {"unreadable", "skipped"} == set()
    for folder, system in OWN.items():
        assert rooms[folder] - set(REASONS) - set(system.refusals) == set(), folder
        assert set(system.refusals) & set(REASONS) == set(), folder
        assert set(system.refusals) <= rooms[folder], folder


def test_every_reason_is_documented() -> None:
    """Protects the reader of a dead letter: the table lists the reason in its header, and only reasons that are used."""
    declared = set(REASONS).union(*(system.refusals for system in OWN.values()))
    page = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    table = page.partition("\n| reason | meaning |\n")[2].partition("\n## ")[0]
    assert set(DOCUMENTED.findall(table)) == declared
