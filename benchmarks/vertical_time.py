"""Virtual time that vertical federations need to an accuracy, when parties differ in speed.

``STREAMFL_DATA=folder python -m benchmarks.vertical_time``: MNIST, 784 pixels dealt to seven parties with networks of their own, in
epochs; virtual seconds until .97 of the test rows are right, looked at a hundred times a pass of all parties. Of a party's delay:
the seconds from one batch of 16 embeddings to its next. A row as soon as it is known, then how many times as long synchronous
learning takes; minutes a row.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.vertical import NETWORK, PARTIES, read, settings
from streamfl.simulation.vertical import Delay, VerticalFederation
from streamfl.simulation.vertical_run import adapted, epoch_orders

TARGET = 0.97
LOOKS_A_PASS = 100
# A run that is not there after so many passes' embeddings has missed it.
MOST_PASSES = 15

DELAYS = {
    "two slow": (1, 1, 1, 1, 1, 10, 10),
    "spread": (1, 1.5, 2, 3, 4, 6, 10),
    "equal": (1, 1, 1, 1, 1, 1, 1),
}
# New embeddings of an entity before it is learnt from, how many parties have to have shown it at all, and whether a slow party
# leaves out entities, to be where the fastest is.
RULES = {
    "synchronous": (7, 7, False),
    "asynchronous": (1, 1, False),
    "asynchronous from 5 on": (1, 5, False),
    "3 of 7": (3, 3, False),
    "4 of 7": (4, 4, False),
    "asynchronous, keeping up": (1, 1, True),
    "asynchronous from 5 on, keeping up": (1, 5, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vertical_time", description=__doc__)
    parser.add_argument("--only", action="append", help="'delays, rule' or a pattern; may be given several times")
    parser.add_argument("--seed", type=int, action="append", help="may be given several times; left out: 0")
    chosen = parser.parse_args()
    if "STREAMFL_DATA" not in os.environ:
        sys.exit("STREAMFL_DATA is not set: the folder with mnist.npz")
    print("| delays | rule | seed | virtual seconds to .97 | uploads | seconds |", flush=True)
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    reached: dict[tuple[str, str, int], float | None] = {}
    for delays, rule, seed in product(DELAYS, RULES, chosen.seed or [0]):
        if any(fnmatchcase(f"{delays}, {rule}", pattern) for pattern in chosen.only or ["*"]):
            began = time.perf_counter()
            found, uploads = seconds_to_target(delays, rule, seed)
            reached[delays, rule, seed] = found
            text = "not reached" if found is None else f"{found:,.0f}"
            print(f"| {delays} | {rule} | {seed} | {text} | {uploads:,} | {time.perf_counter() - began:.0f} |", flush=True)
    for (delays, rule, seed), seconds in reached.items():
        synchronous = reached.get((delays, "synchronous", seed))
        if rule != "synchronous" and seconds is not None and synchronous is not None:
            print(f"{delays}, seed {seed}: synchronous takes {synchronous / seconds:.2f} times as long as {rule}", flush=True)


def seconds_to_target(delays: str, rule: str, seed: int) -> tuple[float | None, int]:
    """Virtual seconds, None if it is not reached, and how many embeddings were sent until then."""
    table = read(Path(os.environ["STREAMFL_DATA"]) / "mnist.npz", PARTIES["mnist"])
    wait, quorum, keeps_up = RULES[rule]
    chosen = settings("mnist", {**NETWORK, "learning": {"wait_for": wait}}, seed)
    chosen = chosen.model_copy(update={"alignment": chosen.alignment.model_copy(update={"quorum": quorum})})
    chosen = adapted(chosen, table.learnt, MOST_PASSES, 0)
    inputs, labels = table.part(slice(table.learnt))
    tests = table.part(slice(table.learnt, None))
    federation = VerticalFederation(chosen, inputs, labels, delays=[Delay(mean) for mean in DELAYS[delays]])
    embeddings = table.learnt * len(inputs)
    looked = 0
    found: float | None = None
    with closing(federation):
        federation.write_labels(range(table.learnt))
        # The fastest party's share of all embeddings is the largest.
        fastest = math.ceil(MOST_PASSES * len(inputs) / sum(min(DELAYS[delays]) / delay for delay in DELAYS[delays]))
        batches = epoch_orders(chosen, table.learnt, fastest).reshape(-1, chosen.learning.batch_size)

        def there() -> bool:
            nonlocal looked, found
            sent = int(federation.figure(federation.coordinator_worker, "embeddings"))
            if sent * LOOKS_A_PASS < (looked + 1) * embeddings:
                return False
            looked += 1
            if (federation.evaluate(*tests).accuracy or 0.0) >= TARGET:
                found = federation.seconds
            return found is not None or looked >= MOST_PASSES * LOOKS_A_PASS

        paces = [delay / min(DELAYS[delays]) if keeps_up else 1.0 for delay in DELAYS[delays]]
        federation.replay([batches[np.arange(0, len(batches), pace).astype(int)].ravel().tolist() for pace in paces])
        federation.run(watch=there)
        return found, int(federation.figure(federation.coordinator_worker, "embeddings"))


if __name__ == "__main__":
    main()
