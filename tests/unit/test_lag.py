"""The lag of a worker and its group, as a scrape sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from counting import TOPICS, counting_worker, number
from scraped import scraped

from streamfl.runtime.bus import Bus, Outgoing, Subscription
from streamfl.runtime.lag import Lag
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.runtime.sqlite_bus import SqliteBus

GROUP, TOPIC = "counters", "numbers"
PARTITIONS = next(spec.partitions for spec in TOPICS if spec.name == TOPIC)


@pytest.fixture(name="bus", params=["memory", "sqlite"])
def _bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    bus: Bus = MemoryBus() if request.param == "memory" else SqliteBus(f"sqlite://{tmp_path / 'bus.db'}")
    bus.create(TOPICS)
    yield bus
    bus.close()


def of_group(lag: Lag) -> dict[int, float]:
    """Lag in the group's view, by partition."""
    lag.look()
    return {
        int(dict(one.labels)["partition"]): one.value
        for one in lag.measure(None)
        if one.name == "group_lag_records"
    }


def write(bus: Bus, *partitions: int) -> None:
    """Write one number to each of these."""
    bus.write(
        [
            Outgoing(TOPIC, b"sender-%d-%d" % (place, one), number(1, 1), one)
            for place, one in enumerate(partitions)
        ]
    )


def test_a_partition_without_a_worker_has_a_lag(bus: Bus) -> None:
    """Protects the lag alert while a worker is gone: the remaining workers of its group report its
    partitions' lag."""
    assert PARTITIONS == 2
    with closing(counting_worker(bus)) as worker:
        write(bus, 0, 1, 1)
        for _ in range(6):
            worker.step(0.0)
        assert of_group(worker.lag) == {0: 0, 1: 0}
    write(bus, 0, 1, 1)
    assert of_group(Lag(bus, Subscription(GROUP, (TOPIC,)))) == {0: 1, 1: 2}


@pytest.mark.parametrize(("reset", "told"), [("earliest", {0: 1, 1: 2}), ("latest", {}), ("error", {})])
def test_before_the_first_commit_lag_is_from_where_the_group_will_begin(
    bus: Bus, reset: str, told: dict[int, float]
) -> None:
    """Protects the alert from records that nobody will read: a group that begins at the end has no lag for
    earlier ones."""
    write(bus, 0, 1, 1)
    subscription = Subscription(GROUP, (TOPIC,), auto_offset_reset=reset)  # type: ignore[arg-type]
    assert of_group(Lag(bus, subscription)) == told


def test_commits_and_what_is_taken_back_are_timed(bus: Bus) -> None:
    """Protects the service health dashboard: each commit and each restored partition is timed once."""
    write(bus, 0)
    with closing(counting_worker(bus)) as worker:
        for _ in range(6):
            worker.step(0.0)
        text = worker.metrics.render().decode()
    assert scraped(text, "commit_seconds_count") == scraped(text, "commits_total") > 0
    assert scraped(text, "restore_seconds_count") == PARTITIONS
    assert scraped(text, "commit_seconds_sum") <= scraped(text, "step_seconds_sum")
