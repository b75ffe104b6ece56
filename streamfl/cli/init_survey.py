"""Counts clients and finds the label's range, over all records that ``streamfl init`` can read, one after
another."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from streamfl.cli.init_read import RecordSample
from streamfl.records.paths import ABSENT, path_of
from streamfl.records.schema_inference import numbers_among
from streamfl.records.shared_names import names_in

__all__ = ["Survey", "survey"]

MOST_NAMES = 1_000_000


@dataclass
class Survey:
    """names: the clients. values: the number of labels. numbers: the number of labels that are numbers, from
    ``low`` to ``high``.

    other: a label that is no number.
    text: whether a label is text.
    binary: whether all numbers are 0 or 1.
    """

    records: int = 0
    names: set[str] = field(default_factory=set)
    values: int = 0
    numbers: int = 0
    low: float = math.inf
    high: float = -math.inf
    other: Any = None
    text: bool = False
    binary: bool = True

    def label(self, value: Any) -> None:
        """Count a record's label."""
        self.values += 1
        self.text |= isinstance(value, str)
        numbers = numbers_among([value])
        if not numbers:
            self.other = value
            return
        self.numbers += 1
        self.low, self.high = min(self.low, *numbers), max(self.high, *numbers)
        self.binary &= numbers[0] in (0.0, 1.0)


def survey(
    seen: RecordSample, client: str | None, label: str | None, named: tuple[str, str] | None = None
) -> Survey:
    """Survey all records, without keeping them.

    client, label: fields.
    named: a field, and the value that it has in records with a label.
    """
    columns = seen.format.keys.get("columns")
    of_client, of_label = (None if one is None else path_of(one, columns) for one in (client, label))
    of_name = None if named is None else path_of(named[0], columns)
    found = Survey()
    for content in seen.everything():
        found.records += 1
        if of_client is not None and len(found.names) < MOST_NAMES:
            found.names.update(names_in([of_client.find(content)]))
        if of_name is not None and named is not None and str(of_name.find(content)) != named[1]:
            continue
        value = ABSENT if of_label is None else of_label.find(content)
        if value is not ABSENT and value is not None and value == value:
            found.label(value)
    return found
