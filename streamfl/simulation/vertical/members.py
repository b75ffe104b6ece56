"""The members of a vertical federation whose topics somebody else fills: the sections in which their settings
differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamfl.configuration.settings import RoleSection
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection, PartySection

__all__ = [
    "HEAD",
    "LABEL",
    "LABELS",
    "Columns",
    "columns_content",
    "labels_section",
    "member_sections",
    "samples_topic",
]

Columns = Sequence[str] | int
"""The names of a party's columns, or how many there are. Columns without names are one field, which is a
list."""

HEAD = ""
"""The member that is no party, such as a coordinator. No party has this name."""
LABELS = "labels"
"""The topic of the labels."""
LIST, LABEL = "x", "y"
"""The field of columns without names, and the field of a label."""


def samples_topic(party: str) -> str:
    """The topic of a party's columns."""
    return f"samples-{party}"


def columns_content(columns: Columns, row: list[float]) -> dict[str, Any]:
    """The content of a record of a party's columns."""
    return {LIST: row} if isinstance(columns, int) else dict(zip(columns, row, strict=True))


def labels_section(topic: str = LABELS) -> EntityLabelsSection:
    """The section ``[labels]`` of a member that knows labels."""
    return EntityLabelsSection(topic=topic, format="msgpack", label=LABEL, label_range=(0.0, 1.0))


def member_sections(
    kind: str, party: str = HEAD, columns: Columns = 0, labels: EntityLabelsSection | None = None
) -> dict[str, Any]:
    """Role, party, samples and labels of a member, by the section's name. A section that the member does not
    have is None."""
    sections: dict[str, Any] = {
        "role": RoleSection(kind=kind),
        "party": None,
        "samples": None,
        "labels": labels,
    }
    if party != HEAD:
        sections["party"] = PartySection(name=party)
        sections["samples"] = EntitySamplesSection(
            topic=samples_topic(party),
            format="msgpack",
            features=LIST if isinstance(columns, int) else list(columns),
            dimension=columns if isinstance(columns, int) else None,
        )
    return sections
