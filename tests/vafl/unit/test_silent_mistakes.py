"""Mistakes that would pass in silence: a party's state was learnt with other settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.kinds import build_worker, find_kind
from streamfl.runtime.memory_bus import MemoryBus
from streamfl.vafl.config import VaflSettings

VERTICAL: dict[str, Any] = {
    "federation": {"name": "loans", "parties": ["bank", "shop"], "embedding_size": 1},
    "role": {"kind": "vafl-party"},
    "party": {"name": "bank"},
    "samples": {"topic": "accounts", "features": ["age", "income"]},
    "embedding": {"hidden": [3]},
}


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        ("embedding", {"hidden": [4]}, "embedding.hidden was [3], is [4]"),
        ("embedding", {"activation": "tanh"}, 'embedding.activation was "relu", is "tanh"'),
        (
            "federation",
            {"parties": ["shop", "bank"]},
            'federation.parties was ["bank","shop"], is ["shop","bank"]',
        ),
        ("samples", {"features": ["income", "age"]}, 'samples.features was ["age","income"]'),
        ("learning", {"optimiser": "adam"}, 'learning.optimiser was "adagrad", is "adam"'),
        ("learning", {"batch_size": 4}, None),
        ("privacy", {"ledger_limit": 5}, None),
    ],
)
def test_a_partys_network_cannot_change_under_its_state(
    section: str, values: dict[str, Any], told: str | None
) -> None:
    """Protects vertical federations: what depends on the shape and the order of what is learnt is refused,
    all else goes on."""
    bus = MemoryBus()
    settings = VaflSettings.model_validate(VERTICAL)
    bus.create(
        [replace(spec, partitions=spec.partitions or 1) for spec in find_kind("vafl-party").topics(settings)]
    )
    bus.write([Outgoing("accounts", b"c1", b'{"age": 0.5, "income": 1}')])
    worker = build_worker(settings, bus)
    while worker.step(0.0):
        pass
    worker.close()
    changed = build_worker(
        VaflSettings.model_validate(VERTICAL | {section: VERTICAL.get(section, {}) | values}), bus
    )
    if told is None:
        while changed.step(0.0):
            pass
        changed.close()
        return
    with pytest.raises(ConfigurationError) as caught:
        changed.step(0.0)
    assert told in str(caught.value)
