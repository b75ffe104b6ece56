"""Running mean: the next label of a client is predicted as the mean of its labels so far."""

from streamfl.contract.refusals import Reason
from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="running-mean",
    summary="clients whose labels are predicted by their mean so far",
    kinds=("running-mean",),
    roles="running_mean.roles:ROLES",
    simulate="running_mean.tools.simulate:simulate",
    demo="running_mean.tools.demo:demo",
    sources={"running-mean": "streamfl.simulation.sources:client_samples"},
    dashboards="running_mean.tools.dashboard:DASHBOARDS",
    refusals={
        "unknown_client": Reason("one client more than federation.clients", "raise federation.clients")
    },
)
