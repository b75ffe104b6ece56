"""What ``streamfl report`` shows of FDSKL."""

from __future__ import annotations

from streamfl.simulation.courses import reports

__all__ = ["REPORTS"]

REPORTS = reports("FDSKL")
