"""A federation under load while its processes and its cluster are killed, stopped and unreachable: the short
form of ``make soak``."""

from __future__ import annotations

import pytest
from soak.campaign import run
from soak.subject import Plan, find_soaked, soaked_systems

pytestmark = pytest.mark.broker

# Allowed growth of a process: its client libraries may be created again, but nothing may accumulate.
MOST_GROWTH_MB = 100.0


FIRST, *OTHERS = soaked_systems()


@pytest.mark.parametrize("system", OTHERS)
def test_a_killed_worker_of_any_system_loses_and_doubles_nothing(system: str) -> None:
    """Protects a system's verdict from a load or a federation that it cannot judge."""
    _, subject = find_soaked(system)
    report = run(system, Plan(subject.modes[0], rate=10.0), 0.0, 0.0, ["worker killed"])
    assert report["wrong"] == []
    assert (report["lost"], report["doubled"]) == (0, 0)
    assert report["samples"] == report["samples_written"]


def test_faults_lose_and_double_nothing() -> None:
    """Protects exactly-once, the changelogs and the automatic recovery: each sample is predicted once, and
    the system's own checks of its topics pass. While the cluster is unreachable, readiness reports it and
    memory does not grow.
    """
    system, subject = find_soaked(FIRST)
    plan = Plan(subject.modes[0], rate=10.0)
    report = run(
        system,
        plan,
        0.0,
        25.0,
        ["worker killed", "worker stopped past its transaction", "cluster and worker killed"],
    )
    assert report["wrong"] == []
    assert (report["lost"], report["doubled"]) == (0, 0)
    assert report["samples"] == report["samples_written"] > 200
    outage = report["outages"][0]
    processes = set(outage["before"])
    assert len(processes) == sum(member.processes for member in subject.members(plan).values())
    assert set(outage["red_after"]) == processes
    assert set(outage["green_after"]) == processes
    for name in processes:
        assert max(outage["during"][name], outage["after"][name]) < outage["before"][name] + MOST_GROWTH_MB
