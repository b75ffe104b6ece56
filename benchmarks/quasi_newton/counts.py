"""What ``benchmarks.counts`` counts: a guest's and a host's worker, an entity of a training of four epochs
under encryption.

The work that deployments give to processes of a pool is done within the step here, and counted.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
from quasi_newton.proof.made_up_secrets import KEY_BITS

from benchmarks.counts import Meter
from streamfl.configuration.settings import RoleSection
from streamfl.quasi_newton.config import (
    COORDINATOR,
    PrivateAlignmentSection,
    QuasiNewtonFederation,
    QuasiNewtonSettings,
)
from streamfl.quasi_newton.encryption.section import EncryptionSection
from streamfl.quasi_newton.learning.section import CurvatureLearningSection
from streamfl.quasi_newton.tools.federation import CurvatureFederation
from streamfl.quasi_newton.tools.run import adapted

PARTIES, ROWS, BATCH, EPOCHS = {"bank": 4, "shop": 3}, 600, 256, 4


def _run(meter: Meter) -> None:
    guest, *_ = PARTIES
    settings = QuasiNewtonSettings(
        federation=QuasiNewtonFederation(name="counts", parties=list(PARTIES)),
        role=RoleSection(kind=COORDINATOR),
        learning=CurvatureLearningSection(batch=BATCH, epochs=EPOCHS),
        alignment=PrivateAlignmentSection(entities=BATCH),
        encryption=EncryptionSection(key_bits=KEY_BITS, key_fingerprint="0" * 64, key_file=""),
    )
    inputs = np.random.default_rng(0).normal(size=(ROWS, sum(PARTIES.values())))
    parts = np.hsplit(inputs, np.cumsum(list(PARTIES.values()))[:-1])
    labels = (inputs[:, 0] + inputs[:, 5] > 0).astype(np.float64)
    with closing(CurvatureFederation(adapted(settings, ROWS), parts, labels)) as federation:
        for name, worker in federation.workers.items():
            if name:
                meter.watch("guest" if name == guest else "host", worker, ROWS)
        meter.begin()
        while federation.turn():
            pass
        if not federation.over or federation.failure is not None:
            raise RuntimeError(f"the training failed: {federation.failure}")


WORKLOADS = (_run,)
