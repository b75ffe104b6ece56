"""Labels as a coordinator reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from streamfl.contract.role import BadRecord, Record
from streamfl.records.labels import Label
from streamfl.runtime.kinds import find_kind
from streamfl.vafl.config import VaflSettings


def vertical_labels(learning: dict[str, Any], **labels: Any) -> Callable[[int | float], Label]:
    """What a coordinator's labels' channel makes of a label."""
    shared = {"name": "f", "parties": ["a", "b"], "embedding_size": learning.get("classes", 1)}
    section = {"topic": "t", "label": "y", **labels}
    role = {"kind": "vafl-coordinator"}
    settings = VaflSettings.model_validate(
        {"federation": shared, "role": role, "labels": section, "learning": learning}
    )
    decode = find_kind("vafl-coordinator").channels(settings).inputs["labels"].decode
    return lambda label: decode(Record("t", 3, 17, b"dev", json.dumps({"y": label}).encode()))


def test_every_class_reaches_the_coordinator() -> None:
    """Protects federations of more than 1001 classes from losing the labels of all that come after, and their
    users from a text about a key that this member does not have.
    """
    decode = vertical_labels({"loss": "softmax", "classes": 1500})
    assert [decode(label).label for label in (0, 1000, 1001, 1499)] == [0.0, 1000.0, 1001.0, 1499.0]
    # Which classes there are is said by the coordinator, in its own words.
    assert decode(4000).label == 4000.0
    decode = vertical_labels({"loss": "square"}, label_range=[10, 20])
    assert decode(15).label == 0.5
    with pytest.raises(
        BadRecord, match=r"y is 10100.0, .*1000 times as large as labels\.label_range = \[10.0, 20.0\]"
    ) as caught:
        decode(10_100)
    assert caught.value.reason == "label"
