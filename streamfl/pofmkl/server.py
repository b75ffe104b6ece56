"""The server of POF-MKL: whose updates count, and when a step is made of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streamfl.moments import Moments
from streamfl.pofmkl.members import Members
from streamfl.pofmkl.messages import LARGEST_STEP, LARGEST_TARGET, UPDATE, ShardVersion, Update
from streamfl.pofmkl.model import LARGEST_PARAMETERS
from streamfl.pofmkl.publication import Publication
from streamfl.pofmkl.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.signed_model import ModelSigning
from streamfl.restored import Time
from streamfl.role import ConfigurationError, Measurement, Notice, PeerError, Received, Rejection, Send, StateChange
from streamfl.sequences import check_numbers
from streamfl.wire import VERSION, Count

__all__ = ["PofmklServer"]

# Steps are taken this many raw bytes at a time, for they grow in double precision: a poll may hold hundreds of megabytes.
BLOCK_BYTES = 4_000_000
# So many clients are named in a line of the log.
NAMED = 5
# A little below what clients take, for rounding.
LONGEST_ROW = 0.999 * LARGEST_PARAMETERS


class _Round(msgspec.Struct, array_like=True):
    """``opened_at``: when the first update of the open round was written to its topic. ``dimension``: of the clients' inputs.

    misled: clients said that they have the next version already, which somebody else wrote.
    """

    opened_at: Time | None
    ever_timed_out: bool
    dimension: Count
    misled: bool = False


@dataclass
class _Shard:
    number: int
    kernels: frozenset[int]
    parameters: NDArray[Any]
    step: ServerStep
    members: Members
    publication: Publication
    model_version: int = 0
    updates: int = 0
    round: _Round = field(default_factory=lambda: _Round(None, False, 0))
    round_changed: bool = False
    # The clients that the open round waits for.
    missing: set[str] = field(default_factory=set)
    pending: dict[str, Update] = field(default_factory=dict)
    pending_changed: dict[str, None] = field(default_factory=dict)
    changed_kernels: set[int] = field(default_factory=set)
    published: bool = True
    book_changed: bool = False
    mending: bool = False
    # Something of it was restored; what was restored has been looked at.
    remembered: bool = False
    settled: bool = False


class PofmklServer:
    """Moves the global parameters by what clients send; partition p of the updates is shard p: kernels p, p + shards, …

    clients: K, the size of the federation. dimension: of its samples; None: what was remembered, and a server without that raises
    ConfigurationError at its first batch, for the first client to speak must not decide it. step: makes a shard's
    :class:`~streamfl.pofmkl.server_steps.ServerStep`, given how many kernels it has; None: equation (10), the average of the
    clients' gradients. lockstep: a step a round, on its rows in order of the clients' names, when every client was heard or
    ``round_timeout`` seconds after the first; otherwise every update is applied as it comes. A client that missed a round is not
    waited for until it takes part again. At most K clients are remembered; one unseen for ``client_expiry`` seconds makes room.
    former_fingerprint: what the federation had before its features were named.
    dtype: of the rows, and of the parameters as remembered and published. signing: signs each version.
    """

    def __init__(
        self,
        *,
        clients: int,
        kernels: int,
        features: int,
        dimension: int | None = None,
        step: Callable[[int], ServerStep] | None = None,
        shards: int = 1,
        lockstep: bool = True,
        round_timeout: float = 30.0,
        client_expiry: float = 86_400.0,
        fingerprint: int = 0,
        former_fingerprint: int | None = None,
        dtype: Any = np.float32,
        signing: ModelSigning | None = None,
    ) -> None:
        self.clients = clients
        self.kernels = kernels
        self.features = features
        self.dimension = dimension
        self._make_step = step or (lambda kernels: AveragedStep(clients))
        self.shards = shards
        self.lockstep = lockstep
        self.round_timeout = round_timeout
        self.client_expiry = client_expiry
        self.fingerprint = fingerprint
        self.former_fingerprint = fingerprint if former_fingerprint is None else former_fingerprint
        self.dtype = dtype
        self.signing = signing
        self._moments = Moments()
        self._open: dict[int, _Shard] = {}
        self._counts = dict.fromkeys(("applied", "superseded", "timed_out_rounds", "expired_clients", "mended", "bounded"), 0)
        self._ignored = dict.fromkeys(("late", "duplicate", "empty"), 0)
        # The first of each reason: there may be as many as messages.
        self._notices: dict[str, Notice] = {}
        self._staleness = 0.0

    @property
    def wake_at(self) -> float | None:
        opened = [shard.round.opened_at for shard in self._open.values() if shard.round.opened_at is not None]
        return min(opened) + self.round_timeout if opened else None

    @property
    def full(self) -> Collection[int]:
        return ()

    @property
    def prompt(self) -> bool:
        return self.lockstep

    @property
    def trouble(self) -> str | None:
        return None

    def notices(self) -> Iterable[Notice]:
        notices, self._notices = self._notices, {}
        return notices.values()

    def forget(self, name: str) -> bool:
        known = [shard for shard in self._open.values() if name in shard.members]
        for shard in known:
            self._settle(shard)
            self._forget(shard, name)
            self._close_complete(shard)
        return bool(known)

    def open(self, partition: int) -> None:
        self._moments.opened()
        kernels = range(partition, self.kernels, self.shards)
        self._open[partition] = _Shard(
            partition,
            frozenset(kernels),
            np.zeros((len(kernels), 2 * self.features), self.dtype),
            self._make_step(len(kernels)),
            Members(self.clients, self.client_expiry),
            Publication(kernels, 2 * self.features, self.dtype, (self.fingerprint, self.former_fingerprint), self.signing),
        )

    def close(self, partition: int) -> None:
        del self._open[partition]

    def restore(self, change: StateChange) -> None:
        shard, key, value = self._open[change.partition], change.key, change.value or b""
        if change.channel == "model":
            try:
                shard.publication.restore_topic(key, value)
            except PeerError:
                # The first releases kept nothing to mend it from.
                if shard.remembered and not shard.publication.has_a_book:
                    raise
                shard.publication.spoil(key)
            return
        shard.remembered = True
        kind, _, name = key.partition(b"/")
        try:
            if kind == b"round":
                shard.round = msgspec.msgpack.decode(value, type=_Round)
            elif kind == b"client":
                shard.members.restore(name.decode(), value)
            elif kind == b"step":
                shard.step.restore(name, value)
            elif kind == b"pending":
                shard.pending[name.decode()] = UPDATE.decode(value)
            elif not shard.publication.restore(key, value):
                raise PeerError("malformed", f"server state {key!r} is not known to this release")
        except (msgspec.DecodeError, ValueError) as error:
            raise PeerError("malformed", f"server state {key!r}: {error}") from None

    def _settle(self, shard: _Shard) -> None:
        """Look at what was restored, once, when all of it is there. ConfigurationError if it cannot go on so."""
        if shard.settled:
            return
        shard.settled = True
        if self.dimension is None and not shard.round.dimension:
            raise ConfigurationError(
                "federation.features is missing: a federation that begins says what its samples consist of, such as "
                'features = ["t1", "t2"] in [federation], the same at every member; or how many numbers they are, such as '
                "features = 16, where they come as one list"
            )
        if self.dimension is not None:
            if shard.round.dimension not in (0, self.dimension):
                raise ConfigurationError(
                    f"federation.features: {self.dimension} are given, and what was learnt so far is of {shard.round.dimension}. "
                    "Give those that it was learnt from, or set another federation.name to begin anew"
                )
            if not shard.round.dimension:
                shard.round.dimension, shard.round_changed = self.dimension, True
        kept_a_book = shard.publication.has_a_book
        settled = shard.publication.settle(shard.remembered, shard.number, shard.round.dimension)
        shard.model_version, shard.updates = settled.model_version, settled.updates
        for kernel, row in settled.parameters.items():
            shard.parameters[kernel // self.shards] = row
        shard.changed_kernels |= settled.again
        shard.published = not (settled.again or settled.marker_again)
        shard.book_changed = not kept_a_book
        if self.signing is not None and shard.remembered:
            # All of it once more, under the key of today: an older key may go.
            shard.changed_kernels, shard.published = set(shard.kernels), False
        if settled.mended is not None:
            self._counts["mended"] += 1
            self._say("model_mended", settled.mended)
        if settled.taken_over:
            self._say("taken_over", "what was learnt before federation.features was given goes on with it")
        shard.missing = shard.members.awaited - shard.pending.keys()
        if not self.lockstep and (shard.model_version != shard.updates or shard.round.opened_at is not None):
            # It was in lockstep before.
            if shard.pending:
                self._close_round(shard)
            shard.model_version, shard.published = shard.updates, False
            shard.round.opened_at, shard.round_changed = None, True

    def receive(self, batch: Sequence[Received], now: float) -> Sequence[Send | Rejection]:
        """A tick closes the rounds that have waited long enough.

        Among messages it is their own time in the topic that counts: what lay there before a round was over belongs to it, however
        late a server that was away reads it.
        """
        for shard in self._open.values():
            self._settle(shard)
        if self._moments.pass_to(now, tick=not batch):
            for shard in self._open.values():
                _set_back(shard, now)
        if not batch:
            for shard in self._open.values():
                self._close_timed_out(shard, now)
            return []
        rejections: list[Rejection] = []
        by_partition: dict[int, list[Received]] = {}
        for received in batch:
            by_partition.setdefault(received.partition, []).append(received)
        for partition, messages in by_partition.items():
            shard = self._open[partition]
            for block in _blocks(messages):
                self._take(shard, block, now, rejections)
            shard.members.batch_is_over()
        if len(rejections) > 1:
            places = {id(received): place for place, received in enumerate(batch)}
            rejections.sort(key=lambda rejection: places[id(rejection.received)])
        return rejections

    def changed_state(self) -> Iterable[StateChange]:
        for partition, shard in self._open.items():
            for name, member in shard.members.changed_state():
                yield StateChange("state", partition, b"client/" + name.encode(), member)
            for name in shard.pending_changed:
                update = shard.pending.get(name)
                yield StateChange(
                    "state", partition, b"pending/" + name.encode(), None if update is None else UPDATE.encode(update)
                )
            if shard.round_changed:
                yield StateChange("state", partition, b"round", msgspec.msgpack.encode(shard.round))
            shard.pending_changed, shard.round_changed = {}, False
            for key, value in shard.step.changed_state():
                yield StateChange("state", partition, b"step/" + key, value)
            if not shard.published:
                marker = ShardVersion(
                    VERSION, self.fingerprint, shard.round.dimension, partition, shard.model_version, shard.updates
                )
                yield from shard.publication.changes(partition, shard.changed_kernels, shard.parameters, marker)
            elif shard.book_changed:
                yield shard.publication.book(partition, self.fingerprint, shard.model_version, shard.updates)
            shard.changed_kernels = set()
            shard.published, shard.book_changed, shard.mending = True, False, False

    def measure(self) -> Iterable[Measurement]:
        shards = list(self._open.values())
        yield Measurement("updates_applied", "counter", "Uploads added to the model", self._counts["applied"], (), True)
        version = max((s.model_version for s in shards), default=0)
        yield Measurement("model_version", "gauge", "Newest version of the model", version, (), True)
        yield Measurement("clients", "gauge", "Clients heard of", max((len(s.members) for s in shards), default=0), (), True)
        heard = sum(len(s.pending) for s in shards)
        yield Measurement("round_waiting", "gauge", "Clients heard in the open round", heard, (), True)
        yield Measurement("staleness", "gauge", "Versions between an update's model and the newest, last update", self._staleness)
        for reason, count in self._ignored.items():
            yield Measurement("ignored_updates", "counter", "Updates that changed nothing", count, (("reason", reason),), True)
        text = "Updates with a number below one that was heard just before: two speak for one client"
        yield Measurement("superseded_updates", "counter", text, self._counts["superseded"])
        text = "Times that parameters grew beyond what clients take, and were shortened"
        yield Measurement("bounded_parameters", "counter", text, self._counts["bounded"])
        text = "Times that the model topic held what the server had not published, and was written anew"
        yield Measurement("model_repairs", "counter", text, self._counts["mended"])
        timed_out = self._counts["timed_out_rounds"]
        yield Measurement("timed_out_rounds", "counter", "Rounds closed without every client", timed_out, (), True)
        yield Measurement("expired_clients", "counter", "Clients forgotten to make room", self._counts["expired_clients"])

    def _take(self, shard: _Shard, messages: Sequence[Received], now: float, rejections: list[Rejection]) -> None:
        """Some messages of one shard, in order; their numbers are checked and added up together."""
        sound: list[Received] = []
        for received in messages:
            try:
                self._check(shard, received, now)
                sound.append(received)
            except PeerError as error:
                rejections.append(Rejection(received, error))
        steps = self._steps([received.message for received in sound])
        # One comparison for all: it is False for a NaN, too.
        bounded = np.abs(steps).max(axis=1, initial=0.0) <= LARGEST_STEP
        short = bounded if shard.step.largest_norm is None else _norms(steps) <= shard.step.largest_norm
        all_sound = bool((bounded & short).all())
        applied: list[Update] = []
        row = 0
        for received in sound:
            update: Update = received.message
            rows = slice(row, row := row + len(update.kernels))
            try:
                if not (all_sound or bounded[rows].all()):
                    raise PeerError("not_finite", f"a step holds a NaN, an infinity or a number above {LARGEST_STEP:g}")
                if not (all_sound or short[rows].all()):
                    raise PeerError("too_large", f"a target row is longer than {LARGEST_TARGET:g}: is its label clipped?")
                written_at = received.record.timestamp
                # Whoever wrote the time may have a clock that is ahead.
                if self._hear(shard, update, min(written_at, now) if written_at > 0 else now):
                    applied.append(update)
            except PeerError as error:
                rejections.append(Rejection(received, error))
        if applied:
            self._apply(shard, applied)

    def _hear(self, shard: _Shard, update: Update, at: float) -> bool:
        """Remember who was heard; whether the update is to be applied at once."""
        # What may be refused comes first: a message that is refused closes no round by its time, either.
        if update.dimension != shard.round.dimension:
            raise PeerError(
                "configuration", f"made from samples of {update.dimension} features; the federation's have {shard.round.dimension}"
            )
        name, members = update.client, shard.members
        if update.model_version > shard.model_version:
            self._publish_anew(shard, update)
            if update.model_version == shard.model_version + 1 and self.lockstep and self.shards == 1:
                # They wait for a version that they have not sent anything on. Shards have to stay at one version, though.
                shard.round.misled, shard.round_changed = True, True
            if self.lockstep or shard.step.largest_norm is None:
                raise PeerError(
                    "unknown_version",
                    f"the update names version {update.model_version}, which was never published: {shard.model_version} was",
                )
        if members.was_heard(name, update.epoch, update.sequence) and not self._made_again(shard, update):
            text = f"update {update.sequence} of client {name!r} came again and changed nothing; if this goes on, two speak for it"
            return self._ignore("duplicate", text)
        if not update.kernels and (not self.lockstep or update.model_version < shard.model_version):
            return self._ignore("empty", f"client {name!r} sent an update of nothing, on version {update.model_version}")
        giving_way = members.make_room(name, at, bool(update.kernels))
        if self.lockstep:
            self._close_timed_out(shard, at)
            if update.model_version < shard.model_version - 1:
                return self._late(shard, update)
        if giving_way is not None:
            self._forget(shard, giving_way)
            self._counts["expired_clients"] += 1
        if members.note(name, update.epoch, update.sequence, at, bool(update.kernels)):
            self._counts["superseded"] += 1
            self._say(
                "superseded",
                f"client {name!r} speaks with two voices: update {update.sequence} of epoch {update.epoch} came after a later one. "
                "Are its samples in two partitions (key them by client), or does somebody else speak for it?",
            )
        self._staleness = float(max(0, shard.model_version - update.model_version))
        if not self.lockstep:
            shard.updates += 1
            shard.model_version = shard.updates
            return True
        members.takes_part(name, update.model_version)
        if update.model_version < shard.model_version:
            if name in members.awaited and name not in shard.pending:
                shard.missing.add(name)
            return self._late(shard, update)
        shard.pending[name] = update
        shard.pending_changed[name] = None
        shard.missing.discard(name)
        if shard.round.opened_at is None:
            shard.round.opened_at, shard.round_changed = at, True
        self._close_complete(shard)
        return False

    def _late(self, shard: _Shard, update: Update) -> bool:
        # Somebody else may have told the client so, and then it waits for the version to change.
        shard.published = False
        if update.model_version < shard.model_version - 1:
            shard.changed_kernels.update(shard.kernels)
        return self._ignore(
            "late",
            f"an update of client {update.client!r} is of version {update.model_version}, the round is of {shard.model_version}: "
            'it changed nothing. If most are late, is learning.staleness = "lockstep" at the clients as it is here?',
        )

    def _ignore(self, reason: str, text: str) -> bool:
        self._ignored[reason] += 1
        self._say(f"{reason}_update", text)
        return False

    def _say(self, reason: str, text: str) -> None:
        self._notices.setdefault(reason, Notice(reason, text))

    def _publish_anew(self, shard: _Shard, update: Update) -> None:
        """Somebody read a version that was never published: whatever lies in the topic, what counts comes after it.

        Once a commit, however many say so: that is no more than a commit of many updates publishes.
        """
        self._counts["mended"] += not shard.mending
        shard.changed_kernels.update(shard.kernels)
        shard.mending, shard.published = True, False
        self._say(
            "unknown_version",
            f"client {update.client!r} names version {update.model_version} of shard {shard.number}, the server has published "
            f"{shard.model_version}: all of it is published anew. Who else may write into the model topic?",
        )

    def _made_again(self, shard: _Shard, update: Update) -> bool:
        """Whether a client's number comes again on a version that has not heard it yet.

        Under at_least_once a client may be killed with its update out and its state not. It says something under the same number
        once more, on the next version; not to hear it would leave the round waiting for ever.
        """
        current = update.model_version == shard.model_version and update.client not in shard.pending
        return self.lockstep and current and shard.members.speaks_for(update.client, update.epoch)

    def _forget(self, shard: _Shard, name: str) -> None:
        shard.members.forget(name)
        shard.missing.discard(name)
        if shard.pending.pop(name, None) is not None:
            shard.pending_changed[name] = None

    def _close_timed_out(self, shard: _Shard, at: float) -> None:
        opened_at = shard.round.opened_at
        if opened_at is None or at < opened_at + self.round_timeout:
            return
        self._counts["timed_out_rounds"] += 1
        silent = sorted(shard.missing)
        unheard = 0 if shard.round.ever_timed_out else self.clients - len(shard.pending) - len(silent)
        names = ", ".join(map(repr, silent[:NAMED])) + (f" and {len(silent) - NAMED} more" if len(silent) > NAMED else "")
        self._say(
            "round_timed_out",
            f"round {shard.model_version} of shard {shard.number} was closed after {self.round_timeout:g} s with "
            f"{len(shard.pending)} clients, without {names or 'any that was heard before'}"
            + (f"; {unheard} of federation.clients = {self.clients} were never heard" if unheard > 0 else "")
            + '. It is not waited for until it takes part again; with learning.staleness = "async" nobody is waited for',
        )
        shard.members.let_time_out(silent)
        shard.round.ever_timed_out = True
        self._close_round(shard)

    def _close_complete(self, shard: _Shard) -> None:
        """Close the round if everybody it waits for is there. Until one has timed out that is the whole federation."""
        complete = not shard.missing if shard.round.ever_timed_out else len(shard.pending) >= self.clients
        if shard.pending and complete:
            self._close_round(shard)

    def _close_round(self, shard: _Shard) -> None:
        # Clients in order of name, so that the sum does not depend on who was heard first.
        self._apply(shard, [shard.pending[name] for name in sorted(shard.pending)])
        shard.pending_changed.update(dict.fromkeys(shard.pending))
        shard.model_version += 2 if shard.round.misled else 1
        # A version is of one update at least.
        shard.updates = max(shard.updates + len(shard.pending), shard.model_version)
        shard.round.misled = False
        shard.members.were_there(shard.pending)
        shard.pending = {}
        shard.missing = set(shard.members.awaited)
        shard.round.opened_at, shard.round_changed = None, True

    def _apply(self, shard: _Shard, updates: Sequence[Update]) -> None:
        parameters = shard.parameters
        for block in _blocks(updates):
            kernels = list(chain.from_iterable(update.kernels for update in block))
            with np.errstate(over="ignore", invalid="ignore"):
                parameters = shard.step.apply(parameters, np.array(kernels, dtype=np.intp) // self.shards, self._steps(block))
            shard.changed_kernels.update(kernels)
        # A learning rate that is far too large makes them grow without end, and what is longer no client takes.
        parameters = np.clip(np.nan_to_num(parameters), -LARGEST_PARAMETERS, LARGEST_PARAMETERS)
        norms = _norms(parameters)
        if norms.max(initial=0.0) > LONGEST_ROW:
            parameters *= np.minimum(1.0, LONGEST_ROW / np.maximum(norms, LONGEST_ROW))[:, np.newaxis]
            self._counts["bounded"] += 1
            self._say(
                "model_bounded",
                f"shard {shard.number}: parameters reached a norm of {norms.max():g} and were shortened to {LONGEST_ROW:g}. Is "
                "learning.learning_rate far too large, or does somebody else write updates?",
            )
        shard.parameters = parameters.astype(self.dtype)
        shard.published = False
        self._counts["applied"] += len(updates)

    def _steps(self, updates: Sequence[Update]) -> NDArray[Any]:
        """The steps of all kernels of all updates, in order: (kernels sent, 2 D)."""
        numbers = np.frombuffer(b"".join(update.steps for update in updates), np.dtype(self.dtype).newbyteorder("<"))
        return numbers.reshape(-1, 2 * self.features)

    def _check(self, shard: _Shard, received: Received, now: float) -> None:
        update: Update = received.message
        if received.record.key != update.client.encode():
            raise PeerError("forged", f"update of client {update.client!r} under the key {received.record.key!r}")
        if update.fingerprint != self.fingerprint:
            shard.publication.check_fingerprint(update.fingerprint)
            raise PeerError(
                "configuration", "made without federation.features, or with others: give the client's [federation] the server's"
            )
        written_at = received.record.timestamp
        check_numbers(update.epoch, update.sequence, written_at if written_at > 0 else now)
        kernels = update.kernels
        if not shard.kernels.issuperset(kernels) or (len(kernels) > 1 and list(kernels) != sorted(set(kernels))):
            raise PeerError("kernel", f"kernels {kernels[:5]} are not an ascending subset of shard {received.partition}")
        expected = len(kernels) * 2 * self.features * np.dtype(self.dtype).itemsize
        if len(update.steps) != expected:
            raise PeerError("shape", f"steps of {len(kernels)} kernels have {len(update.steps)} bytes, expected {expected}")


def _set_back(shard: _Shard, now: float) -> None:
    """Let whatever was noted after ``now`` have been now: the clock was ahead."""
    if shard.round.opened_at is not None and shard.round.opened_at > now:
        shard.round.opened_at, shard.round_changed = now, True
    shard.members.set_back(now)


def _norms(steps: NDArray[Any]) -> NDArray[Any]:
    # A number whose square is infinite is longer than any bound.
    with np.errstate(over="ignore", invalid="ignore"):
        norms: NDArray[Any] = np.sqrt(np.einsum("ij,ij->i", steps, steps))
        return norms


def _blocks(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """The messages in order, cut where their steps would exceed ``BLOCK_BYTES``."""
    start = size = 0
    for index, message in enumerate(messages):
        steps = len(message.message.steps if isinstance(message, Received) else message.steps)
        if size + steps > BLOCK_BYTES and index > start:
            yield messages[start:index]
            start, size = index, 0
        size += steps
    yield messages[start:]
