"""Members that restore a changelog with one damaged record."""

from __future__ import annotations

import warnings
from collections import Counter
from random import Random

from resumed import MemoryFederation, Resumed

DAMAGES = 40


def after_rounds(run: MemoryFederation, rounds: int) -> MemoryFederation:
    """The run after this many rounds."""
    run.start()
    for number in range(rounds):
        run.round(number)
    return run


def check_refused_or_harmless(run: MemoryFederation, member: str, seed: str) -> None:
    """Damages 40 records one at a time. Each must be refused by name, or do no harm."""
    resumed = Resumed(run, member, Random(seed))
    found: Counter[bool] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # What others left to the garbage collector may be collected here.
        warnings.simplefilter("ignore", ResourceWarning)
        for _ in range(DAMAGES):
            damaged = resumed.damaged()
            try:
                found[resumed.resume(damaged)] += 1
            except Exception as error:
                raise AssertionError(
                    f"{damaged} was taken back, and: {type(error).__name__}: {error}"
                ) from error
    assert found[False] > DAMAGES / 4, found
