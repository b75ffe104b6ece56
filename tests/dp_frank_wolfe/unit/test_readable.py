"""A record that cannot be read is a row of zeros; only one without a name is refused."""

from __future__ import annotations

import pytest

from streamfl.contract.role import BadRecord, Record
from streamfl.dp_frank_wolfe.party.readable import readable_sample
from streamfl.records.entities import EntitySamplesSection
from streamfl.records.samples import SampleReader


def record(key: bytes | None, value: bytes | None) -> Record:
    return Record("t", 0, 0, key, value)


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
