"""Marks the settings that all members of a federation need alike. ``[federation]`` is such a section without
the mark."""

from __future__ import annotations

from pydantic import BaseModel

__all__ = ["SHARED", "shared_keys"]


class _Shared:
    """The mark, in a field's annotation. On a section it marks all its keys."""


SHARED = _Shared()


def shared_keys(settings: type[BaseModel]) -> set[tuple[str, str]]:
    """Section and key of each marked setting.

    settings: the class of a whole file.
    """
    return {
        (name, key.alias or key_name)
        for name, section in settings.model_fields.items()
        if isinstance(section.annotation, type) and issubclass(section.annotation, BaseModel)
        for key_name, key in section.annotation.model_fields.items()
        if SHARED in (*section.metadata, *key.metadata)
    }
