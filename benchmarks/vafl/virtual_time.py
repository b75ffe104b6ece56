"""Virtual time that vertical federations need to an accuracy, when parties differ in speed.

``STREAMFL_DATA=folder python -m benchmarks.vafl.virtual_time``: MNIST, 784 pixels dealt to seven parties with
networks of their own, in epochs; virtual seconds until .97 of the test rows are right (``--target`` another
share), looked at a hundred times a pass of all parties: at one look, which may be luck, and in the mean of
five looks in a row. Of a party's delay: the seconds from one batch of 16 embeddings to its next; coordinator
and network take no time. A row as soon as it is known, then all seeds of a rule together, and how many times
as long synchronous learning takes; up to minutes a row.
"""

from __future__ import annotations

import math
import time
from contextlib import closing
from itertools import product

from benchmarks.commands import Markdown, arguments, is_wanted, several
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
    chosen = arguments(
        "vafl.virtual_time",
        __doc__,
        only=several("'delays, rule' or a pattern"),
        seed=several("left out: 0", kind=int),
        target=(TARGET, "the share that is to be right"),
    )
    looked = ("virtual seconds at one look", "at five in a row", "uploads", "seconds")
    rows = Markdown("delays", "rule", "seed", *looked)
    reached: dict[tuple[str, str], dict[int, float]] = {}
    for delays, rule, seed in product(DELAYS, RULES, chosen.seed or [0]):
        if is_wanted(f"{delays}, {rule}", chosen.only):
            began = time.perf_counter()
            *found, uploads = seconds_to_target(delays, rule, seed, chosen.target)
            reached.setdefault((delays, rule), {})[seed] = found[1]
            texts = [f"{one:,.0f}" if math.isfinite(one) else "not reached" for one in found]
            rows.add(delays, rule, seed, *texts, f"{uploads:,}", f"{time.perf_counter() - began:.0f}")
    times = Markdown("delays", "rule", "seconds in a row, mean of seeds", "synchronous takes times as long")
    for (delays, rule), own in reached.items():
        slow = reached.get((delays, "synchronous"), {})
        ratios = ", ".join(f"{slow.get(seed, math.nan) / one:.2f}" for seed, one in own.items())
        times.add(delays, rule, f"{sum(own.values()) / len(own):,.0f}", ratios)


def seconds_to_target(delays: str, rule: str, seed: int, target: float) -> tuple[float, float, int]:
    """Virtual seconds at one look and in a row, infinite where not reached, and how many embeddings were sent
    until then."""
    table = read("mnist", PARTIES["mnist"])
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
