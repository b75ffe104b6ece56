"""Running mean: the next label of a client is predicted as the mean of its labels so far."""

from streamfl.contract.system import System

__all__ = ["SYSTEM"]

SYSTEM = System(
    name="running-mean",
    summary="clients whose labels are predicted by their mean so far",
    kinds=("running-mean",),
    roles="running_mean.roles:ROLES",
    members="running_mean.members:MEMBERS",
)
