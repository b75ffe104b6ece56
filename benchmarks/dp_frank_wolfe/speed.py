"""What an entity costs: processor time and bytes between members of a federation in one process, on its
memory bus.

``python -m benchmarks.dp_frank_wolfe.speed`` prints both, and the bytes by kind of message. Three parties of
three columns each, and all settings of learning as they come but for nine columns, which are 27 numbers in a
window. ``--wide`` prints instead what each estimator learns and
takes of 1,000 columns of five parties.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np

from benchmarks.commands import arguments
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


def settings_of(name: str, columns: dict[str, int], rows: int, **sections: Any) -> DPFrankWolfeSettings:
    """At epsilon 1, with windows of so many rows."""
    return DPFrankWolfeSettings(
        federation=ColumnFederation(name=name, parties=list(columns), columns=columns),
        role=RoleSection(kind=SERVER),
        window=RowWindowSection(rows=rows),
        privacy=BudgetSection(epsilon=1.0, delta=1e-6, insecure_test_noise=True),
        **sections,
    )


def federation(
    rows: int, windows: int, overheard: Callable[[Outgoing], None] | None = None
) -> FrankWolfeFederation:
    """With all records in the topics. overheard: gets each record that members write."""
    random = np.random.default_rng(0)
    columns = random.uniform(-1, 1, (rows * windows, sum(COLUMNS.values())))
    labels = np.clip(columns @ random.normal(size=columns.shape[1]) / 4, -1, 1)
    settings = settings_of("speed", COLUMNS, rows, learning=SparseLearningSection(columns=9))
    return FrankWolfeFederation(settings, np.hsplit(columns, len(COLUMNS)), labels, overheard=overheard)


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
    columns = dict.fromkeys(names, inputs.shape[1] // len(names))
    for estimator, more in WIDE.items():
        learning = SparseLearningSection.model_validate(
            {"estimator": estimator, "radius": 3.0, "columns": 20, **more}
        )
        bounds = DataBoundsSection(bound=1.5, label_bound=2.0)
        settings = settings_of("wide", columns, WIDE_ROWS, bounds=bounds, learning=learning)
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
    given = arguments(
        "dp_frank_wolfe.speed",
        __doc__,
        rows=(5_000, "of a window"),
        windows=(2, "so many"),
        wide=(False, "what each estimator learns and takes of 1,000 columns"),
    )
    if given.wide:
        wide()
        return
    entities = given.rows * given.windows
    with closing(federation(given.rows, given.windows)) as made:
        seconds, traffic = seconds_of(made), made.traffic()
    print(
        f"{entities:,} entities of {len(COLUMNS)} parties: {1e6 * seconds / entities:.0f} us of one "
        "processor an entity"
    )
    told = ", ".join(
        f"{one.bytes:,} bytes of {kind} in {one.messages:,} messages" for kind, one in traffic.items()
    )
    each = sum(one.bytes for one in traffic.values()) / entities
    print(f"between members: {told}; {each:.1f} bytes an entity")
    kinds = bytes_by_kind(given.rows, given.windows).most_common()
    print("of these, without keys and framing: " + ", ".join(f"{count:,} of {kind}" for kind, count in kinds))


if __name__ == "__main__":
    main()
