"""Fields of two topics that hold the same names, whatever they are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from streamfl.records.schema_inference import last_name, looks_like_an_id

__all__ = ["names_in", "same_ids", "same_names"]

# Share of one field's names that have to be in the other field.
SHARE = 0.5
# With fewer in common, whole numbers may be the same by chance.
FEWEST = 5
DISTINCT = 0.9


def names_in(values: Sequence[Any]) -> list[str]:
    """The names among these values: text that is not empty, and whole numbers."""
    return [
        str(value)
        for value in values
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != ""
    ]


def same_names(known: Collection[str], fields: Mapping[str, Sequence[Any]]) -> str | None:
    """The field whose values are these names, such as clients'; None: there is none."""
    best: tuple[float, str] | None = None
    for path, values in fields.items():
        found = names_in(values)
        share = sum(name in known for name in found) / max(1, len(values))
        if share >= SHARE and (best is None or share > best[0]):
            best = share, path
    return None if best is None else best[1]


def same_ids(
    samples: Mapping[str, Sequence[Any]], labels: Mapping[str, Sequence[Any]]
) -> tuple[str, str, int] | None:
    """Each topic's field that names the sample, and how many names both have; None: there are no such fields.

    The name differs in nearly every record. Fields with equal names come first, then fields that are called
    like an id, then text."""
    best: tuple[tuple[bool, bool, bool, int], tuple[str, str, int]] | None = None
    ids = {
        path: set(found) for path, values in samples.items() if _are_ids(found := names_in(values), values)
    }
    for path, values in labels.items():
        found = names_in(values)
        if not _are_ids(found, values):
            continue
        for other, known in ids.items():
            common = len(known.intersection(found))
            if common < min(FEWEST, len(values)):
                continue
            called = looks_like_an_id(last_name(path)) or looks_like_an_id(last_name(other))
            rank = (path == other, called, not all(name.isdecimal() for name in found), common)
            if best is None or rank > best[0]:
                best = rank, (other, path, common)
    return None if best is None else best[1]


def _are_ids(found: Sequence[str], values: Sequence[Any]) -> bool:
    return 0 < len(values) == len(found) and len(set(found)) >= DISTINCT * len(found)
