"""How long from the first label to the first prediction that has learnt, by the speed of a stream.

``python -m benchmarks.fdskl.slow_stream`` prints a table, in seconds of a virtual clock: nothing takes time
but waiting. Three parties with their defaults; an entity's columns and its label come at the same moment. A
history is there at once.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from benchmarks.commands import Markdown
from benchmarks.fdskl.federations import federation_of, named

COLUMNS = named({"a": 2, "b": 1, "c": 2})
ENTITIES, STEP = 4000, 0.02
RATES, HISTORIES = (0.1, 1.0, 10.0, 100.0, 1000.0), (100, 1000, 4000)


def first_model(rate: float, history: int = 0) -> tuple[float, int, int]:
    """Seconds from the first label to model 1, labels that had come by then, and entities that the active
    party standardises by.

    rate: entities a second.
    history: entities that are there at the beginning.
    """
    whole = np.random.default_rng(8).normal(size=(history + ENTITIES, 5))
    labels = (whole[:, 0] * whole[:, 2] > 0).astype(float)
    found = federation_of(COLUMNS, whole, labels, federation={"seed": 3})
    begin, written, together = found.now, 0, max(1, round(rate * STEP))
    with closing(found):
        while not found.held.model.version:
            coming = range(written, max(history, written + together))
            found.write_samples(coming)
            found.write_labels(coming)
            written = coming.stop
            until = begin + (written - history) / rate
            while found.now < until and not found.held.model.version:
                till = min(until, found.now + STEP)
                found.run(till - found.now)
                # It stops early where nothing is waited for.
                found.now = till
        return found.now - begin, written, found.active.partition(0).standardisation.seen


def main() -> None:
    heads = ("seconds to the first model", "labels by then", "standardised by")
    table = Markdown("history", "entities a second", *heads)
    for history, rate in [*((0, rate) for rate in RATES), *((history, 0.1) for history in HISTORIES)]:
        seconds, labels, entities = first_model(rate, history)
        table.add(f"{history:,}", f"{rate:g}", f"{seconds:.1f}", f"{labels:,}", f"{entities:,}")


if __name__ == "__main__":
    main()
