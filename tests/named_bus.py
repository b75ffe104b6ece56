"""Runs tests on your own cluster: STREAMFL_TEST_BUS names a role's settings whose bus replaces the tests'
broker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from streamfl.configuration.settings import load_kind, load_settings
from streamfl.runtime.bus import Bus, connect, scheme_of
from streamfl.runtime.kinds import find_kind

__all__ = ["named_bus"]
VARIABLE = "STREAMFL_TEST_BUS"


def named_bus(scheme: str, options: Mapping[str, object]) -> Iterator[Bus] | None:
    """The bus that the variable names; None if it is not set.

    scheme: the URL scheme of the calling tests, which are skipped if the named bus has another.
    options: options that these tests need. The settings' own options override them.
    """
    if VARIABLE not in os.environ:
        return None
    path = Path(os.environ[VARIABLE])
    settings = load_settings(path, find_kind(load_kind(path)).settings).bus
    if scheme_of(settings.url) != scheme:
        pytest.skip(f"{VARIABLE} names a bus of {scheme_of(settings.url)}")
    return _open(settings.url, {**options, **settings.options})


def _open(url: str, options: dict[str, object]) -> Iterator[Bus]:
    bus = connect(url, options)
    yield bus
    bus.close()
