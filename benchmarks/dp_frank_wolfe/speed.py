"""What an entity costs: processor time and bytes between members of a federation in one process, on its memory bus.

``python -m benchmarks.dp_frank_wolfe.speed`` prints both. Three parties of three columns each, and all settings of learning as they
come but for nine columns, which are 27 numbers in a window. ``--profile`` shows where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time

import numpy as np

from streamfl.dp_frank_wolfe.config import (
    SERVER,
    BudgetSection,
    ColumnFederation,
    DPFrankWolfeSettings,
    RowWindowSection,
    SparseLearningSection,
)
from streamfl.dp_frank_wolfe.lab.federation import ASKS, RELEASES, FrankWolfeFederation
from streamfl.settings import RoleSection

COLUMNS = {"hospital": 3, "laboratory": 3, "pharmacy": 3}


def federation(rows: int, windows: int) -> FrankWolfeFederation:
    """With all records in the topics."""
    random = np.random.default_rng(0)
    columns = random.uniform(-1, 1, (rows * windows, sum(COLUMNS.values())))
    labels = np.clip(columns @ random.normal(size=columns.shape[1]) / 4, -1, 1)
    settings = DPFrankWolfeSettings(
        federation=ColumnFederation(name="speed", parties=list(COLUMNS), columns=COLUMNS),
        role=RoleSection(kind=SERVER),
        window=RowWindowSection(rows=rows),
        privacy=BudgetSection(epsilon=1.0, delta=1e-6, insecure_test_noise=True),
        learning=SparseLearningSection(columns=9),
    )
    inputs = np.hsplit(columns, np.cumsum(list(COLUMNS.values()))[:-1])
    return FrankWolfeFederation(settings, inputs, labels)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dp_frank_wolfe.speed")
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    made = federation(given.rows, given.windows)
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    begun = time.process_time()
    while made.turn():
        pass
    seconds = time.process_time() - begun
    profile.disable()
    entities = given.rows * given.windows
    traffic = {kind: made.traffic(kind) for kind in (RELEASES, ASKS)}
    made.close()
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    print(f"{entities:,} entities of {len(COLUMNS)} parties: {1e6 * seconds / entities:.0f} us of one processor an entity")
    told = ", ".join(f"{one.bytes:,} bytes of {kind} in {one.messages:,} messages" for kind, one in traffic.items())
    print(f"between members: {told}; {sum(one.bytes for one in traffic.values()) / entities:.1f} bytes an entity")


if __name__ == "__main__":
    main()
