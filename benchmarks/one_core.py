"""Samples a second of a client's worker that has one processor, with its client library's threads.

The broker and all else have the others. The default preset has its server, as its users do: without one,
each client takes steps of its own for every kernel.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Collection, Iterator
from contextlib import closing

from benchmarks import end_to_end
from benchmarks.broker import running_broker
from benchmarks.figures import Figure, size
from streamfl.contract.channels import TopicSpec
from streamfl.runtime.bus import Bus, BusUnavailable, connect

PARTITIONS, COPIES, RUNS = 8, size(2, 1), size(3, 1)
# In a federation's name.
PLAIN = str.maketrans(", +", "---")
SCHEMES = size(("kafka+librdkafka", "kafka"), ("kafka",))
PAPER = 'preset = "paper"\nstaleness = "async"\n'
# Settings that are replaced, whether the server runs, and the goal.
PRESETS = {
    "paper, async": ("", False, 60_000.0),
    "default, with its server": (PAPER, True, 30_000.0),
    "default, without a server": (PAPER, False, None),
}


def measure() -> Iterator[Figure]:
    processors = os.sched_getaffinity(0)
    own, *others = sorted(processors)
    # The broker is started by this process, so it has the same processors.
    os.sched_setaffinity(0, others or processors)
    try:
        with running_broker() as broker, closing(connect(broker.url)) as bus:
            bus.create([TopicSpec("samples", PARTITIONS, False)])
            for _ in range(COPIES):
                end_to_end.write_samples(bus)
            for scheme in SCHEMES:
                for preset, (replaced, has_server, goal) in PRESETS.items():
                    rates = []
                    for run in range(RUNS):
                        name = f"{preset}-{run}-{scheme}".translate(PLAIN)
                        client = end_to_end.configuration(name, f"{scheme}://{broker.address}")
                        client = client.replace(replaced, "")
                        servers = [client.replace("pofmkl-client", "pofmkl-server")] if has_server else []
                        with end_to_end.running(servers, others or processors):
                            rates.append(_rate(bus, name, client, {own}))
                    name = f"one processor, {preset}, {scheme}: samples/s"
                    yield Figure(name, statistics.median(rates), "1/s", goal if "+" in scheme else None)
    finally:
        os.sched_setaffinity(0, processors)


def _rate(bus: Bus, name: str, configuration: str, processors: Collection[int]) -> float:
    samples = COPIES * end_to_end.SAMPLES
    with end_to_end.running([configuration], processors) as wait:
        wait(lambda: _taken(bus, f"{name}.pofmkl-client") >= samples, "every sample was taken")
    return end_to_end.rate(bus, f"{name}.predictions", samples)


def _taken(bus: Bus, group: str) -> int:
    try:
        return sum(bus.committed(group).values())
    except BusUnavailable:
        # A broker's first group waits until the broker has made the topic of groups.
        return 0
