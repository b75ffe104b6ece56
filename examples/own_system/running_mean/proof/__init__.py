"""What proves that this system works: faults and wrong messages. Neither a worker nor a command imports
it."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="running_mean.proof.checks:FAULTS", fuzz="running_mean.proof.fuzz:targets")
