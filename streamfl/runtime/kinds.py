"""Find a role by the name in ``[role] kind``: every package ``streamfl.<system>`` with a module ``roles`` offers its own."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from typing import Any

import streamfl
from streamfl.role import ConfigurationError
from streamfl.role_kind import RoleKind

__all__ = ["find_kind", "known_kinds"]


def known_kinds() -> dict[str, RoleKind[Any]]:
    """Every role kind that is installed, by name."""
    kinds: dict[str, RoleKind[Any]] = {}
    for system in pkgutil.iter_modules(streamfl.__path__, "streamfl."):
        # Looked up as a file: importing every system only to see whether it has roles would load the command line too.
        if system.ispkg and _has_roles(system.name):
            kinds.update(importlib.import_module(f"{system.name}.roles").ROLES)
    return kinds


def find_kind(name: str) -> RoleKind[Any]:
    """The role kind of this name; ConfigurationError names those that exist."""
    kinds = known_kinds()
    if name not in kinds:
        raise ConfigurationError(f"role.kind = {name!r}: there is no such role; known are {', '.join(sorted(kinds))}")
    return kinds[name]


def _has_roles(package: str) -> bool:
    specification = importlib.util.find_spec(package)
    locations = specification.submodule_search_locations if specification else None
    return any(module.name == "roles" for module in pkgutil.iter_modules(locations)) if locations else False
