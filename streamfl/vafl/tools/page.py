"""What ``streamfl report`` shows of VAFL."""

from __future__ import annotations

from streamfl.simulation.learning_curves import reports

__all__ = ["REPORTS"]

REPORTS = reports("VAFL")
