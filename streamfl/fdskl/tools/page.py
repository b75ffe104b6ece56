"""What ``streamfl report`` shows of FDSKL."""

from __future__ import annotations

from streamfl.simulation.learning_curves import reports

__all__ = ["REPORTS"]

REPORTS = reports("FDSKL")
