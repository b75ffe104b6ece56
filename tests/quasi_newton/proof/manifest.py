"""What proves quasi-Newton: the parts that ``make simulate`` and ``make fuzz`` run."""

from streamfl.testing.proof import Proof

__all__ = ["PROOF"]

PROOF = Proof(faults="streamfl.quasi_newton.lab.faults:FAULTS", fuzz="streamfl.quasi_newton.lab.fuzz:QUASI_NEWTON")
