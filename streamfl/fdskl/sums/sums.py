"""The sums of one partition: a party adds its own part to the sums of the parties below it.

FDSKL, Algorithms 2 and 3. Rounds under way are not remembered: after a restart the party has another
incarnation, and every round that named the old one is abandoned.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord, Send
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import KNOWN, OUTPUTS, PARTIAL_SUM, PartialSum, Round, identity_of
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.party.peers import Peers
from streamfl.fdskl.sums.contributions import LARGEST_PART
from streamfl.fdskl.sums.early_sums import EarlySums
from streamfl.fdskl.sums.masks import checked
from streamfl.fdskl.sums.own_part import OwnPart
from streamfl.fdskl.sums.pending_sums import FIRST_MASK_STAGE, STAGES, SUM, Key, PendingSum, PendingSums
from streamfl.fdskl.sums.received_rounds import ReceivedRounds
from streamfl.fdskl.sums.round_checks import checked_root
from streamfl.fdskl.sums.standardisation import Standardisation
from streamfl.roles.notices import Notices

__all__ = ["Collector", "Sums"]

# Most rounds under way at a party, in multiples of rounds_in_flight.
PENDING = 4


class Collector(Protocol):
    """Takes the results of rounds, at an active party."""

    def complete(self, key: Key, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        """Take a round's sum over all parties, without masks. known: how many parties had the columns of each
        entity."""

    def abandoned(self, key: Key) -> None:
        """A round was given up."""


class Outputs(Protocol):
    """Computes f_l' of entities, at one of several active parties."""

    def want(self, key: Key, announced: Round) -> None:
        """Compute them for this round."""

    def has(self, key: Key) -> bool:
        """Whether they are known."""

    def drop(self, key: Key) -> NDArray[np.float64] | None:
        """Forget a round that is answered or over. Returns its outputs, (n,), if they are known."""


class Sums:
    """Answers rounds. It remembers nothing.

    settings: of the party.
    partition: its number.
    peers, own_part, standardisation: the owners of what goes into a sum.
    sends: list to which messages to send are added.
    metrics, notices: for the operator.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        partition: int,
        peers: Peers,
        own_part: OwnPart,
        standardisation: Standardisation,
        sends: list[Send],
        metrics: PartyMetrics,
        notices: Notices,
    ) -> None:
        self._settings = settings
        self._own = settings.own
        self._parties = settings.federation.parties
        self._actives = settings.federation.actives
        self._trees = settings.trees
        self._round_seconds = settings.aggregation.round_seconds
        self._reply_seconds = settings.alignment.reply_seconds
        self._partition = partition
        self._peers = peers
        self.own_part = own_part
        self._standardisation = standardisation
        self._sends = sends
        self._metrics = metrics
        self._notices = notices
        actives = len(self._actives)
        # With several active parties each also has rounds of outputs under way, and of the phases for them.
        most = PENDING * settings.aggregation.rounds_in_flight * (1 if actives == 1 else 2 * actives)
        self.pending = PendingSums(self._own, self._trees, most, self._abandon)
        self.early = EarlySums(most)
        self.collector: Collector | None = None
        self.outputs: Outputs | None = None
        self._received = ReceivedRounds()
        self._last_now = 0.0
        # Before the last sample.
        self._scale_was_known = False

    def begin(self, now: float) -> None:
        """Set the time of the messages that follow."""
        self._last_now = now

    def columns_came(self, entity: str) -> None:
        """Answer rounds that waited for this entity's own columns, or for the columns' scale."""
        for key, pending in self.pending.waiting():
            if entity in pending.missing or not self._scale_was_known:
                # An entity that has reached features_per_entity still counts as unknown.
                if not self.own_part.missing_of((entity,)):
                    pending.missing.discard(entity)
                self._answer_if_possible(key, pending)
        self._scale_was_known = self._standardisation.frozen

    def party_began(self, party: int, number: int) -> None:
        """A party has begun another life: give up the rounds that name another one."""
        if party in self._actives:
            self.pending.abandon_all("incarnation", but=number, root=party)
        self.try_again()
        for key, pending in self.pending.all():
            if pending.announced.incarnations[party] != number:
                self.pending.abandon(key, "incarnation")

    def try_again(self) -> None:
        """More is known than before: answer the rounds that waited for it."""
        for key, pending in self.pending.waiting():
            self._answer_if_possible(key, pending)

    def take_round(self, message: Round, content: bytes, now: float) -> None:
        """An active party asks for a sum. BadRecord for what cannot be asked."""
        root = checked_root(message, self._settings)
        if root != self._own:
            self.own_part.answered.check(message)
        key = message.incarnations[root], message.number
        if message.incarnations[self._own] != self._peers.incarnation.number:
            self._metrics.ignored_messages["old_incarnation"] += 1
            self._peers.is_mistaken(now)
            return
        identity = identity_of(content, self._settings.federation.name, self._partition)
        if root != self._own and (self._received.is_crowded(key) or self._received.is_another(key, identity)):
            # If two rounds had one name, one would be shut out. A round that cannot be noted could be
            # answered twice.
            self._received.forget()
            self.pending.abandon_all("incarnation")
            self._peers.begin_anew()
            return
        if not self._received.note(key, identity):
            self._metrics.ignored_messages["round_again"] += 1
            return
        self._metrics.rounds += 1
        total = SUM + STAGES * self._actives.index(root)
        missing = self.own_part.missing_of(message.entities)
        pending = PendingSum(now, message, identity, total, missing)
        self.pending.begin(key, pending)
        for one in self.early.take(key):
            try:
                self._add(key, pending, one)
            except BadRecord as error:
                self._metrics.ignored_messages["wrong_early_sum"] += 1
                self._notices.say("wrong_early_sum", str(error))
        if message.purpose == OUTPUTS and self.outputs is not None:
            self.outputs.want(key, message)
        self._answer_if_possible(key, pending)
        self._go_on(key, pending)

    def take_sum(self, message: PartialSum, now: float) -> None:
        """A sum came from below. BadRecord for one that cannot be of that party."""
        party = self.party_of(message.sender)
        self.pending.check_sender(party, message)
        key = message.incarnation, message.number
        pending = self.pending.get(key)
        if pending is None:
            if key in self._received:
                self._metrics.ignored_messages["late_sum"] += 1
                return
            total = message.stage - message.stage % STAGES + SUM
            if self._own == self._trees[total].root:
                # The party that announces rounds knows all of its own.
                self._metrics.ignored_messages["old_incarnation"] += 1
                return
            forgotten = self.early.put(key, message, now)
            if forgotten is None:
                self._metrics.ignored_messages["sum_again"] += 1
            else:
                self._metrics.ignored_messages["old_incarnation"] += forgotten
            return
        self._add(key, pending, message)
        self._go_on(key, pending)

    def pass_time(self, now: float) -> None:
        """A tick: answer without columns that did not come in time, and give up rounds that took too long."""
        for key, pending in self.pending.waiting():
            self._answer_if_possible(key, pending, overdue=pending.since + self._reply_seconds <= now)
        if (at := self._freezes_at) is not None and at <= now:
            # Answers go out with a later commit. Otherwise a crash could forget the moments that an answer
            # was computed with.
            self._standardisation.freeze()
        self.pending.expire(self._round_seconds, now)
        # The round was never announced to this life of the party.
        self._metrics.ignored_messages["old_incarnation"] += self.early.expire(self._round_seconds, now)

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        self.pending.set_back(now)
        self.early.set_back(now)

    @property
    def _freezes_at(self) -> float | None:
        """When the columns' scale is taken from fewer entities than wanted, because a round waits for it."""
        if self._standardisation.frozen:
            return None
        waiting = (pending for key, pending in self.pending.waiting() if self._may_answer(key, pending))
        oldest = min((pending.since for pending in waiting if not self._knows_scale(pending)), default=None)
        until = self._standardisation.waits_until
        return None if oldest is None else min(oldest + self._reply_seconds, max(oldest, until))

    @property
    def wake_at(self) -> float | None:
        oldest = self.pending.oldest, self.early.oldest
        times = [since + self._round_seconds for since in oldest if since is not None]
        for key, pending in self.pending.waiting():
            if self._may_answer(key, pending) and self._knows_scale(pending):
                times.append(pending.since + (self._reply_seconds if pending.missing else 0.0))
        if (at := self._freezes_at) is not None:
            times.append(at)
        return min(times, default=None)

    def party_of(self, name: str) -> int:
        """A party's number. BadRecord for a name that no other party has."""
        if name not in self._parties or name == self._parties[self._own]:
            raise BadRecord("forged", f"{name!r} is no other party of this federation")
        return self._parties.index(name)

    # ----

    def _may_answer(self, key: Key, pending: PendingSum) -> bool:
        """Whether the round names known lives of all parties, and the outputs that it asks for are known."""
        announced = pending.announced
        if pending.answered or not self._peers.know(announced.incarnations):
            return False
        return announced.purpose != OUTPUTS or self.outputs is None or self.outputs.has(key)

    def _knows_scale(self, pending: PendingSum) -> bool:
        """Whether the columns' scale is known, or no column goes into the round's sum."""
        return self._standardisation.frozen or pending.announced.purpose == KNOWN

    def _answer_if_possible(self, key: Key, pending: PendingSum, overdue: bool = False) -> None:
        """Add the own part if its columns are here. overdue: use the mean of missing ones."""
        if not self._may_answer(key, pending):
            return
        if not self._knows_scale(pending) or (pending.missing and not overdue):
            return
        outputs = None
        if pending.announced.purpose == OUTPUTS:
            outputs = np.zeros(len(pending.announced.entities))
            found = None if self.outputs is None else self.outputs.drop(key)
            if found is not None:
                outputs = found
            if not (np.abs(outputs) <= LARGEST_PART).all():
                # The asking party gives the round up when its time is over. If it did so at once, it would
                # ask again at once.
                self._notices.say("range")
                return
        self.own_part.put_into(
            pending, self._peers.pair_secrets(pending.announced.incarnations), outputs, self._last_now
        )
        self._go_on(key, pending)

    def _add(self, key: Key, pending: PendingSum, message: PartialSum) -> None:
        if message.stage not in self.own_part.stages(pending):
            raise BadRecord("topology", f"a sum of stage {message.stage}, which the round does not have")
        size, dtype = self.own_part.size(pending, message.stage)
        if self.pending.add(pending, self.party_of(message.sender), message, size, dtype):
            self._metrics.sums_received += 1
        else:
            self._metrics.ignored_messages["sum_again"] += 1

    def _go_on(self, key: Key, pending: PendingSum) -> None:
        """Send on the sums that are complete. The party that asked opens the sum when all its stages are
        complete."""
        if not pending.answered or self.pending.get(key) is not pending:
            return
        stages = [stage for stage in self.own_part.stages(pending) if stage != FIRST_MASK_STAGE + self._own]
        if self._own == self.pending.root_of(pending):
            if all(self.pending.is_whole(pending, stage) for stage in stages):
                self._open(key, pending, stages)
            return
        for stage in stages:
            if stage not in pending.sent and self.pending.is_whole(pending, stage):
                self._send_sum(key, pending, stage)
        if pending.sent == set(stages):
            self.pending.end(key)

    def _send_sum(self, key: Key, pending: PendingSum, stage: int) -> None:
        sums = pending.stage(stage)
        assert sums.values is not None
        assert sums.known is not None
        parent = self._trees[stage].parent[self._own]
        assert parent is not None
        values = sums.values.astype(sums.values.dtype.newbyteorder("<"), copy=False).tobytes()
        content = PARTIAL_SUM.encode(
            PartialSum(
                VERSION,
                self._settings.fingerprint,
                self._parties[self._own],
                *key,
                pending.identity,
                stage,
                sorted(sums.contributors),
                sums.known.tobytes(),
                values,
            )
        )
        pending.sent.add(stage)
        self._metrics.sums_sent += 1
        self._metrics.sums_sent_bytes += len(content)
        self._send(f"sums/{self._parties[parent]}", content)

    def _open(self, key: Key, pending: PendingSum, stages: list[int]) -> None:
        sums = pending.stage(pending.total)
        assert sums.values is not None
        assert sums.known is not None
        self.pending.end(key)
        total = checked(sums.values)
        if total is None:
            self._abandon(key, pending, "masks")
            return
        for stage in stages:
            if stage != pending.total and (masks := pending.stage(stage).values) is not None:
                own = self.own_part.contributions.owners(pending.announced) == stage - FIRST_MASK_STAGE
                total = total.reshape(len(pending.announced.entities), -1).copy()
                total[:, own] -= masks[: int(own.sum())]
        self._metrics.sums_opened += 1
        assert self.collector is not None
        self.collector.complete(key, total.ravel(), sums.known)

    def _abandon(self, key: Key, pending: PendingSum, reason: str) -> None:
        self._metrics.abandoned_rounds[reason] += 1
        text = None
        if reason == "timeout":
            self._metrics.timed_out_rounds += 1
            lacking = self.pending.lacking(pending, pending.total)
            names = ", ".join(self._parties[number] for number in lacking[:8])
            text = (
                f"a round was not complete in {self._round_seconds:g} s; no part came from "
                f"{names or 'nobody'}"
            )
        self._notices.say(f"round_{reason}", text)
        if self.outputs is not None:
            self.outputs.drop(key)
        if self.collector is not None:
            self.collector.abandoned(key)

    def _send(self, channel: str, content: bytes) -> None:
        self._sends.append(Send(channel, None, content, self._partition))
