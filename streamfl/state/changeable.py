"""Marks the settings that may change after state was made. A setting without the mark must stay."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["CHANGEABLE", "Changeable", "changeable_keys"]


class Changeable:
    """The mark, in a field's annotation. at: the only kind of role whose state allows the change; None: every
    kind."""

    def __init__(self, at: str | None = None) -> None:
        self.at = at


CHANGEABLE = Changeable()


def changeable_keys(settings: BaseModel, kind: str) -> set[str]:
    """The dotted keys, of the sections that ``settings`` have, that may change where a role of this kind has
    state."""
    return {
        f"{name}.{key}"
        for name, section in settings
        if isinstance(section, BaseModel)
        for key, field in type(section).model_fields.items()
        if any(isinstance(one, Changeable) and one.at in (None, kind) for one in field.metadata)
    }
