"""A federation under load while its processes and its cluster are killed, stopped and unreachable: the short
form of ``make soak``."""

from __future__ import annotations

import pytest
from soak.campaign import run
from soak.subject import Plan, find_soaked

pytestmark = pytest.mark.broker

# Allowed growth of a process: its client libraries may be created again, but nothing may accumulate.
MOST_GROWTH_MB = 100.0


def test_faults_lose_and_double_nothing() -> None:
    """Protects exactly-once, the changelogs and the automatic recovery: each sample is predicted once, and
    the system's own checks of its topics pass. While the cluster is unreachable, and one worker was killed
    with it, readiness reports it and memory does not grow.

    One system is enough here: what the others provide for it is tried without a broker, and their workers are
    killed on one by tests of their own.
    """
    system, subject = find_soaked()
    plan = Plan(subject.modes[0], rate=5.0)
    report = run(
        system,
        plan,
        0.0,
        15.0,
        ["worker stopped past its transaction"],
    )
    assert report["wrong"] == []
    assert (report["lost"], report["doubled"]) == (0, 0)
    assert report["samples"] == report["samples_written"] > 100
    outage = report["outages"][0]
    processes = set(outage["before"])
    assert len(processes) == sum(member.processes for member in subject.members(plan).values())
    assert set(outage["red_after"]) == processes
    assert set(outage["green_after"]) == processes
    for name in processes:
        assert max(outage["during"][name], outage["after"][name]) < outage["before"][name] + MOST_GROWTH_MB
