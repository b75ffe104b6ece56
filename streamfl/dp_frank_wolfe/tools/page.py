"""What ``streamfl report`` shows of DP Frank-Wolfe."""

from __future__ import annotations

from streamfl.simulation.learning_curves import reports

__all__ = ["REPORTS"]

REPORTS = reports("DP Frank-Wolfe")
