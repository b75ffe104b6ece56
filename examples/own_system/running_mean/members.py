"""Who takes part: the role alone. ``simulate``, ``demo``, the runs under faults and the fuzzer build their
federations from it."""

from running_mean.config import KIND, RunningMeanSettings
from streamfl.simulation.clients import ClientMembers

__all__ = ["MEMBERS"]

MEMBERS = ClientMembers(RunningMeanSettings, {"worker": KIND}, learn_alone=True)
