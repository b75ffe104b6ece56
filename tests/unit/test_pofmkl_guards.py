"""What keeps a federation going when budgets are small or numbers diverge."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import Received, Record, Rejection
from streamfl.simulation.federation import simulate
from streamfl.wire import VERSION, encode_array


def update(client: str, sequence: int, step: float, model_version: int = 0) -> Received:
    """An update of kernel 0 with two features, as it arrives."""
    message = Update(VERSION, 0, client, 1, sequence, model_version, 1, (0,), encode_array(np.full((1, 4), step, np.float32)))
    return Received("updates", message, Record("updates", 0, sequence, client.encode(), UPDATE.encode(message)))


def server(lockstep: bool) -> PofmklServer:
    role = PofmklServer(clients=2, kernels=1, features=2, lockstep=lockstep, round_timeout=30.0)
    role.open(0)
    return role


@pytest.mark.parametrize(("staleness", "most"), [("lockstep", None), ("bounded", 2)])
def test_a_small_budget_slows_a_federation_but_never_stops_it(staleness: str, most: int | None) -> None:
    """Protects against waiting for ever for a model that nobody can afford to change, and against rounds of empty messages."""
    generator = np.random.default_rng(0)
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2},
            "role": {"kind": "pofmkl-client"},
            "learning": {"staleness": staleness, "max_staleness": most, "features_per_kernel": 5, "round_timeout_seconds": 1e6},
            "kernels": {"bandwidths": [0.5, 1.0, 2.0]},
            "uplink": {"budget_bytes_per_second": 20.0},
        }
    )
    outcome = simulate(settings, generator.normal(size=(12, 2, 3)), generator.uniform(size=(12, 2)), local_only=False)
    assert np.isfinite(outcome.predictions).all()
    assert np.abs(outcome.parameters).max() > 0
    assert outcome.budget_bytes is not None
    assert outcome.uplink_bytes > 0


def test_steps_that_would_overflow_change_nothing() -> None:
    """Protects the changelog: an infinity in it could never be restored."""
    role = server(lockstep=False)
    assert role.receive([update("a", 1, -3e38)], 0.0) == []
    assert role.receive([update("b", 1, -3e38)], 0.0) == []
    (refused,) = role.receive([update("a", 2, -3e38)], 0.0)
    assert isinstance(refused, Rejection)
    assert refused.error.reason == "not_finite"

