"""What clients and servers serve, and what their dashboard shows of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from served import joined, served_by

from streamfl.pofmkl import SYSTEM
from streamfl.reference.metrics import role_metrics, worker_metrics
from streamfl.runtime.memory_bus import MemoryBus

DEPLOY = Path(__file__).parents[3] / "deploy"


def exported(configuration: Path, sections: dict[str, Any]) -> dict[str, str]:
    """Kind of every metric, by name, that a worker with this configuration serves once it has joined its
    group."""
    with closing(joined(configuration, sections, MemoryBus())) as worker:
        return {name: kind for name, (kind, _) in served_by(worker).items()}


def test_documented_metrics_are_the_exported_ones() -> None:
    """Protects dashboards and alerts: what the reference names is what workers serve, no more, no less, with
    its kind.

    Some is served with the logistic loss only, with challengers, with labels on a topic of their own, or with
    a user's own model."""
    served: dict[str, str] = {}
    for configuration in sorted(DEPLOY.glob("*.toml")):
        served |= exported(
            configuration, {"learning": {"loss": "logistic"}, "challengers": {"models": ["last-label"]}}
        )
    late = {
        "samples": {"sample_id": "id", "label": None},
        "labels": {"topic": "late", "sample_id": "id", "label": "y"},
        # They learn from labels in the samples only.
        "challengers": {"models": []},
    }
    served |= exported(DEPLOY / "client.toml", late)
    own = {
        "models": {"line": {"make": "guest_models:line"}},
        "experts": {"river": ["line"]},
        "challengers": {"models": ["line"]},
    }
    served |= exported(DEPLOY / "client.toml", own)
    documented = [*role_metrics(SYSTEM).values(), worker_metrics()]
    assert {name: one.kind for found in documented for name, one in found.items()} == served
