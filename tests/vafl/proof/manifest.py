"""What proves VAFL: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="vafl.proof.faults:FAULTS", fuzz="vafl.proof.fuzz:targets")
