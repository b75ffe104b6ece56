"""What every test of the simulation needs: speed, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
from threadpoolctl import threadpool_limits

import streamfl.samples


@pytest.fixture(autouse=True, scope="session")
def _look_up_formats_once() -> Iterator[None]:
    # Each of some thousand starts of a client would read the metadata of every installed package.
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(1):
        patch.setattr(streamfl.samples, "entry_points", functools.cache(entry_points))
        yield
