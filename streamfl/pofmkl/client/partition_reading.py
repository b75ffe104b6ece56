"""What a client's worker knows of a partition while it decides which of samples and labels is read first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

__all__ = ["LABELS", "MISSES", "MODEL", "SAMPLES", "PartitionReading", "Wait"]

SAMPLES: Final = "samples"
LABELS: Final = "labels"
# Samples wait for this too, on its own: labels that are read meanwhile do not begin the patience anew.
MODEL: Final = "model"
# After so many samples in a row without a label in hand, the labels in hand may be those of samples that were
# deleted.
MISSES = 50
# So many of the last samples with a label tell how many samples have to be read for one.
LATEST = 9
# Offsets between two samples that are no record: each transaction ends with one.
MARKERS = 8


@dataclass(slots=True)
class Wait:
    """An input that waits until another one was read further, or the model has advanced.

    progress: of what it waits for.
    since: when that was seen last, later by the time in which polls were full of other records.
    """

    progress: int
    since: float


@dataclass(slots=True)
class PartitionReading:
    """What was read of an open partition, and which of its inputs wait.

    is_history: whether samples and their labels are a backlog.
    received: records by input.
    written_at: the time of the last of these, by input.
    misses: the last samples in a row that came without a label in hand.
    gaps: samples from one with a label in hand to the next, the last of these.
    sample_came: when the last sample came.
    next_offset: of the last sample, and one more; None: samples came before a restart, nobody knows which.
    deleted: whether samples before the last ones may have been deleted, and none has met its label since.
    met: when the label came that a sample met last; minus infinity: none was met yet.
    held_until: samples that came until then have waited while labels of earlier ones were read: theirs are
        not late.
    late, early: labels since the last look that came after their sample, and the others.
    labels_are_late: whether most of the last labels did.
    learnt: labels.
    without_samples: clients with labels in hand, and no sample although many were read.
    waits: by the input that waits; MODEL: samples.
    """

    is_history: bool = False
    received: dict[str, int] = field(default_factory=lambda: {SAMPLES: 0, LABELS: 0})
    written_at: dict[str, float] = field(default_factory=lambda: {SAMPLES: 0.0, LABELS: 0.0})
    misses: int = 0
    gaps: deque[int] = field(default_factory=lambda: deque([1] * LATEST, LATEST))
    sample_came: float = -math.inf
    next_offset: int | None = 0
    deleted: bool = False
    met: float = -math.inf
    held_until: float = -math.inf
    late: int = 0
    early: int = 0
    labels_are_late: bool = False
    learnt: int = 0
    without_samples: set[str] = field(default_factory=set)
    waits: dict[str, Wait] = field(default_factory=dict)

    @property
    def awaited(self) -> Mapping[str, int]:
        """The progress of what an input waits for, by input."""
        return {SAMPLES: self.received[LABELS], LABELS: self.received[SAMPLES], MODEL: self.learnt}

    @property
    def samples_a_label(self) -> int:
        """How many samples usually come for one with a label in hand. A few long times without labels do not
        count."""
        return median_low(self.gaps)

    def note_sample(self, offset: int, met: float | None) -> None:
        """met: when its label came; None: it is not in hand."""
        if self.next_offset is not None and offset > self.next_offset + MARKERS:
            self.deleted, self.met = True, -math.inf
        self.next_offset = offset + 1
        if met is None:
            self.misses += 1
        else:
            self.gaps.append(self.misses + 1)
            self.note_pair(met)

    def note_label(self, sample_came: float | None, now: float) -> None:
        """sample_came: when its sample came; None: it is not in hand."""
        if sample_came is None:
            self.early += 1
            return
        if self.misses >= MISSES:
            self.held_until = now
        if sample_came > self.held_until:
            self.late += 1
        self.note_pair(now)

    def note_pair(self, label_came: float) -> None:
        """Note that a sample met its label, which came at this time."""
        self.misses, self.deleted, self.met = 0, False, label_came
