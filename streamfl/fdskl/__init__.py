"""FDSKL: kernel learning over columns that live in different places, by masked sums of phases.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", 2020.
"""

from streamfl.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="fdskl",
    summary="parties with columns of their own, a kernel model by masked sums",
    kinds=("fdskl-worker",),
    roles="streamfl.fdskl.roles:ROLES",
    rank=2,
    simulate="streamfl.fdskl.lab.commands:simulate",
    demo="streamfl.fdskl.lab.demo:demo",
    dashboards="streamfl.fdskl.lab.dashboard:DASHBOARDS",
    alerts="streamfl.fdskl.lab.alerts:ALERTS",
    report="streamfl.fdskl.lab.page:REPORTS",
    sources={"fdskl-worker": "streamfl.simulation.sources:entity_samples_and_labels"},
    standings={"fdskl-worker": "streamfl.simulation.system_tools:what_learning_waits_for"},
    faults="streamfl.fdskl.lab.faults:FAULTS",
    fuzz="streamfl.fdskl.lab.fuzz:FDSKL",
    refusals={
        "topology": "a sum from a party that sends to another one, or over other parties than those below it",
    },
)
