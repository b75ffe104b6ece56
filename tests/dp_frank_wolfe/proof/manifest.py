"""What proves DP Frank-Wolfe: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="streamfl.dp_frank_wolfe.lab.faults:FAULTS", fuzz="streamfl.dp_frank_wolfe.lab.fuzz:DP_FRANK_WOLFE")
