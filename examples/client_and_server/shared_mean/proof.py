"""What has to hold, whatever happens. Neither a worker nor a command imports it."""

from collections.abc import Mapping, Sequence

from shared_mean.config import ShrinkageSection
from streamfl.testing.faults.clients import Answer
from streamfl.testing.faults.observed_messages import require
from streamfl.testing.proof import Proof

PROOF = Proof(check="shared_mean.proof:check")


def check(answers: Mapping[str, Sequence[Answer]]) -> None:
    """Without the client's own labels, all of them, a prediction is a mean of labels, from 0 to 1."""
    weight = ShrinkageSection().labels
    for client, own in answers.items():
        labels = 0.0
        for count, answer in enumerate(own):
            shared = ((answer.prediction or 0.0) * (count + weight) - labels) / weight
            require(-1e-9 <= shared <= 1 + 1e-9, f"{client}: {answer.sample} has a shared mean of {shared}")
            labels += answer.label
