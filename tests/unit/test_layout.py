"""Which states a release restores, by the layout and the release stored with them."""

from __future__ import annotations

import pytest

from streamfl import __version__
from streamfl.contract.role import BadRecord
from streamfl.state.state_settings import LAYOUT_HEADER, RELEASE_HEADER, StateSettings, decode_settings


@pytest.mark.parametrize(
    "headers", [(), ((LAYOUT_HEADER, b"1"),), ((LAYOUT_HEADER, b"2"), (RELEASE_HEADER, b"0.1"))]
)
def test_this_layout_and_those_before_it_are_read(headers: tuple[tuple[str, bytes], ...]) -> None:
    """Protects upgrades: state without a layout, of an earlier layout or of this one is restored."""
    assert StateSettings(layout=2).unreadable(headers) == ""


def test_what_is_written_is_read_by_who_wrote_it() -> None:
    """Protects every restart: a role accepts the headers that its state gets."""
    made = StateSettings.of({"learning.rate": 1}, (), layout=3)
    assert made.unreadable(made.headers()) == ""
    assert made.unreadable(StateSettings.of({}, (), layout=4).headers())


def test_the_order_of_a_table_is_no_difference() -> None:
    """Protects every restart of a role whose settings have a table: TOML gives its keys no order, and the
    record in the changelog has them sorted."""
    made = StateSettings.of(
        {"federation.columns": {"dairy": 3, "cellar": 2}, "samples.inputs": [{"b": 1, "a": 2}]}, ()
    )
    remembered = decode_settings(made.encode())
    assert made.compare(remembered) == ([], [])
    changed = StateSettings.of({"federation.columns": {"cellar": 3, "dairy": 2}}, ())
    assert [one.key for one in changed.compare(remembered)[0]] == ["federation.columns"]


def test_a_later_layout_is_named() -> None:
    """Protects downgrades: the refusal names the release that wrote the state and the one that cannot read
    it."""
    told = StateSettings(layout=2).unreadable(((LAYOUT_HEADER, b"3"), (RELEASE_HEADER, b"9.8.7")))
    assert (
        told
        == f"it was written by streamfl 9.8.7 in layout 3, and this is streamfl {__version__}, which reads "
        "layouts up to 2"
    )


@pytest.mark.parametrize(
    "layout", [b"", b"0", b"-1", b"one", b"1.5", b"9" * 100, "\N{ARABIC-INDIC DIGIT ONE}".encode()]
)
def test_a_layout_that_is_none_is_no_layout(layout: bytes) -> None:
    """Protects from damage: a value that no release writes is refused, and not read as an early layout."""
    with pytest.raises(BadRecord, match="layout"):
        StateSettings().unreadable(((LAYOUT_HEADER, layout),))
