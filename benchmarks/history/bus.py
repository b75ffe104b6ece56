"""Where the deployments of this benchmark run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["BUSES", "bus_at"]

BUSES = ("sqlite", "kafka", "kafka+librdkafka")


@contextmanager
def bus_at(name: str) -> Iterator[str | None]:
    """The address of a bus of this name: a broker of its own, or None for SQLite, which lies in a folder of the run's own."""
    if name == "sqlite":
        yield None
        return
    # The broker lives with the tests that also need it; neither is installed.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
    from broker import Broker  # type: ignore[import-not-found]

    with Broker() as broker:
        yield f"{name}://{broker.address}"
