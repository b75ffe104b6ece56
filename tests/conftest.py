"""Fixtures that several test folders share."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from broker import Broker

# The Kafka client reads its schemas in a way that Python 3.11 calls deprecated; the tests turn warnings into errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka.admin  # noqa: F401


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs in the tests' process configures logging, to a stderr that is closed after the test."""
    handlers, level = list(logging.root.handlers), logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


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


@pytest.fixture(scope="session")
def streams_of_sets(data: Path) -> ModuleType:
    """The module ``streams.py`` beside the data sets, which deals their rows to clients."""
    spec = importlib.util.spec_from_file_location("streams", data / "streams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(name="_refused_connections")
def _collect_sockets() -> Iterator[None]:
    """The Kafka client leaves the socket of a refused connection to the garbage collector, which warns."""
    yield
    gc.collect()
