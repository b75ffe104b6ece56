"""The clients that a worker remembers: who is registered, who was seen when, and whose state has changed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from streamfl.pofmkl.bandwidth import Budgets, TokenBucket, UpdateCost
from streamfl.pofmkl.client_record import ClientRecord, UploadRecord, part_key
from streamfl.pofmkl.learner import Learner
from streamfl.received_numbers import epoch_at, is_to_come
from streamfl.role import Measurement, PeerError, StateChange
from streamfl.seeding import UniformSequence

__all__ = ["Client", "ClientKey", "ClientRegistry"]

# When a client was seen is remembered this finely: each step of it is a record of the changelog.
STEPS_OF_EXPIRY = 64

ClientKey = tuple[int, str]
"""A partition, and the name of a client whose samples come there."""


@dataclass(slots=True, eq=False)
class Client:
    """A client that is registered.

    record: what is remembered of it, without the upload that is gathered and the learner's numbers.
    row: by which the learner knows it.
    draws: its random numbers, one an upload.
    bucket: its byte budget, if there is one.
    cost: of its uploads.
    uploading: an upload of it is gathered, or was begun in this step.
    limited, share, arrived: as :class:`~streamfl.pofmkl.catch_up.CatchUp` notes them.
    in_version: by shard, the version that holds the client's last update, as far as it can be counted.
    """

    record: ClientRecord
    key: ClientKey
    row: int
    draws: UniformSequence
    bucket: TokenBucket | None
    cost: UpdateCost
    uploading: bool = False
    limited: bool = False
    share: float = 0.0
    arrived: int = 0
    in_version: dict[int, int] = field(default_factory=dict)


class ClientRegistry:
    """At most ``limit`` clients. One without a sample for ``expiry`` seconds makes room for another.

    Idleness is measured by the newest time that the samples of any partition have come to, and not by the clock: nobody is idle
    because the worker was away, and a partition that falls silent keeps no clients.

    learner: keeps each client's personal numbers in a row.
    budgets: keeps each client's byte budget.
    seed: of the federation.
    """

    def __init__(self, learner: Learner, budgets: Budgets, seed: int, limit: int, expiry: float) -> None:
        self.limit = limit
        self.expiry = expiry
        self.expired = 0
        self._learner = learner
        self._budgets = budgets
        self._seed = seed
        self._clients: dict[ClientKey, Client] = {}
        self._counts: Counter[int] = Counter()
        # The time that each partition's samples have come to.
        self._reached: dict[int, float] = {}
        # Times at which nobody made room in this batch: strangers may ask to be let in with every sample.
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

    def named(self, name: str) -> list[Client]:
        """The clients of this name: one a partition that it has samples in."""
        return [client for key, client in self._clients.items() if key[1] == name]

    @property
    def rows(self) -> list[int]:
        """By which the learner knows the clients, in the order of ``names``."""
        return [client.row for client in self._clients.values()]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self._clients]

    def count(self, partition: int) -> int:
        """How many clients have samples in a partition."""
        return self._counts[partition]

    @property
    def partitions(self) -> Collection[int]:
        """Those that are open."""
        return self._reached.keys()

    def open(self, partition: int) -> None:
        self._reached[partition] = 0.0

    def close(self, partition: int) -> list[Client]:
        """Forget a partition's clients, which another worker remembers; returns them."""
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
        """What is remembered of the client has changed."""
        self._touched[client.key] = client

    def observe(self, key: ClientKey, written_at: float) -> Client | None:
        """The client of whom a sample came that was written then; None if it is not registered, and then no time moves on."""
        client = self._clients.get(key)
        if client is not None:
            reached = self.reached(key[0], written_at)
            self._reached[key[0]] = reached
            if client.record.seen_at != reached:
                client.record.seen_at = reached
                self._touched[key] = client
        return client

    def hear_sample(self, client: Client, written_at: float, now: float) -> None:
        """A sample of the client came that was written then."""
        if client.record.sample_rhythm.came(written_at, now):
            self._touched[client.key] = client

    def hear_label(self, client: Client, written_at: float, now: float) -> None:
        """A label of the client came to its sample: a label that finds none, or comes again, says nothing of how often they do."""
        if client.record.label_rhythm.came(written_at, now):
            self._touched[client.key] = client

    def measure(self) -> Iterable[Measurement]:
        """How many clients there are, and of how many samples or labels do not come although each's own rhythm says so."""
        yield Measurement("clients", "gauge", "Clients on this worker", len(self), (), True)
        yield Measurement("expired_clients", "counter", "Clients forgotten to make room for others", self.expired)
        silent, unlabelled = [], []
        for client in self._clients.values():
            samples, labels = client.record.sample_rhythm.overdue_at, client.record.label_rhythm.overdue_at
            if samples is not None:
                silent.append((samples, math.inf))
            if labels is not None:
                unlabelled.append((labels, math.inf if samples is None else samples))
        text = "Clients of which no sample has come for longer than is usual for them"
        yield Measurement("silent_clients", "gauge", text, 0.0, during=tuple(silent))
        text = "Clients whose samples come, and of which no label has come for longer than is usual for them"
        yield Measurement("unlabelled_clients", "gauge", text, 0.0, during=tuple(unlabelled))

    def reached(self, partition: int, written_at: float) -> float:
        """The time that the partition's samples come to with one that was written then, in coarse steps."""
        reached = self._reached[partition]
        return written_at if not reached or written_at >= reached + self.expiry / STEPS_OF_EXPIRY else reached

    def register(self, key: ClientKey, now: float) -> Client:
        """Let a new client in."""
        # A life of the client's state is told from an earlier one that was lost by when it began.
        client = self._entered(key, ClientRecord(key[1], epoch=epoch_at(now), tokens=float("inf"), filled_at=now))
        # Even if its first sample has to wait: the epoch must be the same after a restart.
        self._touched[key] = client
        return client

    def _entered(self, key: ClientKey, record: ClientRecord) -> Client:
        bucket, cost = self._budgets.give(record)
        client = Client(record, key, self._learner.borrow(), UniformSequence(self._seed, "bin", record.name), bucket, cost)
        self._clients[key] = client
        self._counts[key[0]] += 1
        return client

    def longest_idle(self, at: float, busy: Callable[[Client], bool]) -> Client | None:
        """The client that has been idle for longest, and for long enough; None if none has been.

        at: the time that the newcomer's partition has come to. busy: whether something of a client waits or is gathered.
        """
        longest, idle = None, self.expiry
        reached = max(at, *self._reached.values())
        for key, client in self._clients.items() if reached not in self._full else ():
            if not client.record.seen_at:
                # As the first releases remembered it.
                client.record.seen_at = reached
                self._touched[key] = client
            if not busy(client) and reached - client.record.seen_at >= idle:
                longest, idle = client, reached - client.record.seen_at
        if longest is None:
            self._full.add(reached)
        return longest

    def batch_is_over(self) -> None:
        """Room is looked for again for whoever asks to be let in."""
        self._full = set()

    def forget(self, client: Client, more: Iterable[bytes]) -> None:
        """Take the client out, and remember nothing of it. more: keys of the changelog that others remember it under."""
        key, name = client.key, client.record.name.encode()
        parts = self._learner.part_keys(client.row)
        for remembered in (b"client/" + name, *(part_key(name, part) for part in parts), *more):
            self._forgotten[key[0], remembered] = None
        self._learner.give_back(client.row)
        del self._clients[key]
        self._counts[key[0]] -= 1
        self._touched.pop(key, None)

    def begin_own_steps(self, unanswered: Callable[[int], bool]) -> None:
        """Clients of partitions that no server answers go on by themselves."""
        own_steps, partitions = self._learner.own_steps, {partition for partition in self._reached if unanswered(partition)}
        if own_steps is not None and partitions:
            for client in self._clients.values():
                if client.key[0] in partitions:
                    own_steps.begin(client.row)

    def end_own_steps(self, partitions: Collection[int]) -> None:
        """A new version holds these clients' updates, or will: what they made of them by themselves goes."""
        own_steps = self._learner.own_steps
        if own_steps is not None and own_steps:
            for client in self._clients.values():
                if client.key[0] in partitions and own_steps.end(client.row):
                    self._touched[client.key] = client

    def set_back(self, now: float) -> None:
        """Let everything that was noted after ``now`` have been now: the clock was ahead."""
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
                    self._touched[key] = client
            self.renew_epoch(client, now)
        self._reached.update({partition: now for partition, reached in self._reached.items() if reached > now})

    def renew_epoch(self, client: Client, now: float) -> None:
        """Give up an epoch that a clock far ahead named: the server would refuse it until that time comes."""
        if is_to_come(client.record.epoch, now):
            client.record.epoch = epoch_at(now)
            self._touched[client.key] = client

    def release(self, learnt_on: tuple[int, ...]) -> None:
        """The model went back to versions that it had before: labels that were learnt on these do not count.

        Whoever wrote the versions in between, to wait for the next would be to wait for ever.
        """
        for client in self._clients.values():
            if client.record.learnt_on == learnt_on:
                client.record.learnt_on = None
                self._touched[client.key] = client

    def forgotten(self) -> Iterable[StateChange]:
        """What has to be forgotten since the last call, before anything is remembered: a client that was forgotten may be back."""
        for partition, key in self._forgotten:
            yield StateChange("state", partition, key, None)
        self._forgotten = {}

    def changed_state(self, upload_of: Callable[[Client], UploadRecord | None]) -> Iterable[StateChange]:
        """The clients that have changed since the last call. upload_of: the upload that a client gathers, with its steps."""
        encode = msgspec.msgpack.Encoder().encode
        remembered = self._learner.remember([client.row for client in self._touched.values()])
        for (key, client), numbers in zip(self._touched.items(), remembered, strict=True):
            record = client.record
            if client.bucket is not None:
                record.tokens, record.filled_at = client.bucket.tokens, client.bucket.filled_at
            record.numbers, record.upload = numbers, upload_of(client)
            name = record.name.encode()
            yield StateChange("state", key[0], b"client/" + name, encode(record))
            record.numbers, record.upload = b"", None
            for part, content in self._learner.parts(client.row):
                yield StateChange("state", key[0], part_key(name, part), content)
        self._touched = {}

    def known(self, key: ClientKey) -> Client:
        """The client that is being restored: what is remembered of it comes in any order."""
        return self._clients.get(key) or self._entered(key, ClientRecord(key[1], epoch=0))

    def restore(self, key: ClientKey, record: ClientRecord) -> Client:
        """Take back a client; the upload that it gathers stays in ``record``. PeerError if it is another's."""
        if record.name != key[1]:
            raise PeerError("malformed", f"it is the state of client {record.name!r}")
        client = self.known(key)
        self._reached[key[0]] = max(self._reached[key[0]], record.seen_at)
        self._learner.restore(client.row, record.numbers)
        client.record = record
        if client.bucket is not None:
            client.bucket.tokens, client.bucket.filled_at = min(record.tokens, client.bucket.depth), record.filled_at
        record.numbers = b""
        return client

    def restore_part(self, key: ClientKey, part: bytes, value: bytes) -> None:
        """Take back a part of what the learner remembers of a client."""
        self._learner.restore_part(self.known(key).row, part, value)

    def elsewhere(self, name: str) -> Sequence[int]:
        """The partitions in which a client of this name is registered."""
        return [partition for partition in self._reached if (partition, name) in self._clients]
