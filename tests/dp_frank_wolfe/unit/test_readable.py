"""A record that cannot be read is a row of zeros; only one without a name is refused."""

from __future__ import annotations

import math

import pytest

from streamfl.contract.role import BadRecord, Record
from streamfl.dp_frank_wolfe.party.readable import readable_label, readable_sample
from streamfl.records.entities import EntityLabelsSection, EntitySamplesSection
from streamfl.records.labels import LabelReader
from streamfl.records.samples import SampleReader

UNREADABLE = [
    None,
    b"",
    b"{",
    b"[1, 2]",
    b'{"x0": 1}',
    b'{"x0": 1, "x1": "much"}',
    b'{"x0": 1, "x1": null}',
    b'{"x0": 1, "x1": 1e300}',
    b'{"x0": 1, "x1": NaN}',
    b'{"x0": 1, "x1": true, "y": true}',
    b"\xff" * 100,
    b" " * 2_000_000,
]


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("t", 0, 0, key, value)


@pytest.mark.parametrize("value", UNREADABLE)
def test_values_that_cannot_be_read_make_a_row(value: bytes | None) -> None:
    """Protects the row's content: nobody may see from a dead letter, or from a window that waits, that a row
    could not be read."""
    samples = EntitySamplesSection(topic="s", features=["x0", "x1"])
    found = readable_sample(SampleReader(samples.samples))(record(b"anna", value))
    assert (found.client, len(found.features)) == ("anna", 2)
    assert all(map(math.isnan, found.features))
    labels = EntityLabelsSection(topic="l", label="z")
    label = readable_label(LabelReader(labels, None))(record(b"anna", value))
    assert label.client == "anna"
    assert math.isnan(label.label)


def test_values_that_can_be_read_stay() -> None:
    """Protects everybody else's rows."""
    samples = EntitySamplesSection(topic="s", features=["x0", "x1"], entity="who")
    decode = readable_sample(SampleReader(samples.samples))
    assert decode(record(None, b'{"who": 7, "x0": 1, "x1": -2.5}')).features == (1.0, -2.5)
    assert decode(record(None, b'{"who": 7, "x0": 1, "x1": {}}')).client == "7"


@pytest.mark.parametrize(
    "value", [None, b"{", b"[]", b'{"x0": 1, "x1": 2}', b'{"who": null, "x0": 1, "x1": 2}', b'{"who": ""}']
)
def test_nobodys_record_is_refused(value: bytes | None) -> None:
    """Protects the table from rows without an owner."""
    samples = EntitySamplesSection(topic="s", features=["x0", "x1"], entity="who")
    with pytest.raises(BadRecord):
        readable_sample(SampleReader(samples.samples))(record(b"anna", value))
    for key in (None, b"", b"\xff", b"x" * 300):
        with pytest.raises(BadRecord):
            readable_sample(SampleReader(EntitySamplesSection(topic="s", features=["x"]).samples))(
                record(key, value)
            )
