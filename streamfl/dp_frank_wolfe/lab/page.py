"""What ``streamfl report`` shows of DP Frank-Wolfe."""

from __future__ import annotations

from streamfl.simulation.courses import reports

__all__ = ["REPORTS"]

REPORTS = reports("DP Frank-Wolfe")
