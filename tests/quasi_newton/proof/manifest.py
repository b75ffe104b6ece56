"""What proves quasi-Newton: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="quasi_newton.proof.faults:FAULTS", fuzz="quasi_newton.proof.fuzz:targets")
