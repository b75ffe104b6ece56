"""Takes samples in a row together, where each of them would be accepted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamfl.contract.role import Headers, Received, Record
from streamfl.kernels import LOGISTIC, Loss
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.labels_with_samples import LabelsWithSamples
from streamfl.records.input_watch import InputWatch
from streamfl.state.clock_guard import times_written_by

__all__ = ["SampleRuns"]

# Of the logistic loss.
CLASSES = {None, 0.0, 1.0}


class SampleRuns:
    """Does with samples in a row what the role does with each of them, and asks each part once for all.

    registry, watch, labels: get the samples.
    carry: from a record to the headers of the prediction.
    loss: says whether labels are classes.
    """

    def __init__(
        self,
        registry: ClientRegistry,
        watch: InputWatch,
        labels: LabelsWithSamples,
        carry: Callable[[Record], Headers],
        loss: Loss,
    ) -> None:
        self._registry = registry
        self.watch = watch
        self._labels = labels
        self._carry = carry
        self._logistic = loss is LOGISTIC

    def take(self, run: Sequence[Received], now: float) -> bool:
        """Take these samples. False, and no change, if one of them may be refused, or its client is not
        registered."""
        samples, records = [received.message for received in run], [received.record for received in run]
        partitions, names = [record.partition for record in records], [sample.client for sample in samples]
        labels = [sample.label for sample in samples]
        clients = self._registry.find_all(zip(partitions, names, strict=True))
        if clients is None or (self._logistic and not CLASSES.issuperset(labels)):
            return False
        self.watch.samples(partitions, names, labels)
        keys, headers = [record.key for record in records], map(self._carry, records)
        self._labels.arrive_together(clients, zip(samples, keys, headers, strict=True))
        self._registry.hear_samples(
            clients, times_written_by(now, [record.timestamp for record in records]), labels, now
        )
        return True
