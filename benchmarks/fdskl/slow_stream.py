"""How long from the first label to the first prediction that has learnt, by the speed of a stream.

``python -m benchmarks.fdskl.slow_stream`` prints a table, in seconds of a virtual clock: nothing takes time
but waiting. Three parties with their defaults; an entity's columns and its label come at the same moment. A
history is there at once.
"""

from __future__ import annotations

import numpy as np

from streamfl.fdskl.tools.federation import KernelFederation, settings_of_all

PARTIES, COLUMNS = ("a", "b", "c"), (("a0", "a1"), ("b0",), ("c0", "c1"))
ENTITIES, STEP = 4000, 0.02
RATES, HISTORIES = (0.1, 1.0, 10.0, 100.0, 1000.0), (100, 1000, 4000)


def federation(entities: int) -> KernelFederation:
    """Three parties with columns of so many entities."""
    whole = np.random.default_rng(8).normal(size=(entities, 5))
    settings = settings_of_all(PARTIES, federation={"seed": 3})
    labels = (whole[:, 0] * whole[:, 2] > 0).astype(float)
    return KernelFederation(settings, [whole[:, :2], whole[:, 2:3], whole[:, 3:]], COLUMNS, labels)


def first_model(rate: float, history: int = 0) -> tuple[float, int, int]:
    """Seconds from the first label to model 1, labels that had come by then, and entities that the active
    party standardises by.

    rate: entities a second.
    history: entities that are there at the beginning.
    """
    found = federation(history + ENTITIES)
    begin, written, together = found.now, 0, max(1, round(rate * STEP))
    try:
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
    finally:
        found.close()


def main() -> None:
    print("| history | entities a second | seconds to the first model | labels by then | standardised by |")
    print("| --- | --- | --- | --- | --- |")
    for history, rate in [*((0, rate) for rate in RATES), *((history, 0.1) for history in HISTORIES)]:
        seconds, labels, entities = first_model(rate, history)
        print(f"| {history:,} | {rate:g} | {seconds:.1f} | {labels:,} | {entities:,} |", flush=True)


if __name__ == "__main__":
    main()
