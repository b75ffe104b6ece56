"""Marks the settings that may change after state was made. A setting without the mark must stay."""

from __future__ import annotations

from typing import Annotated, get_args, get_origin

from pydantic import BaseModel

__all__ = ["CHANGEABLE", "Changeable", "changeable_keys"]


class Changeable:
    """The mark, in a field's annotation. at: the only kind of role whose state allows the change; None: every kind."""

    def __init__(self, at: str | None = None) -> None:
        self.at = at


CHANGEABLE = Changeable()


def changeable_keys(settings: type[BaseModel], kind: str) -> set[str]:
    """The dotted keys, of all sections of ``settings``, that may change where a role of this kind has state."""
    found = set()
    for name, field in settings.model_fields.items():
        for section in _sections(field.annotation):
            for key, inner in section.model_fields.items():
                if any(isinstance(one, Changeable) and one.at in (None, kind) for one in inner.metadata):
                    found.add(f"{name}.{key}")
    return found


def _sections(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    members = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    return [found for member in members for found in _sections(member)]
