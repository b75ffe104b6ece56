"""What proves FDSKL: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="fdskl.proof.faults:FAULTS", fuzz="fdskl.proof.fuzz:targets")
