"""Running mean: the next label of a client is predicted as the mean of its labels so far."""

from streamfl.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="running-mean",
    summary="clients whose labels are predicted by their mean so far",
    kinds=("running-mean",),
    roles="running_mean.roles:ROLES",
    simulate="running_mean.lab.simulate:simulate",
    demo="running_mean.lab.demo:demo",
    sources={"running-mean": "running_mean.lab.replay:samples"},
    dashboards="running_mean.lab.dashboard:DASHBOARDS",
)
