"""Which states a release restores, by the layout and the release stored with them."""

from __future__ import annotations

import pytest

from streamfl import __version__
from streamfl.contract.role import PeerError
from streamfl.state.state_settings import LAYOUT_HEADER, RELEASE_HEADER, StateSettings


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
    with pytest.raises(PeerError, match="layout"):
        StateSettings().unreadable(((LAYOUT_HEADER, layout),))
