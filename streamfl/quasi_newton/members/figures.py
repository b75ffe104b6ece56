"""Counters of the members, and metrics of a training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamfl.contract.role import Measurement

__all__ = ["COUNTS", "FAR_OUT", "PHASES", "TrafficCounter", "measured_place"]

COUNTS: Mapping[str, str] = {
    "samples": "Records of own columns that were accepted",
    "labels": "Labels that were accepted",
    "displaced_entities": "Entities that were dropped for newer ones",
    "expired_entities": "Entities that were forgotten by age",
    "bytes_sent": "Bytes of messages to other members",
    "ciphertexts_sent": "Ciphertexts in messages to other members, or the numbers in their place",
    "work": "Computations that were started in other processes",
    "iterations": "Iterations that were decided; at a party: steps that it took",
    "decryptions": "Vectors that the coordinator has decrypted",
    "refused_decryptions": "Vectors that were not decrypted because another one was, for the same party and round",
    "implausible_openings": "Decrypted vectors that numbers within the public bounds cannot give",
    "refused_alignments": "Points for an alignment that were stored until it began, and are invalid",
    "repeated_messages": "Messages that were repeated, or too late",
    "trainings": "Trainings that gave a model",
    "expired_batches": "Batches that were dropped for newer ones",
    "failed_trainings": "Trainings that failed",
    "questions": "Questions about entities without a score, asked by the guest or answered by a host",
    "abandoned_questions": "Questions without an answer in time",
    "closed_questions": "Questions that a host did not answer, because it has answered for the allowed number of model versions",
    "answered_entities": "Entities for which a host sent its part of the output",
    "unscored_entities": "Entities without a score, because a part of the output is beyond the public bound or unknown",
    "predictions": "Predictions that were published",
    "muted_rows": "Rows with own columns too far out to be learnt from, counted once a training",
}

FAR_OUT = (
    "are so far out in own columns that a gradient would reveal their labels: the training uses zeros instead "
    "(preprocessing.method = clip and rank leave fewer such rows)"
)
"""Log and failure text on rows that are far out."""

PHASES: Mapping[str, tuple[str, ...]] = {
    "party": (
        *("waits for entities", "is ready", "compares entities", "waits for vectors", "waits for decrypted numbers from the "
            "coordinator"),
        *("waits for hosts' inner products", "waits for the decision", "has learnt a model", "has failed"),
    ),
    "coordinator": ("waits for parties", "parties compare entities", "in a round", "has ended with a model", "has failed"),
}
"""By kind of member, the meaning of its phases' numbers."""


class TrafficCounter:
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
            text = "Ciphertexts sent in the latest complete iteration, or the numbers in their place"
            yield Measurement("iteration_ciphertexts", "gauge", text, self.ciphertexts)
            yield Measurement("iteration_bytes", "gauge", "Bytes of messages sent in the latest complete iteration", self.bytes)


def measured_place(member: str, run: int, phase: int, iteration: int) -> Iterator[Measurement]:
    """Metrics of a member's place in a training. member: a key of :data:`PHASES`."""
    yield Measurement("training", "gauge", "Number of the latest training", run, (), True)
    meanings = ", ".join(f"{number} {meaning}" for number, meaning in enumerate(PHASES[member]))
    yield Measurement("phase", "gauge", f"Phase of the training: {meanings}", phase, (), True)
    yield Measurement("iteration", "gauge", "Iterations of the training that are done", iteration, (), True)
