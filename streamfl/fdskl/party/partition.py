"""What every party has of one partition: the owners of its state, and the messages for them."""

from __future__ import annotations

import msgspec
import numpy as np

from streamfl.contract.role import BadRecord, Record, Send
from streamfl.encoding.wire import VERSION, Count
from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import INCARNATION, REVISION, Incarnation, Revision
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.party.answered import Answered
from streamfl.fdskl.party.given import PartyGiven
from streamfl.fdskl.party.peers import Peers
from streamfl.fdskl.state import SENT_REVISIONS
from streamfl.fdskl.sums.own_columns import OwnColumns
from streamfl.fdskl.sums.own_part import OwnPart
from streamfl.fdskl.sums.secret import Secret
from streamfl.fdskl.sums.standardisation import Standardisation
from streamfl.fdskl.sums.sums import Sums
from streamfl.records.pending_headers import PendingHeaders
from streamfl.records.samples import Sample
from streamfl.roles.notices import Notices
from streamfl.roles.received_numbers import epoch_at, is_to_come
from streamfl.roles.task_role import PartsTask
from streamfl.state.changelog import ChangedParts
from streamfl.state.clock_guard import earliest

__all__ = ["PartyPartition"]


class _SentRevisions(msgspec.Struct, array_like=True):
    """epoch, sequence: of the revisions that were sent."""

    epoch: Count = 0
    sequence: Count = 0


class PartyPartition(PartsTask):
    """The owners of a partition's state, and its sums.

    settings, given: of the party.
    partition: its number.
    metrics: of all partitions.
    notices: for the operator.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        given: PartyGiven,
        partition: int,
        metrics: PartyMetrics,
        notices: Notices,
    ) -> None:
        aggregated, alignment = settings.aggregation, settings.alignment
        self._settings = settings
        self._parties = settings.federation.parties
        self._own = settings.own
        self.partition = partition
        self._metrics = metrics
        self.notices = notices
        self.parts = ChangedParts()
        count = len(settings.columns)
        self.peers = Peers(self.parts, self._parties, self._own, given.entropy)
        most, limit = settings.answered_features, alignment.limit
        self.columns = OwnColumns(
            self.parts, count, alignment.expiry_seconds, limit, metrics.forgotten_entities, most
        )
        draws_anew = aggregated.frequencies == "private"
        self.answered = Answered(self.parts, self.peers, draws_anew, not settings.is_open, metrics, notices)
        self.standardisation = Standardisation(
            self.parts, count, settings.standardisation, alignment.reply_seconds
        )
        self.secret = Secret(self.parts, given.secret, aggregated.secret_file is not None)
        # One more: a sample's headers are kept before the oldest forecast is forgotten for its own.
        self.pending_headers = PendingHeaders(self.parts, given.carry, limit + 1)
        self._sent_revisions = _SentRevisions()
        self._remember_sent = self.parts.single(SENT_REVISIONS, _SentRevisions, self._restore_sent)
        self._sends: list[Send] = []
        self.sums = Sums(
            settings,
            partition,
            self.peers,
            OwnPart(
                settings,
                given,
                partition,
                self.columns,
                self.standardisation,
                self.secret,
                self.answered,
                metrics,
            ),
            self.standardisation,
            self._sends,
            metrics,
            notices,
        )

    @property
    def is_empty(self) -> bool:
        """Whether no entity has come to it."""
        return not self.standardisation.seen

    @property
    def awaited(self) -> str | None:
        """What the columns' scale waits for, and how much of it is there; None once it is known."""
        seen, wanted = self.standardisation.seen, self._settings.standardisation.first_entities
        if self.standardisation.frozen:
            return None
        return (
            f"knows {seen:,} of {wanted:,} entities whose columns give their scale "
            "(standardisation.first_entities)"
        )

    # ---- what comes in

    def begin(self, now: float) -> None:
        """Set the time of the messages that follow, and announce this life to the others unless that was
        done. BadRecord if the state lacks what earlier answers were computed with."""
        self._check_whole()
        self.sums.begin(now)
        self.standardisation.begin(now)
        # In one commit with the announcement that others need before they ask: no answer uses a secret that
        # is not remembered.
        self.secret.remember()
        self.tell_of_this_life()

    def _check_whole(self) -> None:
        if self.answered.bandwidth is None:
            return
        if not (self.secret.is_remembered and self.standardisation.frozen):
            # With another secret, or in another scale, the model's coefficients would mean other features.
            lost = "scale of its columns" if self.secret.is_remembered else "secret"
            raise BadRecord(
                "malformed",
                f"partition {self.partition} lacks the {lost}, although features were computed with it",
            )

    def tell_of_this_life(self) -> None:
        """Announce this life to the others unless that was done."""
        if not self.peers.are_told:
            self._tell_all()

    def take_sample(self, sample: Sample, record: Record, now: float) -> bool:
        """Take an entity's own columns. Returns whether others were answered with older ones, or without."""
        self._metrics.samples += 1
        entity, columns = sample.client, np.array(sample.features, np.float64)
        self.pending_headers.came(entity, record)
        self.standardisation.see(columns, now)
        late = self.columns.put(entity, columns.astype("<f8").tobytes(), now)
        self.sums.columns_came(entity)
        return late

    def tell_revision(self, entity: str, now: float) -> None:
        """Tell the active party to ask for an entity again."""
        settings, sent = self._settings, self._sent_revisions
        if not sent.epoch or is_to_come(sent.epoch, now):
            # An epoch from a clock far ahead would be refused until that time comes.
            sent.epoch = max(1, epoch_at(now))
        sent.sequence += 1
        self._remember_sent(sent)
        self._metrics.revisions_sent += 1
        message = Revision(
            VERSION, settings.fingerprint, self._parties[self._own], sent.epoch, sent.sequence, entity
        )
        self._send(f"revisions/{settings.federation.active_party}", REVISION.encode(message))

    def take_incarnation(self, message: Incarnation, now: float) -> None:
        """Take a party's announcement of its sent. Rounds that name another life of it are given up.

        This party answers a new life at once, and announces its own again soon if the other party knows
        another one. So a party that has lost its state learns the lives of all others, and a false
        announcement, in anybody's name, is corrected.
        """
        party = self.sums.party_of(message.sender)
        if self.peers.was_heard(party, message):
            self._metrics.ignored_messages["incarnation_again"] += 1
            return
        known = self.peers.knows(party, message.number)
        began = self.peers.hear(party, message)
        # A party that announces rounds takes a known life that comes again for the current one. Others accept
        # any known life.
        if began and (not known or self._settings.is_active):
            self.sums.party_began(party, message.number)
        if began:
            self._tell(party)
        elif message.known != self.peers.incarnation.number:
            self.peers.is_mistaken(now)

    def pass_time(self, now: float) -> None:
        """A tick."""
        correction_at = self.peers.correction_at
        if correction_at is not None and correction_at <= now:
            self.peers.mistaken_since = None
            self._tell_all()
        self.sums.pass_time(now)
        self.columns.expire(now)

    def set_back(self, now: float) -> None:
        """The clock was ahead: set later times back to ``now``."""
        if self.peers.mistaken_since is not None:
            self.peers.mistaken_since = min(self.peers.mistaken_since, now)
        self.columns.set_back(now)
        self.sums.set_back(now)
        self.standardisation.set_back(now)

    @property
    def wake_at(self) -> float | None:
        return earliest(self.columns.wake_at, self.sums.wake_at, self.peers.correction_at)

    def take_sends(self) -> list[Send]:
        """Take out the messages to send."""
        sends = self._sends[:]
        self._sends.clear()
        return sends

    def _tell_all(self) -> None:
        for party in range(len(self._parties)):
            if party != self._own:
                self._tell(party)

    def _tell(self, party: int) -> None:
        peers, incarnation = self.peers, self.peers.incarnation
        message = Incarnation(
            VERSION,
            self._settings.fingerprint,
            self._parties[self._own],
            incarnation.number,
            incarnation.public,
            peers.tell(),
            peers.number_of(party) if peers.knows_of(party) else 0,
        )
        self._send(f"incarnations/{self._parties[party]}", INCARNATION.encode(message))

    def _send(self, channel: str, content: bytes) -> None:
        self._sends.append(Send(channel, None, content, self.partition))

    def _restore_sent(self, sent: _SentRevisions) -> None:
        self._sent_revisions = sent
