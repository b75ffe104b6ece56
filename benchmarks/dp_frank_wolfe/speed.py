"""What an entity costs: processor time and bytes between members of a federation in one process, on its
memory bus.

``python -m benchmarks.dp_frank_wolfe.speed`` prints both, and the bytes by kind of message. Three parties of
three columns each, and all settings of learning as they come but for nine columns, which are 27 numbers in a
window. ``--profile`` shows where the time goes. ``--wide`` prints instead what each estimator learns and
takes of 1,000 columns of five parties.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from benchmarks.dp_frank_wolfe.problems import synthetic
from benchmarks.figures import Figure, size
from streamfl.configuration.settings import RoleSection
from streamfl.dp_frank_wolfe.config import (
    SERVER,
    BudgetSection,
    ColumnFederation,
    DataBoundsSection,
    DPFrankWolfeSettings,
    RowWindowSection,
    SparseLearningSection,
)
from streamfl.dp_frank_wolfe.messages import codec
from streamfl.dp_frank_wolfe.tools.draws import mean_and_deviation
from streamfl.dp_frank_wolfe.tools.federation import FrankWolfeFederation
from streamfl.dp_frank_wolfe.tools.run import run_fits
from streamfl.roles.fragment_encoding import MARK
from streamfl.runtime.bus import Outgoing
from streamfl.simulation.vertical.table import VerticalTable

WIDE_ROWS, WIDE_TEST = 10_000, 2_000
WIDE: dict[str, dict[str, Any]] = {
    "marginal": {},
    "frank-wolfe": {"iterations": 6, "sketch": "identity"},
    "two-round": {},
}
COLUMNS = {"hospital": 3, "laboratory": 3, "pharmacy": 3}


def federation(
    rows: int, windows: int, overheard: Callable[[Outgoing], None] | None = None
) -> FrankWolfeFederation:
    """With all records in the topics. overheard: gets each record that members write."""
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
    return FrankWolfeFederation(settings, inputs, labels, overheard=overheard)


def wide() -> None:
    """R^2, what is sent, and seconds, of each estimator at epsilon 1."""
    problem = synthetic(WIDE_ROWS, 0)
    names = [f"party-{number}" for number in range(problem.parties)]
    inputs = np.vstack([problem.features, problem.test[:WIDE_TEST]]).astype(np.float64)
    table = VerticalTable(
        np.hsplit(inputs, len(names)),
        np.concatenate([problem.labels, problem.test_labels[:WIDE_TEST]]),
        WIDE_TEST,
    )
    for estimator, more in WIDE.items():
        settings = DPFrankWolfeSettings(
            federation=ColumnFederation(
                name="wide", parties=names, columns=dict.fromkeys(names, inputs.shape[1] // len(names))
            ),
            role=RoleSection(kind=SERVER),
            window=RowWindowSection(rows=WIDE_ROWS),
            bounds=DataBoundsSection(bound=1.5, label_bound=2.0),
            privacy=BudgetSection(epsilon=1.0, delta=1e-6, insecure_test_noise=True),
            learning=SparseLearningSection.model_validate(
                {"estimator": estimator, "radius": 3.0, "columns": 20, **more}
            ),
        )
        begun = time.process_time()
        found = run_fits(settings, table, draws=5)
        seconds, sent = time.process_time() - begun, sum(one["bytes"] for one in found.traffic.values())
        best = max(one for one in found.alone.values() if one is not None)
        print(
            f"{estimator}: R^2 {mean_and_deviation(found.r2_draws)} (best party alone {best:.3f}, pooled "
            f"{found.pooled:.3f}), {found.uplink_numbers:,} numbers, {sent:,} bytes, {seconds:.1f} s of one "
            "processor",
            flush=True,
        )


def seconds_of(made: FrankWolfeFederation) -> float:
    """Of one processor, until everything is learnt."""
    begun = time.process_time()
    while made.turn():
        pass
    return time.process_time() - begun


def bytes_by_kind(rows: int, windows: int) -> Counter[str]:
    """Of the values of messages between members, by their kind: in a run of its own, for to listen takes
    time."""
    records: list[Outgoing] = []
    with closing(federation(rows, windows, records.append)) as made:
        seconds_of(made)
    decode, found = codec(made.settings.message_bytes).decode, Counter[str]()
    for value in (record.value or b"" for record in records):
        found["parts of long ones" if value[:1] == MARK else decode(value).kind] += len(value)
    return found


def measure() -> Iterator[Figure]:
    """What ``python -m benchmarks`` prints of it."""
    rows, windows = size(5_000, 100), 2
    with closing(federation(rows, windows)) as made:
        seconds = seconds_of(made)
    yield Figure(
        "DP Frank-Wolfe: an entity of three parties",
        1e6 * seconds / (rows * windows),
        "us of one processor",
        150,
        True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dp_frank_wolfe.speed")
    parser.add_argument("--rows", type=int, default=5_000)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--wide", action="store_true")
    given = parser.parse_args()
    if given.wide:
        wide()
        return
    made = federation(given.rows, given.windows)
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    seconds = seconds_of(made)
    profile.disable()
    entities = given.rows * given.windows
    traffic = made.traffic()
    made.close()
    if given.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    print(
        f"{entities:,} entities of {len(COLUMNS)} parties: {1e6 * seconds / entities:.0f} us of one "
        "processor an entity"
    )
    told = ", ".join(
        f"{one.bytes:,} bytes of {kind} in {one.messages:,} messages" for kind, one in traffic.items()
    )
    print(
        f"between members: {told}; {sum(one.bytes for one in traffic.values()) / entities:.1f} bytes an "
        "entity"
    )
    kinds = bytes_by_kind(given.rows, given.windows).most_common()
    print("of these, without keys and framing: " + ", ".join(f"{count:,} of {kind}" for kind, count in kinds))


if __name__ == "__main__":
    main()
