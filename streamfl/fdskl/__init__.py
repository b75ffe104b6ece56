"""FDSKL: kernel learning over columns that live in different places, by masked sums of phases.

Gu, Dang, Li and Huang, "Federated Doubly Stochastic Kernel Learning for Vertically Partitioned Data", 2020.
"""

from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="fdskl",
    summary="parties with columns of their own, a kernel model by masked sums",
    kinds=("fdskl-worker",),
    roles="streamfl.fdskl.roles:ROLES",
    rank=2,
    simulate="streamfl.fdskl.tools.commands:simulate",
    demo="streamfl.fdskl.tools.demo:demo",
    dashboards="streamfl.fdskl.tools.dashboard:DASHBOARDS",
    alerts="streamfl.fdskl.tools.alerts:ALERTS",
    report="streamfl.fdskl.tools.page:REPORTS",
    sources={"fdskl-worker": "streamfl.simulation.sources:entity_samples_and_labels"},
    standings={"fdskl-worker": "streamfl.simulation.system_tools:what_learning_waits_for"},
    refusals={
        "topology": "a sum from a party that sends to another one, or over other parties than those below it",
    },
)
