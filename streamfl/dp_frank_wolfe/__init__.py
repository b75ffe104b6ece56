"""Sparse linear models of features that belong to several parties, with a differential privacy that is computed and enforced.

Lou and Cheung, "Uplink Communication Efficient Differentially Private Sparse Optimization with Feature-Wise Distributed Data",
AAAI 2018.
"""

from streamfl.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="dp-frank-wolfe",
    summary="a sparse linear model over columns of several parties, under a budget of differential privacy",
    kinds=("dp-frank-wolfe-party", "dp-frank-wolfe-server"),
    roles="streamfl.dp_frank_wolfe.roles:ROLES",
    rank=4,
    simulate="streamfl.dp_frank_wolfe.lab.simulate:simulate",
    demo="streamfl.dp_frank_wolfe.lab.demo:demo",
    sources={"dp-frank-wolfe-party": "streamfl.simulation.sources:entity_samples_and_labels"},
    dashboard="streamfl.dp_frank_wolfe.lab.dashboard:DASHBOARD",
    faults="streamfl.dp_frank_wolfe.lab.faults:FAULTS",
    fuzz="streamfl.dp_frank_wolfe.lab.fuzz:DP_FRANK_WOLFE",
    commands={"ledger": "streamfl.dp_frank_wolfe.lab.ledger:ledger"},
)
