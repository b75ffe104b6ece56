"""What ``streamfl init`` takes from another member's file, so that members agree."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamfl.cli.config_draft import ConfigDraft
from streamfl.configuration.shared import shared_keys
from streamfl.contract.role import ConfigurationError
from streamfl.contract.system import find_system
from streamfl.roles.role_kind import RoleKind

__all__ = ["other_member", "put_like"]


def other_member(
    path: Path | None, given: Mapping[str, object], kind: RoleKind[Any]
) -> dict[str, dict[str, Any]]:
    """What all members share of another member's file, by section; nothing without a file.

    given: keys of ``[federation]`` that the user says by options. ConfigurationError if the file has others,
    or cannot be read.
    """
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--like {path}: cannot be read: {error}") from None
    found = {name: one for name in ("federation", "bus") if isinstance(one := content.get(name), dict)}
    if "federation" not in found:
        raise ConfigurationError(f"--like {path}: another member's settings are expected, with [federation]")
    for key, value in given.items():
        if value is not None and value != (there := found["federation"].get(key)):
            raise ConfigurationError(
                f"--like {path}: federation.{key} is {there!r} there, and you say {value!r}: leave one out"
            )
    role = content.get("role")
    if isinstance(role, dict) and role.get("kind") in find_system(kind.name).kinds:
        for section, key in sorted(shared_keys(kind.settings)):
            there = content.get(section)
            if isinstance(there, dict) and key in there:
                found.setdefault(section, {})[key] = there[key]
    return found


def put_like(draft: ConfigDraft, path: Path | None, other: Mapping[str, Mapping[str, Any]]) -> None:
    """Write what members share as it is in the other member's file, in place of what records let guess."""
    for number, (key, value) in enumerate(other.get("federation", {}).items()):
        draft.put("federation", key, value, "" if number else f"this section is that of {path}")
    for section in [one for one in other if one not in ("federation", "bus")]:
        for key, value in other[section].items():
            draft.put(section, key, value, f"as in {path}: all members need the same")
