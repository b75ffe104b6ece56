"""Where the deployments of this benchmark run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.broker import running_broker

BUSES = ("sqlite", "kafka", "kafka+librdkafka")


@contextmanager
def bus_at(name: str) -> Iterator[str | None]:
    """The address of a bus of this name: a broker of its own, or None for SQLite, which lies in a folder of
    the run's own."""
    if name == "sqlite":
        yield None
        return
    with running_broker() as broker:
        yield f"{name}://{broker.address}"
