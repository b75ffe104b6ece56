"""``streamfl demo pofmkl``: twenty clients learn together from polls of approval ratings."""

from __future__ import annotations

from pathlib import Path

from streamfl.pofmkl.config import ChallengersSection, PofmklFederation, PofmklSettings, UplinkSection
from streamfl.pofmkl.lab.report import picture, rows
from streamfl.pofmkl.lab.streams import deal, run_with_progress, scaled
from streamfl.settings import RoleSection
from streamfl.simulation.laboratory import Report
from streamfl.simulation.pictures import can_draw

__all__ = ["demo"]

# Approval ratings by five pollsters and the average that a sixth makes of them, day by day.
DATA = "river:TrumpApproval"
FEATURES = ["gallup", "ipsos", "morning_consult", "rasmussen", "you_gov"]
CLIENTS = 20
BUDGET_BYTES_PER_SECOND = 20_000.0


def demo(out: Path, seed: int) -> Report:
    """Run the federation and draw its error and regret over time."""
    streams = deal(DATA, "y", CLIENTS, None, FEATURES)
    settings = PofmklSettings(
        federation=PofmklFederation(name="demo", seed=seed, clients=CLIENTS),
        role=RoleSection(kind="pofmkl-client"),
        uplink=UplinkSection(budget_bytes_per_second=BUDGET_BYTES_PER_SECOND),
        challengers=ChallengersSection(models=["last-label", "linear", "knn", "hoeffding"]),
    )
    outcome = run_with_progress(scaled(settings, streams), streams, trace=True)
    if can_draw():
        picture(outcome, out, "streamfl: 20 clients, polls of approval ratings")
    return Report(f"Federation on {DATA}", rows(outcome), outcome.summary())
