"""Paths: the place of a value in a record, and the error if it is missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfl.records.paths import ABSENT, leaf_paths, path_of

RECORD: dict[str, Any] = {
    "meta": {"site": "oslo", "a.b": 1, "list[0]": 2},
    "payload": {"readings": [{"temp": 21.5}, {"temp": None}]},
    "meta.site": "a field of this whole name",
    "x": 3,
}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("x", 3),
        ("meta.site", "oslo"),
        ("`meta.site`", "a field of this whole name"),
        ("meta.`a.b`", 1),
        ("meta.`list[0]`", 2),
        ("payload.readings[0].temp", 21.5),
        ("payload.readings[1].temp", None),
        ("payload.readings[2].temp", ABSENT),
        ("payload.readings.temp", ABSENT),
        ("x.y", ABSENT),
        ("x[0]", ABSENT),
        ("nothing", ABSENT),
    ],
)
def test_a_path_finds_its_value(path: str, value: Any) -> None:
    """Protects every field of [samples] and [labels]: one syntax; a name with dots of its own has to be
    quoted."""
    assert path_of(path).find(RECORD) == value


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("meta.town", "meta.town is missing: meta is an object without it"),
        (
            "payload.readings[1].temp.low",
            "payload.readings[1].temp.low is missing: payload.readings[1].temp is null",
        ),
        ("x.y", "x.y is missing: x is no object"),
        (
            "a.name",
            "a.name is missing: the record has one field of this whole name; write it in backticks, `a.name`",
        ),
    ],
)
def test_what_is_lacking_is_told_by_its_full_path(path: str, text: str) -> None:
    """Protects the operator from 'temp is missing' in a record with ten fields of that name."""
    assert path_of(path).lacking(RECORD | {"a.name": 1}) == text


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "[0]",
        "a[",
        "a[]",
        "a[-1]",
        "a[1]b",
        "`a",
        "a`b`",
        "``",
        "a[9999999]",
        "a" * 2000,
        ".a" * 40,
    ],
)
def test_what_is_no_path_is_refused(path: str) -> None:
    """Protects the operator: a mistake in a path is reported at the start, not as a field missing from every
    record."""
    with pytest.raises(ValueError, match="expected"):
        path_of(path)


def test_a_declared_column_is_taken_as_it_is() -> None:
    """Protects lines with a header: where the fields are declared, names need no quotes."""
    assert path_of("a.b", ["a.b", "c"]).find({"a.b": 1, "a": {"b": 2}}) == 1
    assert path_of("a.b", ["c"]).find({"a.b": 1, "a": {"b": 2}}) == 2


NAMES = st.text(min_size=1, max_size=8)


@given(
    st.recursive(
        st.integers(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=8
    )
)
def test_paths_that_are_offered_lead_to_their_values(content: Any) -> None:
    """Protects `check`, which suggests existing fields: each suggestion has to work unchanged, whatever its
    name."""
    if isinstance(content, dict):
        for path in leaf_paths(content):
            assert path_of(path).find(content) is not ABSENT


def test_what_is_put_is_found() -> None:
    """Protects `replay`, which writes records that the same configuration reads."""
    content: dict[str, Any] = {}
    for number, path in enumerate(["a.b", "a.c[1].d", "a.c[0].d", "`x.y`", "z"]):
        path_of(path).put(content, number)
    assert content == {"a": {"b": 0, "c": [{"d": 2}, {"d": 1}]}, "x.y": 3, "z": 4}
