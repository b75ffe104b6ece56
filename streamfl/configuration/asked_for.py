"""Marks the settings that `streamfl init` asks for although they have a default: no user should keep it
unseen."""

from __future__ import annotations

from pydantic.fields import FieldInfo

__all__ = ["AskedFor", "is_asked_for"]


class AskedFor:
    """The mark, in a field's annotation. at: the only kind of role that is asked for it; None: every kind."""

    def __init__(self, at: str | None = None) -> None:
        self.at = at


def is_asked_for(field: FieldInfo, kind: str) -> bool:
    """Whether a file for a role of this kind has to have the setting, or should have it."""
    return field.is_required() or any(
        isinstance(one, AskedFor) and one.at in (None, kind) for one in field.metadata
    )
