"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker import Broker

# The Kafka client reads its schemas in a way that Python 3.11 calls deprecated; the tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin  # noqa: F401


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real Kafka broker for the whole run; tests take topics and groups of their own.

    It fails, and never skips, without Java or Maven.
    """
    with Broker() as running:
        yield running


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of the papers' data sets, from the environment variable STREAMFL_DATA."""
    location = os.environ.get("STREAMFL_DATA")
    if not location:
        pytest.skip("STREAMFL_DATA does not name the folder with the papers' data sets")
    return Path(location)
