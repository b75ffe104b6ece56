"""Labels that come with their samples: a sample is predicted and learnt in one step, so its prediction waits
for the model too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Headers, Measurement, OperatorNotice, Record, Send, StateChange
from streamfl.encoding.changelog_checks import check_name
from streamfl.kernels import LOGISTIC
from streamfl.pofmkl.client.catch_up import CatchUp
from streamfl.pofmkl.client.challenger_memory import ChallengerMemory
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.label_source import Restore
from streamfl.pofmkl.client.live_challengers import LiveChallengers
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.pending_samples import ClientQueue, PendingSample, PendingSamples
from streamfl.pofmkl.client.predictions import PredictionWriter
from streamfl.pofmkl.client.prequential import PrequentialScores
from streamfl.pofmkl.client.registered_client import Client, ClientKey, Upload
from streamfl.pofmkl.client.uploads import Uploads
from streamfl.pofmkl.learning.learner import Batch, Learner, Learnt
from streamfl.pofmkl.state import CHALLENGER, WAITING
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

__all__ = ["LabelsWithSamples", "StepTrace"]


@dataclass(frozen=True)
class StepTrace:
    """One learnt sample, with everything needed to compute its step again."""

    client: str
    inputs: NDArray[Any]
    label: float
    prediction: float
    kernel_predictions: NDArray[Any]
    kernel_order: NDArray[Any]
    drawn_bin: int
    bin_probability: float
    sent: NDArray[np.bool_]
    log_weights: NDArray[np.float64]


class LabelsWithSamples:
    """Processes each client's samples in order. A sample that has to wait for the model is stored, with those
    behind it.

    trace: called with every labelled sample.
    challengers: learn the same samples. Nothing else depends on them.
    """

    def __init__(
        self,
        learner: Learner,
        model: ModelTable,
        registry: ClientRegistry,
        uploads: Uploads,
        scores: PrequentialScores,
        predictions: PredictionWriter,
        catch_up: CatchUp,
        *,
        budgeted: bool,
        challengers: LiveChallengers | None,
    ) -> None:
        self.trace: Callable[[StepTrace], None] | None = None
        self._learner = learner
        self._model = model
        self._registry = registry
        self._uploads = uploads
        self._scores = scores
        self._predictions = predictions
        self._catch_up = catch_up
        self._budgeted = budgeted
        self._challengers = challengers
        self._memory = ChallengerMemory() if challengers is None else challengers.memory
        self.pending = PendingSamples(learner.dimension, learner.loss is LOGISTIC)

    def open(self, partition: int) -> None:
        self.pending.open(partition)

    def close(self, partition: int) -> None:
        self.pending.close(partition)
        self._memory.close(partition)
        if self._challengers is not None:
            self._challengers.close(partition)

    def arrive(
        self, key: ClientKey, client: Client | None, message: Sample | Label, record: Record, headers: Headers
    ) -> None:
        if client is None or not isinstance(message, Sample):
            raise BadRecord("malformed", "a label came on a topic of its own, and there is no [labels]")
        self.pending.put(client, PendingSample.of(message, record.key, headers))

    def arrive_together(
        self, keys: Sequence[ClientKey], clients: Sequence[Client], samples: Iterable[PendingSample]
    ) -> None:
        """Take samples of these registered clients with these keys, in order."""
        self.pending.put_together(keys, clients, samples)

    def advance(self, now: float, *, tick: bool) -> list[Send]:
        clients: list[Client] = []
        samples: list[PendingSample] = []
        starts: list[int] = []
        uploads: dict[int, Upload] = {}
        pending = self.pending
        admit = self._admit_all if self._uploads.gathers_all else self._admit
        for key, queue in pending.ready.items():
            start = len(samples)
            self._catch_up.limit(queue.client, len(queue.items), pending.counts, waited=key in pending.held)
            admit(queue, samples, uploads, now)
            if len(samples) > start:
                clients.append(queue.client)
                starts.append(start)
            pending.leave(queue, len(samples) - start)
        pending.rest(self._uploads, self._budgeted)
        return self._learn(clients, samples, starts, uploads, now) if samples else []

    def _admit(
        self,
        queue: ClientQueue[PendingSample],
        samples: list[PendingSample],
        uploads: dict[int, Upload],
        now: float,
    ) -> None:
        """Add the samples that a client may learn now to ``samples``, and by place the uploads of labelled
        ones to ``uploads``."""
        items = queue.items
        while items:
            if items[0].label is not None:
                upload = self._uploads.for_label(queue.client, now)
                if upload is None:
                    break
                uploads[len(samples)] = upload
            samples.append(items.popleft())

    def _admit_all(
        self,
        queue: ClientQueue[PendingSample],
        samples: list[PendingSample],
        uploads: dict[int, Upload],
        now: float,
    ) -> None:
        """:meth:`_admit` where an upload gathers all labels of its client."""
        items, start = queue.items, len(samples)
        labelled = [place for place, item in enumerate(items, start) if item.label is not None]
        samples += items
        items.clear()
        if labelled:
            upload = self._uploads.for_label(queue.client, now)
            assert upload is not None
            uploads.update(zip(labelled, repeat(upload)))

    def _learn(
        self,
        clients: list[Client],
        samples: list[PendingSample],
        starts: list[int],
        uploads: dict[int, Upload],
        now: float,
    ) -> list[Send]:
        given = [sample.label for sample in samples]
        batch = Batch(
            rows=np.array([client.row for client in clients]),
            starts=np.array(starts),
            counts=np.diff([*starts, len(samples)]),
            inputs=np.array([sample.features for sample in samples], dtype=self._learner.input_dtype),
            labels=np.array([0.0 if label is None else label for label in given] if None in given else given),
            labelled=np.array(
                [label is not None for label in given] if None in given else [True] * len(given)
            ),
        )
        learnt = self._learner.predict_and_learn(batch, self._model.parameters, self._model.squared_norms)
        sends = self._predictions.records(samples, learnt.predictions)
        orders = self._uploads.gather(uploads, learnt)
        self._scores.count(len(samples), len(samples) - len(uploads))
        if not self._model.published:
            for client, count in zip(clients, batch.counts.tolist(), strict=True):
                self._scores.count_on_version_zero(client, count)
        self._scores.learnt(learnt.predictions[batch.labelled], batch.labels[batch.labelled], now)
        if self._challengers is not None:
            self._challengers.run(
                [
                    (upload.client.key, samples[place].features, samples[place].label)
                    for place, upload in uploads.items()
                ],
                now,
            )
        self._registry.touch_all(clients)
        if self.trace is not None:
            self._tell(uploads, batch, learnt, orders, self.trace)
        return sends + self._uploads.send_complete(uploads.values(), now)

    def _tell(
        self,
        uploads: dict[int, Upload],
        batch: Batch,
        learnt: Learnt,
        orders: dict[int, NDArray[Any]],
        trace: Callable[[StepTrace], None],
    ) -> None:
        after = learnt.log_weights_after
        for place, upload in uploads.items():
            sent = np.zeros(self._learner.kernels, dtype=np.bool_)
            sent[list(upload.record.kernels)] = True
            trace(
                StepTrace(
                    client=upload.client.record.name,
                    inputs=batch.inputs[place],
                    label=float(batch.labels[place]),
                    prediction=float(learnt.scores[place]),
                    kernel_predictions=learnt.kernel_predictions[place],
                    kernel_order=orders.get(place, np.arange(self._learner.kernels)),
                    drawn_bin=upload.record.drawn_bin,
                    bin_probability=upload.record.probability,
                    sent=sent,
                    log_weights=after[place] - after[place].max(),
                )
            )

    @property
    def most_records(self) -> int | None:
        return self._catch_up.most_records(self.pending.counts)

    @property
    def paused(self) -> Collection[tuple[str, int]]:
        return ()

    @property
    def wake_at(self) -> float | None:
        return self.pending.wake_at(self._uploads)

    def set_back(self, now: float) -> None:
        """Samples wait for the model and for bytes, not for a time."""

    def forget(self, client: Client) -> Iterable[bytes]:
        keys = [] if self._challengers is None else self._challengers.forget(client.key)
        return [*self.pending.forget_client(client), *keys]

    def changed_state(self) -> Iterable[StateChange]:
        yield from self.pending.changed_state()
        yield from self._memory.changed_state()

    @property
    def restores(self) -> Mapping[bytes, Restore]:
        return {WAITING.prefix: self._restore_waiting, CHALLENGER.prefix: self._memory.restore}

    def _restore_waiting(self, partition: int, rest: bytes, value: bytes) -> None:
        name = check_name(rest[8:])
        sample = self.pending.decoded(name, value)
        self.pending.restore(self._registry.known((partition, name)), int.from_bytes(rest[:8], "big"), sample)

    def notices(self) -> Iterable[OperatorNotice]:
        return ()

    def measure(self) -> Iterable[Measurement]:
        return () if self._challengers is None else self._challengers.measure()
