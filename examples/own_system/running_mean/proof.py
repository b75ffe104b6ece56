"""What has to hold, whatever happens. Neither a worker nor a command imports it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamfl.testing.faults.clients import Answer
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.proof import Proof

__all__ = ["PROOF", "check"]

PROOF = Proof(check="running_mean.proof:check")


def check(answers: Mapping[str, Sequence[Answer]]) -> None:
    """Every sample is predicted as the mean of all labels before it."""
    for client, own in answers.items():
        mean = 0.5
        for count, answer in enumerate(own, 1):
            require(answer.prediction == mean, f"{client}: {answer.prediction}, not {mean}")
            mean = mean + (answer.label - mean) / count if count > 1 else answer.label
