"""The computation in arrays against a whole federation on the memory bus: what benchmarks measure is what
parties learn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fdskl.proof.direct import Party, learn, median_distance

from streamfl.contract.seeding import rng_for
from streamfl.fdskl.learning.section import KernelLearningSection
from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all

NAMES = ("a", "b", "c")
COLUMNS = (("a0", "a1"), ("b0",), ("c0", "c1", "c2"))
# Half a block of labels makes the first iteration.
ROWS, SEED, FIRST = 320, 5, 32


def federation(learning: dict[str, Any], epochs: int) -> tuple[KernelFederation, list[np.ndarray[Any, Any]]]:
    """One that has learnt from everything, a block of labels at a time."""
    random = np.random.default_rng(SEED)
    whole = random.normal(size=(ROWS, 6))
    labels = ((whole[:, 0] * whole[:, 2] + whole[:, 4]) > 0).astype(float)
    inputs = [whole[:, :2], whole[:, 2:3], whole[:, 3:]]
    settings = settings_of_all(
        NAMES,
        federation={"seed": SEED},
        learning=learning,
        aggregation={"circle_bits": 64},
        standardisation={"columns": False, "transform": "none"},
    )
    found = KernelFederation(settings, inputs, COLUMNS, labels)
    size, shown = learning["block_instances"], list(range(ROWS)) * epochs
    # Labels of the first iteration, of two, and of every later one.
    ends = [FIRST, 2 * FIRST] if learning.get("solver") != "sgd" else []
    ends += range(size * (len(ends) // 2 + 1), len(shown) + size, size)
    for start, end in pairwise([0, *ends]):
        chunk = shown[start:end]
        found.write_samples(chunk)
        found.run(60.0)
        found.write_labels(chunk)
        found.run(60.0)
    return found, inputs


@pytest.mark.long
@pytest.mark.parametrize(
    ("learning", "epochs"),
    [
        ({"window": 150, "sweeps": 3}, 2),
        ({"kernel": "matern", "loss": "smooth-hinge", "bandwidth": 2.0}, 1),
        ({"columns_share": 0.5, "visits": 1}, 1),
        ({"positive_weight": 6.0}, 1),
        ({"solver": "sgd", "step": 2.0, "regularisation": 1e-3, "step_rule": "inverse"}, 1),
    ],
    ids=["dropping", "matern", "sparse", "weighted", "sgd"],
)
def test_arrays_learn_what_a_federation_learns(learning: dict[str, Any], epochs: int) -> None:
    """Protects every accuracy figure: they are of this computation, so it has to be the parties' own, policy
    and all."""
    usual = {
        "features_limit": 48,
        "block_features": 8,
        "block_instances": 64,
        "first_instances": FIRST,
        "regularisation": 1e-4,
    }
    learning = usual | learning
    whole, inputs = federation(learning, epochs)
    secrets = [rng_for(SEED, "fdskl", "simulation", name).bytes(32) for name in NAMES]
    parties = [Party(*given) for given in zip(COLUMNS, inputs, secrets, strict=True)]
    shown = list(range(ROWS)) * epochs
    labels = whole.labels if learning.get("loss") == "square" else 2 * whole.labels - 1
    learnt = learn(parties, labels, KernelLearningSection(**learning), shown, seed=SEED, bits=64)
    active = whole.active.active_partition(0)
    expansion = active.model.snapshot()
    try:
        assert learnt.bandwidth == pytest.approx(expansion.bandwidth, rel=1e-6)
        assert (learnt.first, learnt.iterations) == (expansion.first, expansion.version)
        assert learnt.features_dropped == active.model.dropped
        np.testing.assert_allclose(
            learnt.alphas, expansion.alphas, atol=1e-4 * np.abs(expansion.alphas).max()
        )
        ones = [own[:50] + 0.1 for own in inputs]
        np.testing.assert_allclose(learnt.evaluate(ones), whole.evaluate(ones), atol=1e-3)
        assert np.std(learnt.evaluate(ones)) > 0.1
        # f is published of each entity before its label is learnt from.
        published = [one.score for one in whole.predictions() if one.revision == 0][:ROWS]
        np.testing.assert_allclose(learnt.outputs[: len(published)], published, atol=1e-3)
    finally:
        whole.close()


def test_median_distance_leaves_out_equal_entities() -> None:
    """Protects the bandwidth from tables with many equal rows: at 0 no two entities would be alike."""
    inputs = [np.array([[0.0], [0.0], [1.0], [4.0], [0.0], [5.0]])]
    assert median_distance(inputs, range(6)) == 4.0
    assert median_distance(inputs, range(2)) == 1.0
