"""One shard of the server: decides which updates count, and when the model takes a step with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from streamfl.contract.role import BadRecord, ConfigurationError, Received, Rejection, StateChange
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import LARGEST_STEP, LARGEST_TARGET, UPDATE, Update
from streamfl.pofmkl.server.given import ServerGiven
from streamfl.pofmkl.server.members import ShardMembers
from streamfl.pofmkl.server.rounds import OpenRound
from streamfl.pofmkl.server.shard_model import Restore, ShardModel, blocks, norms
from streamfl.pofmkl.server.update_problems import UpdateProblems
from streamfl.pofmkl.state import MEMBER, PENDING, ROUND
from streamfl.roles.received_numbers import check_numbers
from streamfl.state.clock_guard import time_written, time_written_by
from streamfl.state.table import prefix_of

__all__ = ["Shard"]

# Most clients named in a line of the log.
NAMED = 5


class Shard:
    """Coordinates the owners of a shard's state: its members, its round and its model.

    number: of this shard and of the partition with its updates.
    problems: counts and logs what happens to updates.
    """

    def __init__(
        self, settings: PofmklSettings, given: ServerGiven, number: int, problems: UpdateProblems
    ) -> None:
        federation, learning = settings.federation, settings.learning
        self.members = ShardMembers(federation.clients, federation.client_expiry_seconds)
        self.round = OpenRound(learning.round_timeout_seconds)
        self.model = ShardModel(settings, given, number, problems)
        self._federation = federation
        self._lockstep = learning.lockstep
        self._row_bytes = learning.row_length * np.dtype(learning.dtype).itemsize
        self._number = number
        self._problems = problems
        self._settled = False
        self._restores: dict[bytes, Restore] = {
            MEMBER.prefix: self.members.restore,
            PENDING.prefix: self._restore_pending,
            ROUND.prefix: self.round.restore,
            **self.model.restores,
        }

    def settle(self) -> None:
        """Check the restored state, once, after all of it is there. ConfigurationError if it does not fit the
        settings."""
        if self._settled:
            return
        self._settled = True
        dimension, remembered = self._federation.dimension, self.round.dimension
        if dimension is None and not remembered:
            raise ConfigurationError(
                "federation.features is missing: a new federation has to name the features of its samples, "
                "such as "
                'features = ["t1", "t2"] in [federation], the same at every member; or their number, such as '
                "features = 16, "
                "if they come as one list"
            )
        if dimension is not None:
            if remembered not in (0, dimension):
                raise ConfigurationError(
                    f"federation.features: {dimension} are given, but the model was learnt from "
                    f"{remembered}. Give the features that it was learnt from, or set another "
                    "federation.name to start over"
                )
            if not remembered:
                self.round.dimension = dimension
        self.model.settle(self.round.dimension)
        self.round.missing = self.members.awaited - self.round.pending.keys()
        was_lockstep = self.model.version != self.model.updates or self.round.over_at is not None
        if not self._lockstep and was_lockstep:
            if self.round.pending:
                self._close_round()
            self.model.count_updates_from_now()
            self.round.leave()

    def receive(self, messages: Sequence[Received], now: float, rejections: list[Rejection]) -> None:
        """Process messages in order. Those refused are added to ``rejections``."""
        for block in blocks(messages, lambda received: received.message):
            self._receive_block(block, now, rejections)
        self.members.batch_is_over()

    def _receive_block(self, messages: Sequence[Received], now: float, rejections: list[Rejection]) -> None:
        """Process messages whose steps are checked and applied together."""
        sound: list[Received] = []
        for received in messages:
            try:
                self._check(received, now)
                sound.append(received)
            except BadRecord as error:
                rejections.append(Rejection(received, error))
        steps = self.model.steps_of([received.message for received in sound])
        largest_norm = self.model.step.largest_norm
        # One comparison for all rows. It is False for a NaN, too.
        bounded = np.abs(steps).max(axis=1, initial=0.0) <= LARGEST_STEP
        short = bounded if largest_norm is None else norms(steps) <= largest_norm
        all_sound = bool((bounded & short).all())
        applied: list[Update] = []
        row = 0
        for received in sound:
            update: Update = received.message
            rows = slice(row, row := row + len(update.kernels))
            try:
                if not (all_sound or bounded[rows].all()):
                    raise BadRecord(
                        "not_finite", f"a step holds a NaN, an infinity or a number above {LARGEST_STEP:g}"
                    )
                if not (all_sound or short[rows].all()):
                    raise BadRecord(
                        "too_large", f"a target row is longer than {LARGEST_TARGET:g}: is its label clipped?"
                    )
                # The clock that wrote the record's time may be ahead.
                if self._hear(update, time_written_by(now, received.record.timestamp), now):
                    applied.append(update)
            except BadRecord as error:
                rejections.append(Rejection(received, error))
        if applied:
            self.model.apply(applied)

    def _check(self, received: Received, now: float) -> None:
        """Raises BadRecord for an update that no client of this federation writes, whatever its earlier
        updates."""
        update: Update = received.message
        model = self.model
        if received.record.key != update.client.encode():
            raise BadRecord(
                "forged", f"update of client {update.client!r} under the key {received.record.key!r}"
            )
        model.check_fingerprint(update.fingerprint)
        check_numbers(update.epoch, update.sequence, time_written(received.record.timestamp, now))
        self._check_kernels(update)

    def _check_kernels(self, update: Update) -> None:
        """Raises BadRecord for kernels that this shard does not have, and for steps that do not fit them."""
        model, kernels = self.model, update.kernels
        if not model.kernels.issuperset(kernels) or (
            len(kernels) > 1 and list(kernels) != sorted(set(kernels))
        ):
            raise BadRecord(
                "kernel", f"kernels {kernels[:5]} are not an ascending subset of shard {self._number}"
            )
        expected = len(kernels) * self._row_bytes
        if len(update.steps) != expected:
            raise BadRecord(
                "shape",
                f"steps of {len(kernels)} kernels have {len(update.steps)} bytes, expected {expected}",
            )

    def _hear(self, update: Update, at: float, now: float) -> bool:
        """Take an update that was written ``at`` and received ``now``. Returns whether it is to be applied at
        once."""
        lockstep, model, members, problems = self._lockstep, self.model, self.members, self._problems
        # Refusals come first: the time of a refused message must not close a round.
        if update.dimension != self.round.dimension:
            raise BadRecord(
                "configuration",
                f"made from samples of {update.dimension} features; the federation's have "
                f"{self.round.dimension}",
            )
        name = update.client
        if update.model_version > model.version:
            self._hear_of_unknown_version(update)
        if members.was_heard(name, update.epoch, update.sequence) and not self._is_made_again(update):
            text = (
                f"update {update.sequence} of client {name!r} was repeated and had no effect; if this "
                "continues, two processes send for this client"
            )
            problems.ignore("duplicate", text)
            return False
        if not update.kernels and (not lockstep or update.model_version < model.version):
            problems.ignore(
                "empty", f"client {name!r} sent an empty update, on version {update.model_version}"
            )
            return False
        giving_way = members.make_room(name, at, bool(update.kernels))
        if lockstep:
            self.close_timed_out(at)
            if update.model_version < model.version - 1:
                self._ignore_late(update)
                return False
        if giving_way is not None:
            self._forget(giving_way)
            problems.expired_clients += 1
        if members.note(name, update.epoch, update.sequence, at, now, bool(update.kernels)):
            problems.superseded += 1
            problems.say(
                "superseded",
                f"client {name!r} has two senders: update {update.sequence} of epoch {update.epoch} came "
                "after a later one. Are its samples in two partitions (key them by client), or does somebody "
                "else send in its name?",
            )
        problems.staleness = float(max(0, model.version - update.model_version))
        if not lockstep:
            model.count_updates()
            return True
        members.takes_part(name, update.model_version)
        if update.model_version < model.version:
            if name in members.awaited and name not in self.round.pending:
                self.round.missing.add(name)
            self._ignore_late(update)
            return False
        self.round.add(update, at)
        self._close_complete()
        return False

    def _hear_of_unknown_version(self, update: Update) -> None:
        """Handle an update on a version that was never published. BadRecord if its steps depend on that
        version."""
        lockstep, model = self._lockstep, self.model
        model.publish_anew(update)
        if update.model_version == model.version + 1 and lockstep and self._federation.shards == 1:
            # Skip the version: clients wait for one on which they have sent nothing. Several shards have to
            # stay at one version.
            self.round.mislead()
        if lockstep or model.step.largest_norm is None:
            raise BadRecord(
                "unknown_version",
                f"the update names version {update.model_version}, which was never published: "
                f"{model.version} was",
            )

    def _is_made_again(self, update: Update) -> bool:
        """Whether a client repeats a number in a round in which it has no update yet.

        Under at_least_once a client may be killed after its update was sent and before its state was stored.
        It then sends another update under the same number, on the next version. If that was ignored the round
        would wait for ever.
        """
        current = update.model_version == self.model.version and update.client not in self.round.pending
        return self._lockstep and current and self.members.speaks_for(update.client, update.epoch)

    def _ignore_late(self, update: Update) -> None:
        # Another writer may have published another version to the client. The client then waits for the
        # version to change.
        self.model.tell_again(update.model_version)
        self._problems.ignore(
            "late",
            f"an update of client {update.client!r} is of version {update.model_version}, the round is of "
            f"{self.model.version}: "
            'it had no effect. If most are late, is learning.staleness = "lockstep" at the clients as it is '
            "here?",
        )

    def forget(self, name: str) -> None:
        """Forget a client, and close the round if it waited for nobody else."""
        self.settle()
        self._forget(name)
        self._close_complete()

    def _forget(self, name: str) -> None:
        self.members.forget(name)
        self.round.forget(name)

    def lose_updates(self, now: float) -> None:
        """Updates were deleted unread: let a version come for which their clients wait."""
        self.settle()
        if self._lockstep:
            self.round.open(now)
        else:
            self.model.count_updates()
            self.model.tell_again(self.model.version)

    def close_timed_out(self, at: float) -> None:
        """Close the round if it has timed out by ``at``."""
        over_at = self.round.over_at
        if over_at is None or at < over_at:
            return
        self._problems.timed_out_rounds += 1
        clients, heard, silent = self._federation.clients, len(self.round.pending), sorted(self.round.missing)
        unheard = 0 if self.round.record.ever_timed_out else clients - heard - len(silent)
        names = ", ".join(map(repr, silent[:NAMED])) + (
            f" and {len(silent) - NAMED} more" if len(silent) > NAMED else ""
        )
        self._problems.say(
            "round_timed_out",
            f"round {self.model.version} of shard {self._number} was closed after {self.round.timeout:g} s "
            f"with {heard} clients, without {names or 'any client known before'}"
            + (f"; {unheard} of federation.clients = {clients} never sent an update" if unheard > 0 else "")
            + (
                ". The server does not wait for it until it takes part again; with learning.staleness = "
                '"async" it waits for nobody'
                if heard
                else ". Updates were deleted before the server read them: clients go on with the next version"
            ),
        )
        if heard:
            self.members.let_time_out(silent)
            self.round.let_time_out()
        self._close_round()

    def _close_complete(self) -> None:
        if self.round.is_complete(self._federation.clients):
            self._close_round()

    def _close_round(self) -> None:
        updates = self.round.in_order()
        self.model.apply(updates)
        self.model.end_round(len(updates), self.round.record.misled)
        self.members.were_there(self.round.pending)
        self.round.begin_anew(self.members.awaited)

    def set_back(self, now: float) -> None:
        """Set times after ``now`` back to ``now``: the clock was ahead."""
        self.round.set_back(now)
        self.members.set_back(now)

    def changed_state(self) -> Iterable[StateChange]:
        for name, member in self.members.changed_state():
            yield StateChange("state", self._number, MEMBER.prefix + name.encode(), member)
        for key, value in self.round.changed_state():
            yield StateChange("state", self._number, key, value)
        yield from self.model.changed_state(self.round.dimension)

    def _restore_pending(self, name: bytes, value: bytes) -> None:
        update = UPDATE.decode(value)
        self._check_kernels(update)
        self.round.pending[name.decode()] = update

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore a value of the server's changelog; BadRecord if its key is unknown."""
        self.model.was_remembered()
        prefix = prefix_of(key)
        restore = self._restores.get(prefix)
        if restore is None:
            raise BadRecord("malformed", f"server state {key!r} is not known to this release")
        restore(key[len(prefix) :], value)
