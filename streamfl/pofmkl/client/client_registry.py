"""The clients that a worker remembers: when each was last seen, and whose state has changed."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import cast

import msgspec

from streamfl.contract.role import BadRecord, Measurement, StateChange
from streamfl.contract.seeding import UniformSequence
from streamfl.pofmkl.client.bandwidth import Budgets
from streamfl.pofmkl.client.client_record import ClientRecord, ClientSnapshot, UploadRecord
from streamfl.pofmkl.client.registered_client import Client, ClientKey
from streamfl.pofmkl.config import PofmklFederation
from streamfl.pofmkl.learning.learner import Learner
from streamfl.pofmkl.metrics import ClientMetrics
from streamfl.pofmkl.state import CLIENT_PART, CLIENT_RECORD
from streamfl.roles.received_numbers import epoch_at, is_to_come
from streamfl.state.table import named_key, split_name

__all__ = ["ClientRegistry"]

# Steps per expiry in which a client's ``seen_at`` moves. Coarse, since each step writes a record to the
# changelog.
STEPS_OF_EXPIRY = 64

ENCODER = msgspec.msgpack.Encoder()


class ClientRegistry:
    """At most K clients. A client without a sample for ``federation.client_expiry_seconds`` makes room for
    another.

    Idleness is measured by the newest time of the samples of any partition, and not by the clock: no client
    becomes idle because the worker was away, and clients of a silent partition become idle too.

    learner: keeps each client's personal numbers in a row.
    budgets: keeps each client's byte budget.
    """

    def __init__(self, learner: Learner, budgets: Budgets, federation: PofmklFederation) -> None:
        self.limit = federation.clients
        self.expiry = federation.client_expiry_seconds
        self._step = self.expiry / STEPS_OF_EXPIRY
        self.expired = 0
        self._learner = learner
        self._budgets = budgets
        self._seed = federation.seed
        self._clients: dict[ClientKey, Client] = {}
        self._registrations = itertools.count()
        self._counts: Counter[int] = Counter()
        # The newest time of each partition's samples, in coarse steps.
        self._reached: dict[int, float] = {}
        # Times at which no client was idle enough in this batch. Saves a search for every sample of unknown
        # clients.
        self._full: set[float] = set()
        self._touched: dict[ClientKey, Client] = {}
        self._forgotten: dict[tuple[int, bytes], None] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    def __getitem__(self, key: ClientKey) -> Client:
        return self._clients[key]

    def find(self, key: ClientKey) -> Client | None:
        return self._clients.get(key)

    def find_all(self, keys: Iterable[ClientKey]) -> list[Client] | None:
        """The clients of these keys; None if one of them is not registered."""
        found = list(map(self._clients.get, keys))
        return None if None in found else cast("list[Client]", found)

    def named(self, name: str) -> list[Client]:
        """The clients of this name: one for each partition with samples of it."""
        return [client for key, client in self._clients.items() if key[1] == name]

    @property
    def rows(self) -> list[int]:
        """The clients' rows in the learner, in the order of ``keys``."""
        return [client.row for client in self._clients.values()]

    @property
    def keys(self) -> list[ClientKey]:
        return list(self._clients)

    def count(self, partition: int) -> int:
        """How many clients have samples in a partition."""
        return self._counts[partition]

    @property
    def partitions(self) -> Collection[int]:
        """The open partitions."""
        return self._reached.keys()

    def open(self, partition: int) -> None:
        self._reached[partition] = 0.0

    def close(self, partition: int) -> list[Client]:
        """Remove a partition's clients, since another worker takes them over; returns them."""
        del self._reached[partition]
        closed = [client for key, client in self._clients.items() if key[0] == partition]
        del self._counts[partition]
        for client in closed:
            del self._clients[client.key]
            self._learner.give_back(client.row)
            self._touched.pop(client.key, None)
        self._forgotten = {key: None for key in self._forgotten if key[0] != partition}
        return closed

    def touch(self, client: Client) -> None:
        """Note that the client's remembered state has changed."""
        self._touched[client.key] = client

    def touch_all(self, clients: Sequence[Client]) -> None:
        """:meth:`touch` for each, in order."""
        self._touched.update([(client.key, client) for client in clients])

    def observe(self, key: ClientKey, written_at: float) -> Client | None:
        """Note that a client's sample was written at ``written_at``; returns the client. None, and no change,
        if unregistered."""
        client = self._clients.get(key)
        if client is not None:
            reached = self._reached[key[0]] = self.reached(key[0], written_at)
            if client.record.seen_at != reached:
                client.record.seen_at = reached
                self._touched[key] = client
        return client

    def hear_sample(self, client: Client, written_at: float, now: float) -> None:
        """Add a sample, written at ``written_at``, to the client's rhythm."""
        if client.record.sample_rhythm.came(written_at, now):
            self._rhythm_changed(client)

    def hear_label(self, client: Client, written_at: float, now: float) -> None:
        """Add a label to the client's rhythm. Only for a label that found its sample, and only the first
        time."""
        if client.record.label_rhythm.came(written_at, now):
            self._rhythm_changed(client)

    def _rhythm_changed(self, client: Client) -> None:
        self._touched[client.key] = client
        client.same_written = client.same_heard = -math.inf

    def hear_samples(
        self,
        partition: int,
        clients: list[Client],
        times: list[float],
        labels: Sequence[float | None],
        now: float,
    ) -> None:
        """:meth:`observe`, :meth:`hear_sample` and, with a label, :meth:`hear_label` for each of these
        samples of a partition, in order.

        times: when they were written.
        """
        steady = self._stays(partition, clients, max(times))
        for client, at, label in zip(clients, times, labels, strict=True):
            if steady and at < client.same_written and now < client.same_heard:
                continue
            record = client.record
            self.observe(client.key, at)
            self.hear_sample(client, at, now)
            if label is not None:
                self.hear_label(client, at, now)
            (written, heard), (label_written, label_heard) = (
                record.sample_rhythm.same_until,
                record.label_rhythm.same_until,
            )
            client.same_written, client.same_heard = min(written, label_written), min(heard, label_heard)

    def _stays(self, partition: int, clients: list[Client], newest: float) -> bool:
        """Whether samples of these clients of a partition, written up to ``newest``, leave all times of
        :meth:`observe` as they are."""
        reached = self._reached[partition]
        seen = {client.record.seen_at for client in clients}
        return seen == {reached} and reached > 0.0 and newest < reached + self._step

    def measure(self) -> Iterable[Measurement]:
        """Counts clients, and those whose samples or labels are overdue by their own rhythm."""
        yield ClientMetrics.clients(len(self))
        yield ClientMetrics.expired_clients(self.expired)
        silent, unlabelled = [], []
        for client in self._clients.values():
            samples, labels = client.record.sample_rhythm.overdue_at, client.record.label_rhythm.overdue_at
            if samples is not None:
                silent.append((samples, math.inf))
            if labels is not None:
                unlabelled.append((labels, math.inf if samples is None else samples))
        yield ClientMetrics.silent_clients(0.0, during=tuple(silent))
        yield ClientMetrics.unlabelled_clients(0.0, during=tuple(unlabelled))

    def reached(self, partition: int, written_at: float) -> float:
        """The newest time of the partition's samples, with one written at ``written_at``, in coarse steps."""
        reached = self._reached[partition]
        return written_at if not reached or written_at >= reached + self._step else reached

    def register(self, key: ClientKey, now: float) -> Client:
        """Register a new client."""
        # The epoch is the time at which the state begins: it differs from that of an earlier life whose state
        # was lost.
        client = self._entered(
            key, ClientRecord(key[1], epoch=epoch_at(now), tokens=float("inf"), filled_at=now)
        )
        # Remember it even if its first sample has to wait: the epoch must be the same after a restart.
        self._touched[key] = client
        return client

    def _entered(self, key: ClientKey, record: ClientRecord) -> Client:
        bucket, cost = self._budgets.give(record)
        draws = UniformSequence(self._seed, "bin", record.name)
        client = Client(record, key, self._learner.borrow(), next(self._registrations), draws, bucket, cost)
        self._clients[key] = client
        self._counts[key[0]] += 1
        return client

    def longest_idle(self, at: float, busy: Callable[[Client], bool]) -> Client | None:
        """The client that has been idle for longest, and at least for the expiry; None if there is none.

        at: the newest time of the new client's partition.
        busy: whether a client has waiting samples or labels, or an open upload.
        """
        longest, idle = None, self.expiry
        reached = max(at, *self._reached.values())
        for key, client in self._clients.items() if reached not in self._full else ():
            if not client.record.seen_at:
                # The first releases remembered no time.
                client.record.seen_at = reached
                self._touched[key] = client
            if not busy(client) and reached - client.record.seen_at >= idle:
                longest, idle = client, reached - client.record.seen_at
        if longest is None:
            self._full.add(reached)
        return longest

    def batch_is_over(self) -> None:
        """End a batch: from now on, search again for an idle client when a new one needs room."""
        self._full = set()

    def forget(self, client: Client, more: Iterable[bytes]) -> None:
        """Remove the client and all its keys of the changelog. more: keys that other owners of its state
        use."""
        key, name = client.key, client.record.name.encode()
        parts = self._learner.part_keys(client.row)
        for remembered in (
            CLIENT_RECORD.prefix + name,
            *(named_key(CLIENT_PART.prefix, name, part) for part in parts),
            *more,
        ):
            self._forgotten[key[0], remembered] = None
        self._learner.give_back(client.row)
        del self._clients[key]
        self._counts[key[0]] -= 1
        self._touched.pop(key, None)

    def begin_own_steps(self, unanswered: Callable[[int], bool]) -> None:
        """Let clients of partitions without an answer from the server take steps of their own."""
        own_steps = self._learner.own_steps
        partitions = {partition for partition in self._reached if unanswered(partition)}
        if own_steps is not None and partitions:
            for client in self._clients.values():
                if client.key[0] in partitions:
                    own_steps.begin(client.row)

    def end_own_steps(self, partitions: Collection[int]) -> None:
        """Drop the own steps of these partitions' clients: a new version holds their updates, or will hold
        them."""
        own_steps = self._learner.own_steps
        if own_steps is not None and own_steps:
            for client in self._clients.values():
                if client.key[0] in partitions and own_steps.end(client.row):
                    self._touched[client.key] = client

    def set_back(self, now: float) -> None:
        """Replace every remembered time after ``now`` with ``now``: the clock was ahead."""
        for key, client in self._clients.items():
            filled = client.bucket or client.record
            if filled.filled_at > now:
                filled.filled_at = now
                self._touched[key] = client
            if client.record.seen_at > now:
                client.record.seen_at = now
                self._touched[key] = client
            for rhythm in (client.record.sample_rhythm, client.record.label_rhythm):
                if rhythm.set_back(now):
                    self._rhythm_changed(client)
            self.renew_epoch(client, now)
        self._reached.update(
            {partition: now for partition, reached in self._reached.items() if reached > now}
        )

    def renew_epoch(self, client: Client, now: float) -> None:
        """Replace an epoch from a clock that was far ahead: the server would refuse it until that time
        comes."""
        if is_to_come(client.record.epoch, now):
            client.record.epoch = epoch_at(now)
            self._touched[client.key] = client

    def release(self, learnt_on: tuple[int, ...]) -> None:
        """Stop counting the labels that were learnt on ``learnt_on``: the model went back to these versions.

        Otherwise a client could wait for ever for the next version, whoever wrote the ones in between.
        """
        for client in self._clients.values():
            if client.record.learnt_on == learnt_on:
                client.record.learnt_on = None
                self._touched[client.key] = client

    def forgotten(self) -> Iterable[StateChange]:
        """The keys to forget since the last call. Write these before ``changed_state``: a forgotten client
        may have come back."""
        for partition, key in self._forgotten:
            yield StateChange("state", partition, key, None)
        self._forgotten = {}

    def changed_state(
        self, uploads_of: Callable[[Sequence[Client]], list[UploadRecord | None]]
    ) -> Iterable[StateChange]:
        """The clients that have changed since the last call.

        uploads_of: gives clients' open uploads, with their steps.
        """
        encode, parts = ENCODER.encode, self._learner.parts
        prefix, part_prefix = CLIENT_RECORD.prefix, CLIENT_PART.prefix
        touched = list(self._touched.values())
        remembered = self._learner.remember([client.row for client in touched])
        for client, numbers, upload in zip(touched, remembered, uploads_of(touched), strict=True):
            record, partition, bucket = client.record, client.key[0], client.bucket
            if bucket is not None:
                record.tokens, record.filled_at = bucket.tokens, bucket.filled_at
            record.numbers, record.upload = numbers, upload
            name = record.name.encode()
            yield StateChange("state", partition, prefix + name, encode(record))
            record.numbers, record.upload = b"", None
            if changed := parts(client.row):
                begin = named_key(part_prefix, name, b"")
                for part, content in changed:
                    yield StateChange("state", partition, begin + part, content)
        self._touched = {}

    def known(self, key: ClientKey) -> Client:
        """The client that is being restored, registered if necessary: the records of its state come in any
        order."""
        return self._clients.get(key) or self._entered(key, ClientRecord(key[1], epoch=0))

    def restore(self, key: ClientKey, record: ClientRecord) -> Client:
        """Take back a client's record, but not its upload. BadRecord if the record is another client's."""
        if record.name != key[1]:
            raise BadRecord("malformed", f"it is the state of client {record.name!r}")
        client = self.known(key)
        self._reached[key[0]] = max(self._reached[key[0]], record.seen_at)
        self._learner.restore(client.row, record.numbers)
        client.record = record
        client.same_written = client.same_heard = -math.inf
        if client.bucket is not None:
            client.bucket.tokens, client.bucket.filled_at = (
                min(record.tokens, client.bucket.depth),
                record.filled_at,
            )
        record.numbers = b""
        return client

    def restore_part(self, partition: int, rest: bytes, value: bytes) -> None:
        """Take back a part of the learner's state of a client. rest: of its key, behind the prefix."""
        name, part = split_name(rest)
        self._learner.restore_part(self.known((partition, name)).row, part, value)

    def snapshot(self, client: Client, waiting: int) -> ClientSnapshot:
        """A client's state, for inspection. waiting: how many of its samples or labels wait for the model."""
        record, bucket = client.record, client.bucket
        samples, labels, _, _ = self._learner.sums([client.row])[0].tolist()
        return ClientSnapshot(
            row=client.row,
            seen_at=record.sample_rhythm.last(record.seen_at),
            waiting=waiting,
            samples=int(samples),
            labels=int(labels),
            on_version_zero=record.on_version_zero,
            uploads_begun=record.uploads_drawn,
            uploads_sent=record.sequence,
            budget=None if bucket is None else (bucket.tokens, bucket.depth),
            silent_from=record.sample_rhythm.overdue_at,
            labelled_at=None if record.label_rhythm.heard is None else record.label_rhythm.written,
            unlabelled_from=record.label_rhythm.overdue_at,
        )

    def elsewhere(self, name: str) -> Sequence[int]:
        """The partitions in which a client of this name is registered."""
        return [partition for partition in self._reached if (partition, name) in self._clients]
