"""Keys of records: their encodings, and the name that they give."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from streamfl.contract.role import BadRecord, ConfigurationError, Record
from streamfl.records.keys import KeySection, binary_hint, key_reader, key_writer
from streamfl.records.labels import LabelReader, LabelsSection
from streamfl.records.samples import SampleReader, SamplesSection

UUID = "12345678-1234-5678-1234-567812345678"


@pytest.mark.parametrize(
    ("settings", "key", "name"),
    [
        ({}, b"oslo", "oslo"),
        ({"key": "int32"}, b"\xff\xff\xff\xfe", "-2"),
        ({"key": "int64"}, (42).to_bytes(8, "big"), "42"),
        ({"key": "uuid"}, uuid.UUID(UUID).bytes, UUID),
        ({"key": "uuid"}, UUID.upper().encode(), UUID),
        ({"key": "hex"}, b"\x00\xff", "00ff"),
        ({"key": "json"}, b'"oslo"', "oslo"),
        ({"key": "json"}, b"42", "42"),
        ({"key": "json", "key_field": "payload.id"}, b'{"schema": {}, "payload": {"id": 7}}', "7"),
    ],
)
def test_a_key_gives_its_name(settings: dict[str, Any], key: bytes, name: str) -> None:
    """Protects clients from unreadable eight-byte names, and from names that depend on the writer."""
    section = KeySection(topic="t", **settings)
    assert key_reader(section, "samples")(key) == name
    assert key_reader(section, "samples")(key_writer(section)(name)) == name


@pytest.mark.parametrize(
    ("settings", "key", "reason"),
    [
        ({}, None, "missing_field"),
        ({}, b"\xff", "malformed"),
        ({"key": "int32"}, b"12", "malformed"),
        ({"key": "int64"}, None, "missing_field"),
        ({"key": "uuid"}, b"oslo", "malformed"),
        ({"key": "uuid"}, None, "missing_field"),
        ({"key": "hex"}, b"", "malformed"),
        ({"key": "json"}, b"oslo", "malformed"),
        ({"key": "json"}, b"[" * 60_000, "malformed"),
        ({"key": "json"}, b'"' + b"a" * 70_000 + b'"', "oversized"),
        ({"key": "json"}, b"true", "malformed"),
        ({"key": "json"}, b'{"id": 7}', "malformed"),
        ({"key": "json", "key_field": "id"}, b"7", "malformed"),
        ({"key": "json", "key_field": "id"}, b'{"no": 7}', "missing_field"),
        ({"key": "json", "key_field": "id"}, b'{"id": ""}', "malformed"),
    ],
)
def test_another_key_is_refused_with_its_reason(
    settings: dict[str, Any], key: bytes | None, reason: str
) -> None:
    """Protects the dead letters: each one says what its key should have been, and no other error is
    raised."""
    with pytest.raises(BadRecord) as caught:
        key_reader(KeySection(topic="t", **settings), "samples")(key)
    assert caught.value.reason == reason


def test_a_binary_key_that_is_taken_for_text_is_told_how_it_is_read() -> None:
    """Protects producers that write numbers as keys: the reason names the setting. Letters beyond ASCII do
    not get that hint."""
    told = {width: binary_hint(bytes([0] * (width - 1) + [200])) for width in (3, 4, 8, 16)}
    assert [hint.rpartition(" or ")[0].rpartition("with ")[2] for hint in told.values()] == [
        "", 'key = "int32"', 'key = "int64"', 'key = "uuid"',
    ]  # fmt: skip
    assert all(hint.endswith('key = "hex"') for hint in told.values())
    # A small number is also valid text in UTF-8.
    assert "int64" in binary_hint((7).to_bytes(8, "big"))
    assert {binary_hint(name.encode()) for name in ("", "tromsø-1", "12345678")} == {""}
    with pytest.raises(BadRecord, match="int64"):
        key_reader(KeySection(topic="t"), "samples")((200).to_bytes(8, "big"))


def test_a_field_of_a_key_that_has_none_is_refused() -> None:
    """Protects from a setting without effect."""
    with pytest.raises(ConfigurationError, match=r"labels\.key_field"):
        key_reader(KeySection(topic="t", key_field="id"), "labels")


def test_samples_and_labels_have_keys_of_their_own() -> None:
    """Protects the join: the same client under a number as Java writes it, and under text."""
    value = b'{"x": 1, "y": 0.5, "id": "a"}'
    samples = SampleReader(SamplesSection(topic="t", features=["x"], key="int64"))
    labels = LabelReader(LabelsSection(topic="t", sample_id="id", label="y"), (0, 1))
    sample = samples.decode(Record("t", 0, 0, (7).to_bytes(8, "big"), value))
    label = labels.decode(Record("t", 0, 0, b"7", value))
    assert sample.client == label.client == "7"
