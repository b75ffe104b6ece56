"""The server's shards are a matter of deployment: they change who adds, not what is added."""

from __future__ import annotations

import numpy as np
import pytest

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.federation import Outcome, simulate


def run(shards: int, kernels_per_upload: int) -> Outcome:
    rng = np.random.default_rng(3)
    inputs = rng.uniform(-0.5, 0.5, (40, 5, 4))
    labels = np.clip(0.5 + inputs[..., 0] - 0.5 * inputs[..., 1], 0, 1)
    settings = PofmklSettings.model_validate(
        {
            "federation": {"name": "sharded", "clients": 5, "seed": 2, "shards": shards},
            "role": {"kind": "pofmkl-client"},
            "learning": {
                "staleness": "lockstep",
                "learning_rate": 0.1,
                "features_per_kernel": 16,
                "exploration": 0.5,
            },
            "kernels": {"bandwidths": [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]},
            "uplink": {"kernels_per_upload": kernels_per_upload},
        }
    )
    return simulate(settings, inputs, labels, trace=True, local_only=False)


@pytest.mark.parametrize("kernels_per_upload", [1, 3])
def test_three_shards_predict_as_one(kernels_per_upload: int) -> None:
    """Protects lockstep over shards: a round may only be used when every shard has closed it."""
    one, three = run(1, kernels_per_upload), run(3, kernels_per_upload)
    assert np.abs(one.predictions).max() > 0.1
    np.testing.assert_array_equal(three.predictions, one.predictions)
    np.testing.assert_array_equal(three.parameters, one.parameters)
    np.testing.assert_array_equal(three.trace()["sent"], one.trace()["sent"])
