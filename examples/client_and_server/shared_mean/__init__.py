"""Shared mean: each client's mean, drawn towards the mean of all clients."""

from streamfl.contract.system import System

SYSTEM = System(
    name="shared-mean",
    summary="clients' means, drawn towards the mean that a server makes of all",
    kinds=("shared-mean-client", "shared-mean-server"),
    roles="shared_mean.roles:ROLES",
    members="shared_mean.roles:MEMBERS",
)
