"""What ``streamfl report`` shows of Quasi-Newton."""

from __future__ import annotations

from streamfl.simulation.courses import reports

__all__ = ["REPORTS"]

REPORTS = reports("Quasi-Newton")
