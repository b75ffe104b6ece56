"""Virtual time that vertical federations need to an accuracy, when parties differ in speed.

``STREAMFL_DATA=folder python -m benchmarks.vafl.virtual_time``: MNIST, 784 pixels dealt to seven parties with
networks of their own, in epochs; virtual seconds until .97 of the test rows are right (``--target`` another
share), looked at a hundred times a pass of all parties: at one look, which may be luck, and in the mean of
five looks in a row. Of a party's delay: the seconds from one batch of 16 embeddings to its next; coordinator
and network take no time. A row as soon as it is known, then all seeds of a rule together, and how many times
as long synchronous learning takes; up to minutes a row.
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

from benchmarks.vafl.accuracy import NETWORK, PARTIES, read, settings
from streamfl.simulation.parties import Delay
from streamfl.simulation.vertical.members import HEAD
from streamfl.simulation.vertical.table import epoch_orders
from streamfl.vafl.metrics import CoordinatorMetrics
from streamfl.vafl.tools.federation import VerticalFederation
from streamfl.vafl.tools.run import adapted

TARGET = 0.97
LOOKS_A_PASS = 100
IN_A_ROW = 5
# A run that is not there after so many passes' embeddings has missed it.
MOST_PASSES = 15

DELAYS = {
    "two slow": (1, 1, 1, 1, 1, 10, 10),
    "spread": (1, 1.5, 2, 3, 4, 6, 10),
    "equal": (1, 1, 1, 1, 1, 1, 1),
}
# [learning] wait_for, new embeddings of an entity before it is learnt from, and quorum, parties that have to
# have shown it; [alignment] reply_seconds, how long that quorum is waited for.
RULES: dict[str, tuple[int, int | None, float]] = {
    "synchronous": (7, None, 10.0),
    "nobody waits": (1, 1, 10.0),
    "as it is": (1, None, 10.0),
    "reply_seconds 5": (1, None, 5.0),
    "quorum 5": (1, 5, 10.0),
    "3 of 7": (3, 3, 10.0),
    "4 of 7": (4, 4, 10.0),
    "5 of 7": (5, 5, 10.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vafl.virtual_time", description=__doc__)
    parser.add_argument(
        "--only", action="append", help="'delays, rule' or a pattern; may be given several times"
    )
    parser.add_argument("--seed", type=int, action="append", help="may be given several times; left out: 0")
    parser.add_argument(
        "--target", type=float, default=TARGET, help=f"the share that is to be right; left out: {TARGET}"
    )
    chosen = parser.parse_args()
    if "STREAMFL_DATA" not in os.environ:
        sys.exit("STREAMFL_DATA is not set: the folder with mnist.npz")
    print(
        "| delays | rule | seed | virtual seconds at one look | at five in a row | uploads | seconds |",
        flush=True,
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    reached: dict[tuple[str, str, int], tuple[float, float]] = {}
    for delays, rule, seed in product(DELAYS, RULES, chosen.seed or [0]):
        if any(fnmatchcase(f"{delays}, {rule}", pattern) for pattern in chosen.only or ["*"]):
            began = time.perf_counter()
            *found, uploads = seconds_to_target(delays, rule, seed, chosen.target)
            reached[delays, rule, seed] = found[0], found[1]
            texts = [f"{one:,.0f}" if math.isfinite(one) else "not reached" for one in found]
            columns = (delays, rule, str(seed), *texts, f"{uploads:,}", f"{time.perf_counter() - began:.0f}")
            print(f"| {' | '.join(columns)} |", flush=True)
    print(
        "| delays | rule | seconds in a row, mean of seeds | synchronous takes times as long |\n| --- | --- "
        "| --- | --- |"
    )
    for delays, rule in dict.fromkeys((delays, rule) for delays, rule, _ in reached):
        own = {seed: lasting for (*place, seed), (_, lasting) in reached.items() if place == [delays, rule]}
        slow = [reached.get((delays, "synchronous", seed), (math.nan, math.nan))[1] for seed in own]
        ratios = ", ".join(f"{one / other:.2f}" for one, other in zip(slow, own.values(), strict=True))
        print(f"| {delays} | {rule} | {sum(own.values()) / len(own):,.0f} | {ratios} |", flush=True)


def seconds_to_target(delays: str, rule: str, seed: int, target: float) -> tuple[float, float, int]:
    """Virtual seconds at one look and in a row, infinite where not reached, and how many embeddings were sent
    until then."""
    table = read(Path(os.environ["STREAMFL_DATA"]) / "mnist.npz", PARTIES["mnist"])
    wait, quorum, patience = RULES[rule]
    chosen = settings("mnist", {**NETWORK, "learning": {"wait_for": wait, "quorum": quorum}}, seed)
    chosen = chosen.model_copy(
        update={"alignment": chosen.alignment.model_copy(update={"reply_seconds": patience})}
    )
    chosen = adapted(chosen, table.learnt, MOST_PASSES, 0)
    inputs, labels = table.part(slice(table.learnt))
    tests = table.part(slice(table.learnt, None))
    federation = VerticalFederation(chosen, inputs, labels, delays=[Delay(mean) for mean in DELAYS[delays]])
    embeddings = table.learnt * len(inputs)
    looks: list[float] = []
    first = lasting = math.inf
    with closing(federation):
        federation.write_labels(range(table.learnt))
        # The fastest party's share of all embeddings is the largest.
        fastest = math.ceil(
            MOST_PASSES * len(inputs) / sum(min(DELAYS[delays]) / delay for delay in DELAYS[delays])
        )
        order = epoch_orders(chosen.federation.seed, table.learnt, fastest).ravel().tolist()

        def there() -> bool:
            nonlocal first, lasting
            sent = int(federation.figure(HEAD, CoordinatorMetrics.embeddings))
            if sent * LOOKS_A_PASS < (len(looks) + 1) * embeddings:
                return False
            looks.append(federation.evaluate(*tests).accuracy or 0.0)
            if looks[-1] >= target:
                first = min(first, federation.seconds)
            if len(looks) >= IN_A_ROW and sum(looks[-IN_A_ROW:]) >= IN_A_ROW * target:
                lasting = federation.seconds
            return math.isfinite(lasting) or len(looks) >= MOST_PASSES * LOOKS_A_PASS

        federation.replay([order] * len(inputs))
        federation.run(watch=there)
        return first, lasting, int(federation.figure(HEAD, CoordinatorMetrics.embeddings))


if __name__ == "__main__":
    main()
