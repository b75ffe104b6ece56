"""What ``streamfl init`` takes from another member's file, so that members agree."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from streamfl.cli.config_draft import ConfigDraft
from streamfl.contract.role import ConfigurationError

__all__ = ["other_member", "put_like"]


def other_member(path: Path | None, given: Mapping[str, object]) -> dict[str, dict[str, Any]]:
    """The sections of another member's file that all members share; none without a file.

    given: keys of ``[federation]`` that the user says by options. ConfigurationError if the file has others,
    or cannot be read.
    """
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"--like {path}: cannot be read: {error}") from None
    shared = {name: content.get(name) for name in ("federation", "bus")}
    if not isinstance(shared["federation"], dict):
        raise ConfigurationError(f"--like {path}: another member's settings are expected, with [federation]")
    for key, value in given.items():
        if value is not None and value != (there := shared["federation"].get(key)):
            raise ConfigurationError(
                f"--like {path}: federation.{key} is {there!r} there, and you say {value!r}: leave one out"
            )
    return {name: section for name, section in shared.items() if isinstance(section, dict)}


def put_like(draft: ConfigDraft, path: Path | None, other: Mapping[str, Mapping[str, Any]]) -> None:
    """Write ``[federation]`` as it is in the other member's file, in place of what records let guess."""
    for number, (key, value) in enumerate(other.get("federation", {}).items()):
        draft.put("federation", key, value, "" if number else f"this section is that of {path}")
