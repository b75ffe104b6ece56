"""The pages of ``streamfl report`` for Quasi-Newton."""

from __future__ import annotations

from streamfl.simulation.learning_curves import reports

__all__ = ["REPORTS"]

REPORTS = reports("Quasi-Newton")
