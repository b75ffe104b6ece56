"""Several parties are one party alone, which is DSG (Dai et al. 2014): alphas and predictions, under every
topology and mask. ``test_trace`` has its equations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.fdskl.messages import PARTIAL_SUM
from streamfl.fdskl.metrics import ActiveMetrics
from streamfl.fdskl.sums.pending_sums import SUM
from streamfl.fdskl.sums.topology import hops
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all
from streamfl.runtime.bus import Outgoing

Floats = NDArray[np.float64]
COLUMNS = 8
ROWS = 40


def data() -> tuple[Floats, Floats]:
    random = np.random.default_rng(11)
    x = random.normal(size=(ROWS + 5, COLUMNS))
    return x, (np.sin(1.5 * x[:, 0]) + x[:, 1] * x[:, 2] > 0).astype(float)


def learnt(
    parties: int,
    topology: str = "tree",
    mask: str = "one-time",
    bits: int = 64,
    overheard: Callable[[Outgoing], None] | None = None,
    **learning: Any,
) -> KernelFederation:
    """A federation that has learnt from the first rows and predicted the others."""
    x, y = data()
    parts = np.array_split(np.arange(COLUMNS), parties)
    small = {"bandwidth": 2.0, "block_instances": 4, "block_features": 3, "features_limit": 12, "window": 24}
    settings = settings_of_all(
        [f"p{number}" for number in range(parties)],
        federation={"seed": 5},
        learning=small | learning,
        aggregation={"topology": topology, "mask": mask, "circle_bits": bits, "frequencies": "shared"},
        standardisation={"columns": False, "transform": "none"},
    )
    names = [[f"c{column}" for column in part] for part in parts]
    federation = KernelFederation(settings, [x[:, part] for part in parts], names, y, overheard=overheard)
    for begin in range(0, ROWS, 8):
        federation.write_samples(range(begin, begin + 8))
        federation.run()
        federation.write_labels(range(begin, begin + 8))
        federation.run()
    federation.write_samples(range(ROWS, ROWS + 5))
    federation.run()
    return federation


def alphas(federation: KernelFederation) -> Floats:
    return federation.active.active_partition(0).model.snapshot().alphas


def scores(federation: KernelFederation) -> Floats:
    """What was published of the rows that the whole model has predicted."""
    said = {one.entity: one.score for one in federation.predictions()}
    return np.array([said[str(row)] for row in range(ROWS, ROWS + 5)])


@cache
def alone(solver: str) -> tuple[Floats, Floats]:
    federation = learnt(1, **SOLVERS[solver])
    return alphas(federation), scores(federation)


SOLVERS: dict[str, dict[str, Any]] = {
    "sgd": {"solver": "sgd", "step": 0.7, "regularisation": 1e-2},
    "newton": {"solver": "newton", "regularisation": 1e-2},
}


@pytest.mark.parametrize(
    ("parties", "topology", "mask"),
    [
        (2, "tree", "none"),
        (3, "ring", "one-time"),
        (3, "star", "paper"),
        (4, "tree", "paper"),
        (4, "ring", "paper"),
        (4, "star", "one-time"),
        (8, "tree", "one-time"),
    ],
)
def test_several_parties_are_one(parties: int, topology: str, mask: str) -> None:
    """Protects the equality of every split, topology and mask with all columns in one place; and the messages
    that it costs."""
    said: list[Outgoing] = []
    federation = learnt(parties, topology, mask, overheard=said.append, **SOLVERS["sgd"])
    for found, expected in zip((alphas(federation), scores(federation)), alone("sgd"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)
    check_messages(said, federation.figure("p0", ActiveMetrics.rounds_announced), topology, parties)


def test_several_parties_are_one_with_newton() -> None:
    """Protects the same of the default solver, whose features are kept as float32."""
    federation = learnt(5, **SOLVERS["newton"])
    for found, expected in zip((alphas(federation), scores(federation)), alone("newton"), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("parties", [2, 8])
def test_a_prediction_of_32_bits_is_within_its_bound(parties: int) -> None:
    """Protects the bound that the page states: |df| <= sqrt(2) q pi 2^-32 sum |alpha|."""
    x, _ = data()
    federation = learnt(parties, bits=32, **SOLVERS["sgd"])
    parts = np.array_split(np.arange(COLUMNS), parties)
    exact = federation.evaluate([x[ROWS:, part] for part in parts])
    bound = np.sqrt(2) * parties * np.pi * 2.0**-32 * np.abs(alphas(federation)).sum()
    worst = np.abs(scores(federation) - exact).max()
    assert 0 < worst <= bound
    np.testing.assert_allclose(scores(federation), alone("sgd")[1], rtol=0, atol=1e-7)


def check_messages(overheard: list[Outgoing], announced: float, topology: Any, parties: int) -> None:
    """Of each round, partial sums as they were sent, and the longest chain of them."""
    rounds: dict[bytes, dict[str, str]] = {}
    for one in overheard:
        _, receiver, kind = one.topic.split(".")
        if kind == "sums" and (message := PARTIAL_SUM.decode(one.value)).stage == SUM:
            said = rounds.setdefault(message.round, {})
            assert message.sender not in said
            said[message.sender] = receiver
    assert len(rounds) == announced > 0
    for said in rounds.values():
        assert len(said) == parties - 1
        assert max(chain(said, name) for name in said) == hops(topology, parties)


def chain(said: dict[str, str], name: str) -> int:
    """Messages in a row that end with that of ``name``."""
    return 1 + max((chain(said, one) for one, to in said.items() if to == name), default=0)
