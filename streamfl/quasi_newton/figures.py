"""What members count, and how a metric says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from streamfl.role import Measurement

__all__ = ["COUNTS", "measured"]

COUNTS: Mapping[str, str] = {
    "samples": "Records of own columns that were taken",
    "labels": "Labels that were taken",
    "displaced_entities": "Entities that gave way to newer ones",
    "expired_entities": "Entities that were forgotten by age",
    "bytes_sent": "Bytes of messages to other members",
    "ciphertexts_sent": "Ciphertexts in messages to other members, or the numbers in their place",
    "work": "Computations that were asked for beside the loop",
    "iterations": "Iterations that the coordinator has decided",
    "decryptions": "Vectors that the coordinator has opened",
    "refused_decryptions": "Vectors that were not opened because another one was, for the same party and round",
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
}


def measured(counts: Counter[str], refused: Counter[str]) -> Iterator[Measurement]:
    """All counts, those that are 0 too, and what was refused by its reason."""
    for name, text in COUNTS.items():
        yield Measurement(name, "counter", text, counts[name])
    for reason, count in sorted(refused.items()):
        yield Measurement("refused_messages", "counter", "Messages that were refused", count, (("reason", reason),))
