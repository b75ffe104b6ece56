"""Counters of the members, and metrics of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamfl.role import Measurement

__all__ = ["COUNTS", "FAR_OUT", "PHASES", "Traffic", "measured_place"]

COUNTS: Mapping[str, str] = {
    "samples": "Records of own columns that were taken",
    "labels": "Labels that were taken",
    "displaced_entities": "Entities that gave way to newer ones",
    "expired_entities": "Entities that were forgotten by age",
    "bytes_sent": "Bytes of messages to other members",
    "ciphertexts_sent": "Ciphertexts in messages to other members, or the numbers in their place",
    "work": "Computations that were asked for beside the loop",
    "iterations": "Iterations that were decided: at a party, steps that it took",
    "decryptions": "Vectors that the coordinator has opened",
    "refused_decryptions": "Vectors that were not opened because another one was, for the same party and round",
    "implausible_openings": "Vectors that were opened and cannot have come of numbers within the public bounds",
    "refused_alignments": "Points for an alignment that were kept until it began, and are none",
    "repeated_messages": "Messages that came again, or too late",
    "trainings": "Trainings that a model came of",
    "expired_batches": "Batches that gave way to newer ones",
    "failed_trainings": "Trainings that came to nothing",
    "questions": "Questions about entities without a score, asked by the guest or answered by a host",
    "abandoned_questions": "Questions that no answer came to in time",
    "closed_questions": "Questions that a host did not answer, for it has answered for as many versions of the model as it may",
    "answered_entities": "Entities that a host told its part of the output of",
    "unscored_entities": "Entities whose part of the output is beyond the public bound or unknown, so that there is no score",
    "predictions": "Predictions that were published",
    "muted_rows": "Rows that were too far out in own columns to be learnt from, once a training",
}

FAR_OUT = (
    "are so far out in own columns that a gradient would tell their labels: the training has zeros in their place "
    "(preprocessing.method = clip and rank leave fewer such rows)"
)
"""Log and failure text on rows that are far out."""

PHASES: Mapping[str, tuple[str, ...]] = {
    "party": (
        *("waits for entities", "is ready", "compares entities", "waits for vectors", "waits for what the coordinator decrypts"),
        *("waits for hosts' inner products", "waits for the decision", "has learnt a model", "has failed"),
    ),
    "coordinator": ("waits for parties", "parties compare entities", "in a round", "has ended with a model", "has failed"),
}
"""By kind of member, the meaning of its phases' numbers."""


class Traffic:
    """Counts what a member sends in one iteration.

    place: run and iteration of the latest message. ciphertexts, bytes: sent in the latest iteration of which this process has sent
    every message; None before the first.
    """

    def __init__(self) -> None:
        self.ciphertexts: int | None = None
        self.bytes: int | None = None
        self.place: tuple[int, int] | None = None
        self._is_whole = False
        self._said = (0, 0)

    def add(self, run: int, iteration: int, ciphertexts: int, size: int) -> None:
        """Count a message of this iteration. size: its bytes."""
        if (run, iteration) != self.place:
            if self._is_whole:
                self.ciphertexts, self.bytes = self._said
            # Another process may have sent part of the iteration in which this process began.
            self._is_whole = self.place is not None or iteration == 0
            self.place, self._said = (run, iteration), (0, 0)
        self._said = (self._said[0] + ciphertexts, self._said[1] + size)

    def measure(self) -> Iterator[Measurement]:
        """Metrics of the latest whole iteration; none before the first."""
        if self.ciphertexts is not None and self.bytes is not None:
            text = "Ciphertexts sent in the latest whole iteration, or the numbers in their place"
            yield Measurement("iteration_ciphertexts", "gauge", text, self.ciphertexts)
            yield Measurement("iteration_bytes", "gauge", "Bytes of messages sent in the latest whole iteration", self.bytes)


def measured_place(member: str, run: int, phase: int, iteration: int) -> Iterator[Measurement]:
    """Metrics of a member's place in a training. member: a key of :data:`PHASES`."""
    yield Measurement("training", "gauge", "Number of the latest training", run, (), True)
    meanings = ", ".join(f"{number} {meaning}" for number, meaning in enumerate(PHASES[member]))
    yield Measurement("phase", "gauge", f"Where the training is: {meanings}", phase, (), True)
    yield Measurement("iteration", "gauge", "Iterations of the training that are behind it", iteration, (), True)
