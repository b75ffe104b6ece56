"""Takes samples in a row together, where each of them would be accepted."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

from streamfl.contract.batch import Run
from streamfl.contract.role import Headers, Record
from streamfl.kernels import LOGISTIC, Loss
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.labels_with_samples import LabelsWithSamples
from streamfl.pofmkl.client.pending_samples import PendingSample
from streamfl.records.input_watch import InputWatch
from streamfl.records.samples import SampleColumns
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

    def take(self, run: Run, now: float) -> bool:
        """Take these samples. False, and no change, if one of them may be refused, or its client is not
        registered."""
        samples, records, partition = SampleColumns.of(run.messages), run.records, run.partition
        names, labels = samples.clients, samples.labels
        keys = list(zip(repeat(partition), names))
        clients = self._registry.find_all(keys)
        if clients is None or (self._logistic and not CLASSES.issuperset(labels)):
            return False
        self.watch.samples(partition, names, labels)
        record_keys, headers = [record.key for record in records], map(self._carry, records)
        taken = map(PendingSample, names, samples.ids, samples.features, labels, record_keys, headers)
        self._labels.arrive_together(keys, clients, taken)
        times = times_written_by(now, [record.timestamp for record in records])
        self._registry.hear_samples(partition, clients, times, labels, now)
        return True
