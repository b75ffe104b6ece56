"""Manifests: the rows of a window, by the numbers under which the party announced them.

A party numbers its entities 1, 2, 3 and so on as it announces them, so it sends each name once. A window is
mostly of entities that were announced one after another, so a few numbers describe it. A digest shows that
server and party mean the same names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from streamfl.contract.role import BadRecord
from streamfl.dp_frank_wolfe.messages import Manifest, content_of

__all__ = ["digest_of_rows", "is_of_waiting", "manifest_content", "numbered", "rows_of"]


def digest_of_rows(names: Sequence[str]) -> bytes:
    """SHA-256 of the manifest that lists all names of a window, ascending."""
    return hashlib.sha256(content_of([names])).digest()


def manifest_content(numbers: Mapping[str, int], digest: bytes) -> bytes:
    """Encodes a window's manifest for one party. numbers: by name, ascending; 0 for an entity that was
    announced without one.

    digest: of all names. A party of release 0.1 announces without numbers, and reads names alone.
    """
    names = [name for name, number in numbers.items() if not number]
    runs = _runs({number for number in numbers.values() if number})
    return content_of(Manifest(names, runs, digest) if runs else [names])


def rows_of(manifest: Manifest, rows: int, announced: Mapping[int, str]) -> list[str]:
    """The names of a window, ascending. Raises BadRecord unless the manifest names ``rows`` of the announced
    entities, each once.

    announced: names that wait, by number.
    """
    numbers, told = _numbers(manifest.runs, rows), manifest.names
    if len(told) + len(numbers) != rows or any(one >= other for one, other in pairwise(told)):
        raise BadRecord(
            "malformed",
            f"{len(told)} names and {len(numbers)} numbers: {rows} are expected, ascending, none twice",
        )
    if unknown := sum(number not in announced for number in numbers):
        raise BadRecord(
            "implausible", f"{unknown} numbers of no entity that this party has announced and that waits"
        )
    names = sorted([*told, *(announced[number] for number in numbers)])
    if len(set(names)) < rows:
        raise BadRecord("malformed", "an entity is said by its name and by its number")
    if numbers and digest_of_rows(names) != manifest.digest:
        text = (
            "the numbers of the manifest are of other entities at this party: its state is not the one that "
            "it announced them from, or somebody else has announced entities in its name"
        )
        raise BadRecord("another_manifest", text)
    return names


def is_of_waiting(manifest: Manifest, rows: int, announced: Mapping[int, str]) -> bool:
    """Whether it is a manifest by numbers, of entities that all wait. A number is given once, so a manifest
    that was taken before is none."""
    try:
        return bool(manifest.runs and rows_of(manifest, rows, announced))
    except BadRecord:
        return False


def numbered(announcements: Iterable[tuple[int, Sequence[str]]]) -> dict[int, str]:
    """Names by number. announcements: pairs of the first name's number, 0 for none, and the names."""
    return {
        first + place: name for first, names in announcements if first for place, name in enumerate(names)
    }


def _runs(numbers: Iterable[int]) -> list[int]:
    """For each run of consecutive numbers: how many are skipped before it, and its length."""
    found: list[int] = []
    latest = 0
    for number in sorted(numbers):
        if found and number == latest + 1:
            found[-1] += 1
        else:
            found += [number - latest - 1, 1]
        latest = number
    return found


def _numbers(runs: Sequence[int], most: int) -> list[int]:
    """The numbers that :func:`_runs` encoded, ascending. Raises BadRecord for malformed runs or more than
    ``most`` numbers."""
    gaps, lengths = runs[::2], runs[1::2]
    # Checked before the list is built: a run may claim any length.
    if len(gaps) != len(lengths) or 0 in lengths or 0 in gaps[1:] or sum(lengths) > most:
        raise BadRecord("malformed", f"{len(runs)} numbers that are no runs of {most} at most")
    found: list[int] = []
    latest = 0
    for gap, length in zip(gaps, lengths, strict=True):
        found += range(latest + gap + 1, latest + gap + length + 1)
        latest += gap + length
    return found
