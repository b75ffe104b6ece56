"""The uploads of a worker's clients, from an upload's first label until it is sent."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Measurement, Send
from streamfl.encoding.wire import VERSION, decode_array, encode_array, encoded_size
from streamfl.pofmkl.client.bandwidth import Budgets
from streamfl.pofmkl.client.catch_up import CatchUp
from streamfl.pofmkl.client.client_record import UploadRecord
from streamfl.pofmkl.client.client_registry import ClientRegistry
from streamfl.pofmkl.client.given import ClientGiven
from streamfl.pofmkl.client.model import ModelTable
from streamfl.pofmkl.client.registered_client import Client, ClientKey, Upload
from streamfl.pofmkl.client.staleness import StalenessPolicy
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.learning.bins import draw_bins
from streamfl.pofmkl.learning.learner import Learnt
from streamfl.pofmkl.learning.rows import RowPool, in_turns
from streamfl.pofmkl.messages import AWAITED, LARGEST_STEP, UPDATE, Update
from streamfl.pofmkl.metrics import UplinkMetrics

__all__ = ["Uploads"]

# Steps computed at a time: with all kernels in a bin, the samples of a poll have hundreds of thousands.
BLOCK_STEPS = 512


class Uploads:
    """Begins, gathers and sends uploads. An open upload is stored in its client's record.

    If the learner's steps may be added up, an upload gathers all labels that its client learns while it is
    open. Otherwise it has one label.

    given: has the learner, which computes the steps.
    model: gives the versions that uploads are made on.
    staleness_policy: how many labels a client may learn on one version.
    catch_up: the same for a client that is behind.
    budgets: the clients' byte budgets.
    registry: the clients.
    """

    def __init__(
        self,
        settings: PofmklSettings,
        given: ClientGiven,
        model: ModelTable,
        staleness_policy: StalenessPolicy,
        catch_up: CatchUp,
        budgets: Budgets,
        registry: ClientRegistry,
    ) -> None:
        learner = given.learner
        self.sent = 0.0
        self._learner = learner
        self._model = model
        self._staleness_policy = staleness_policy
        self._asynchronous = staleness_policy.samples_per_version is None
        # Whether a client's open upload gathers all its labels, however many they are, and nothing counts
        # them.
        self.gathers_all = learner.summed and self._asynchronous and not catch_up.samples
        self._catch_up = catch_up
        self._most_kernels = min(settings.kernels_per_upload or learner.kernels, learner.kernels)
        self._exploration = settings.learning.effective_exploration
        self._budgets = budgets
        self._registry = registry
        self._fingerprint = given.fingerprint
        # By a message's headers: its bytes besides key and value.
        self._framing = {
            headers: encoded_size(None, None, headers) + given.seal_bytes for headers in ((), AWAITED)
        }
        self._open: dict[ClientKey, Upload] = {}
        self._due: list[tuple[float, ClientKey]] = []
        self._steps = RowPool(learner.row_length)
        self._row_bytes = learner.row_length * np.dtype(learner.dtype).itemsize
        self._remembered_bytes = learner.row_length * self._steps.numbers.itemsize
        self._bytes = self._skipped = 0.0
        self._sent_from: set[int] = set()

    def is_open(self, client: Client) -> bool:
        return client.key in self._open

    # ---- begin

    def may_learn(self, client: Client) -> bool:
        """Whether the client may learn another label on this version of the model."""
        return self._staleness_policy.may_learn(
            client.record, self._model.versions
        ) and self._catch_up.may_learn(client)

    def for_label(self, client: Client, now: float) -> Upload | None:
        """The upload that gathers the client's next label; None: the label has to wait."""
        # Asynchronous, only a client that is behind ever waits.
        if (client.limited or not self._asynchronous) and not self.may_learn(client):
            return None
        upload = self._open.get(client.key) or self._begin(client, now)
        if upload is not None:
            upload.record.awaited = client.limited
            if not self._asynchronous:
                self._staleness_policy.count(client.record, self._model.versions)
            if self._catch_up.samples:
                self._catch_up.count(client)
            client.uploading = client.uploading or upload.kernels_allowed > 0
        return upload

    def affordable_at(self, client: Client) -> float | None:
        """When a client that waits only for its byte budget can go on; None: it does not wait for its
        budget."""
        bucket = client.bucket
        if bucket is None or self._staleness_policy.samples_per_version is None or client.key in self._open:
            return None
        # The client is checked again with the next version. A time in the past would only wake the worker
        # again and again.
        if not self.may_learn(client):
            return None
        lacking = client.cost.bytes_for(1) - bucket.tokens
        # A microsecond is added: times are rounded, and a tick that comes too early would ask for another at
        # the same time.
        return bucket.filled_at + lacking / bucket.rate + 1e-6 if lacking > 0 else None

    def _begin(self, client: Client, now: float) -> Upload | None:
        """A new upload; None: the client has to wait for bytes in its budget.

        In lockstep and bounded, a client goes on only when it can send a kernel. An update without kernels
        would cost bytes and teach nothing, and the bucket would never fill.
        """
        bucket, allowed = client.bucket, self._most_kernels
        if bucket is not None:
            allowed = client.cost.kernels_within(bucket.available(now), self._learner.kernels)
            if allowed:
                # The bytes are taken here, so that sending can never overdraw the bucket.
                bucket.take(client.cost.bytes_for(allowed), now)
            elif self._staleness_policy.samples_per_version is not None:
                return None
            else:
                self._skipped += 1
        record = client.record
        upload = Upload(
            client, UploadRecord(now, self._model.versions), allowed, client.draws[record.uploads_drawn]
        )
        record.uploads_drawn += 1
        if self._learner.summed:
            self._keep_open(upload)
        return upload

    def _keep_open(self, upload: Upload) -> None:
        self._open[upload.client.key] = upload
        heapq.heappush(
            self._due, (upload.record.opened_at + self._staleness_policy.upload_interval, upload.client.key)
        )

    # ---- gather

    def gather(self, uploads: dict[int, Upload], learnt: Learnt) -> dict[int, NDArray[Any]]:
        """Add to each upload the steps of the sample at its place.

        Returns, for each upload that began, the kernels in order of their weight, by the sample's place.
        """
        orders = self._draw_bins(uploads, learnt.log_weights)
        self._add_steps(uploads, learnt)
        return orders

    def _draw_bins(
        self, uploads: dict[int, Upload], log_weights: NDArray[np.float64]
    ) -> dict[int, NDArray[Any]]:
        """Draw the bin of every upload that begins, from the weights before its first label   (Algorithm
        1)."""
        beginning: dict[int, Upload] = {}
        for place, upload in uploads.items():
            record = upload.record
            if not record.samples:
                beginning[place] = upload
            record.samples += 1
        if not beginning:
            return {}
        at = list(beginning)
        sizes = np.array([upload.kernels_allowed for upload in beginning.values()])
        uniforms = np.array([upload.uniform for upload in beginning.values()])
        bins, orders = draw_bins(log_weights[at], sizes, uniforms, self._exploration)
        rows = iter(self._steps.borrow(sum([len(kernels) for _, _, kernels in bins])))
        for upload, (number, probability, kernels) in zip(beginning.values(), bins, strict=True):
            record = upload.record
            record.drawn_bin, record.probability, record.kernels = number, probability, kernels
            upload.step_rows = list(islice(rows, len(kernels)))
        return dict(zip(at, orders, strict=True))

    def _add_steps(self, uploads: dict[int, Upload], learnt: Learnt) -> None:
        """Add each sample's steps to its upload, for the kernels of the upload's bin."""
        if not uploads:
            return
        gathering = list(uploads.values())
        rows_of = [upload.step_rows for upload in gathering]
        held = list(map(len, rows_of))
        row_of = np.array(list(chain.from_iterable(rows_of)), dtype=np.intp)
        kernel_of = np.array(
            list(chain.from_iterable([upload.record.kernels for upload in gathering])), dtype=np.intp
        )
        sample_of = np.repeat(np.array(list(uploads), dtype=np.intp), held)
        probability_of = np.repeat(np.array([upload.record.probability for upload in gathering]), held)
        turns = in_turns(row_of)
        for start in range(0, len(row_of), BLOCK_STEPS):
            block = turns[start : start + BLOCK_STEPS]
            with np.errstate(over="ignore", invalid="ignore"):
                steps = learnt.steps(sample_of[block], kernel_of[block], probability_of[block])
            if not np.abs(steps).max(initial=0.0) <= LARGEST_STEP:
                # Gathered steps are stored, and numbers that are not finite could not be restored.
                steps = np.clip(np.nan_to_num(steps), -LARGEST_STEP, LARGEST_STEP)
            self._steps.add(row_of[block], steps)

    # ---- send

    def send_complete(self, uploads: Iterable[Upload], now: float) -> list[Send]:
        """Send the uploads that can gather nothing more before the model changes: the model may wait for
        them."""
        if self.gathers_all:
            return []
        complete = list(dict.fromkeys(uploads))
        if self._learner.summed:
            complete = [upload for upload in complete if self._is_complete(upload)]
        return self._send(complete, now)

    def send_outdated(self, now: float) -> list[Send]:
        """Send the open uploads that were begun on another version of the model."""
        return self._send(
            [upload for upload in self._open.values() if upload.record.versions != self._model.versions], now
        )

    def send_due(self, now: float) -> list[Send]:
        """Send the uploads that have been open for the upload interval."""
        # Two uploads of one client that began at one time leave two equal entries.
        due: dict[ClientKey, Upload] = {}
        while (due_at := self.next_due) is not None and due_at <= now:
            key = heapq.heappop(self._due)[1]
            due[key] = self._open[key]
        return self._send(list(due.values()), now)

    def take_sent_from(self) -> set[int]:
        """The partitions of the clients that sent something since the last call."""
        sent_from, self._sent_from = self._sent_from, set()
        return sent_from

    @property
    def next_due(self) -> float | None:
        """When the next upload has been open for the upload interval."""
        # An upload that a new version of the model ended early has left its entry behind.
        while self._due:
            due_at, key = self._due[0]
            upload = self._open.get(key)
            if (
                upload is not None
                and upload.record.opened_at + self._staleness_policy.upload_interval == due_at
            ):
                return due_at
            heapq.heappop(self._due)
        return None

    def _is_complete(self, upload: Upload) -> bool:
        client = upload.client
        return self._staleness_policy.is_used_up(client.record) or self._catch_up.is_used_up(client)

    def _send(self, uploads: Sequence[Upload], now: float) -> list[Send]:
        """End these uploads and send what they gathered."""
        if not uploads:
            return []
        rows: list[int] = []
        for upload in uploads:
            rows += upload.step_rows
        content = encode_array(
            np.clip(self._steps.numbers[rows], -LARGEST_STEP, LARGEST_STEP).astype(self._learner.dtype)
        )
        self._registry.touch_all([upload.client for upload in uploads])
        sends: list[Send] = []
        start = 0
        row_bytes, renew_epoch, drop = self._row_bytes, self._registry.renew_epoch, self._open.pop
        for upload in uploads:
            client, kernels = upload.client, len(upload.step_rows)
            drop(client.key, None)
            client.uploading = False
            if not kernels:
                continue
            end = start + row_bytes * kernels
            if client.bucket is not None:
                client.bucket.sent(client.cost.bytes_for(kernels), now)
            # Not only at a tick: there is none while many records are unread.
            renew_epoch(client, now)
            client.record.sequence += 1
            self._add_updates(upload, content[start:end], sends)
            self._sent_from.add(client.key[0])
            self.sent += 1
            start = end
        self._steps.give_back(rows)
        return sends

    def _add_updates(self, upload: Upload, steps: bytes, sends: list[Send]) -> None:
        """Add a message for each shard with kernels in the upload, in lockstep for every shard."""
        record, made = upload.client.record, upload.record
        name, shards, size = record.name.encode(), len(self._model.versions), self._row_bytes
        headers = AWAITED if made.awaited else ()
        framing = len(name) + self._framing[headers]
        fingerprint = self._fingerprint
        dimension = self._learner.dimension
        for shard in range(shards):
            kernels, own = made.kernels, steps
            if shards > 1:
                chosen = [index for index, kernel in enumerate(kernels) if kernel % shards == shard]
                kernels = tuple([kernels[index] for index in chosen])
                own = b"".join([steps[size * index : size * (index + 1)] for index in chosen])
            if not kernels and not self._staleness_policy.lockstep:
                continue
            update = Update(
                version=VERSION,
                fingerprint=fingerprint,
                dimension=dimension,
                client=record.name,
                epoch=record.epoch,
                sequence=record.sequence,
                model_version=made.versions[shard],
                samples=made.samples,
                kernels=kernels,
                steps=own,
            )
            self._catch_up.sent(upload.client, shard)
            value = UPDATE.encode(update)
            self._bytes += framing + len(value)
            sends.append(Send("updates", name, value, shard, headers))

    # ---- state

    def remembered(self, clients: Sequence[Client]) -> list[UploadRecord | None]:
        """Each client's open upload with the steps gathered so far; None: it has none."""
        uploads = [self._open.get(client.key) for client in clients]
        gathering = [upload for upload in uploads if upload is not None]
        # A bounded number of rows at a time.
        together = max(1, BLOCK_STEPS // self._most_kernels)
        for start in range(0, len(gathering), together):
            part = gathering[start : start + together]
            rows = list(chain.from_iterable([upload.step_rows for upload in part]))
            content, begin = encode_array(self._steps.numbers[rows]), 0
            for upload in part:
                end = begin + self._remembered_bytes * len(upload.step_rows)
                upload.record.steps = content[begin:end]
                begin = end
        return [None if upload is None else upload.record for upload in uploads]

    def restore(self, client: Client, record: UploadRecord) -> None:
        """Restore an open upload. BadRecord if it does not fit this federation."""
        self.check_versions(record.versions)
        kernels = record.kernels
        if list(kernels) != sorted(set(kernels)) or not set(kernels) <= set(range(self._learner.kernels)):
            raise BadRecord(
                "kernel",
                f"an upload of kernels {kernels[:5]} is remembered, there are {self._learner.kernels}",
            )
        shape = (len(kernels), self._learner.row_length)
        steps = decode_array(record.steps, np.float64, shape, "the steps of a client")
        rows = self._steps.borrow(len(kernels))
        self._steps.numbers[rows] = steps
        client.uploading = bool(kernels)
        self._keep_open(Upload(client, record, step_rows=rows))

    def check_versions(self, versions: tuple[int, ...] | None) -> None:
        """Raises BadRecord for versions of a model with another number of shards."""
        shards = len(self._model.versions)
        if versions is not None and len(versions) != shards:
            raise BadRecord(
                "malformed",
                f"versions {versions[:5]} of the model are remembered, federation.shards is {shards}",
            )

    def forget(self, client: Client) -> None:
        """Drop a client's open upload."""
        upload = self._open.pop(client.key, None)
        if upload is not None:
            self._steps.give_back(upload.step_rows)

    def set_back(self, now: float) -> None:
        """Let uploads that began after ``now`` have begun now: the clock was ahead."""
        for upload in self._open.values():
            if upload.record.opened_at > now:
                upload.record.opened_at = now
                self._registry.touch(upload.client)
                self._keep_open(upload)

    def measure(self) -> Iterable[Measurement]:
        yield UplinkMetrics.update_bytes(self._bytes)
        yield from self._budgets.measure()
        yield UplinkMetrics.updates(self.sent)
        yield UplinkMetrics.skipped_updates(self._skipped, "budget")
