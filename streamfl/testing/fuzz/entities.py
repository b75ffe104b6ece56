"""Members of a vertical federation, and what their users write: columns and labels of entities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from streamfl.records.entities import VerticalSettings
from streamfl.testing.fuzz.federations import users_record
from streamfl.testing.fuzz.mutations import FuzzedRecord

__all__ = ["entity_label", "entity_sample", "settings_of"]

Settings = TypeVar("Settings", bound=VerticalSettings)


def settings_of(
    settings: type[Settings],
    common: Mapping[str, Any],
    members: Mapping[str, Mapping[str, Any]],
    changed: Mapping[str, Mapping[str, Any]],
) -> dict[str, Settings]:
    """By member, its settings.

    common: sections that all share.
    members: by member, the sections in which it differs, as a system's ``members`` gives them.
    changed: by section, other values of some of its keys, for all members that have it.
    """
    own = {}
    for name, sections in members.items():
        update = {
            key: sections[key].model_copy(update=dict(new))
            for key, new in changed.items()
            if sections[key] is not None
        }
        own[name] = settings(**{**common, **sections, **update})
    return own


def entity_sample(
    settings: VerticalSettings, entity: str, row: Sequence[float], partition: int | None = None
) -> FuzzedRecord:
    """A party's columns of an entity. partition: None takes the one of all records of this name."""
    section = settings.required_samples(settings.role.kind)
    names = section.features or ()
    content = {names: list(row)} if isinstance(names, str) else dict(zip(names, row, strict=True))
    return users_record("samples", section.samples, entity, content, partition)


def entity_label(
    settings: VerticalSettings, entity: str, label: float, partition: int | None = None
) -> FuzzedRecord:
    """An entity's label. partition: as for :func:`entity_sample`."""
    section = settings.required_labels(settings.role.kind)
    return users_record("labels", section, entity, {section.label: label}, partition)
