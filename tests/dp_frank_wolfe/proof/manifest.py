"""What proves DP Frank-Wolfe: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="dp_frank_wolfe.proof.faults:FAULTS", fuzz="dp_frank_wolfe.proof.fuzz:targets")
