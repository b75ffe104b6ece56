"""What proves POF-MKL: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="pofmkl.proof.faults:FAULTS", fuzz="pofmkl.proof.fuzz:targets")
