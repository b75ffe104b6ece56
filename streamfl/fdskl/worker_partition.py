"""What a party holds of one partition, whoever it is: the owners of its state, and what comes in for them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from streamfl.changelog import ChangedParts
from streamfl.fdskl.answered import Answered
from streamfl.fdskl.figures import WorkerFigures
from streamfl.fdskl.messages import INCARNATION, REVISION, Incarnation, Revision
from streamfl.fdskl.own_columns import OwnColumns
from streamfl.fdskl.own_part import OwnPart
from streamfl.fdskl.peers import Peers
from streamfl.fdskl.secret import Secret
from streamfl.fdskl.standardisation import Standardisation
from streamfl.fdskl.sums import Sums
from streamfl.fdskl.worker_settings import WorkerSettings
from streamfl.notices import Notices
from streamfl.received_numbers import epoch_at, is_to_come
from streamfl.records.pending_headers import PendingHeaders
from streamfl.records.samples import Sample
from streamfl.role import Record, Send
from streamfl.wire import VERSION, Count

__all__ = ["WorkerPartition"]


class _Life(msgspec.Struct, array_like=True):
    """epoch, sequence: of the revisions that were sent."""

    epoch: Count = 0
    sequence: Count = 0


class WorkerPartition:
    """The owners of a partition's state, and its sums.

    settings: of the party.
    partition: its number.
    figures: of all partitions.
    notices: for the operator.
    """

    def __init__(self, settings: WorkerSettings, partition: int, figures: WorkerFigures, notices: Notices) -> None:
        self._settings = settings
        self.partition = partition
        self._figures = figures
        self.notices = notices
        self.parts = ChangedParts()
        count = len(settings.columns)
        self.peers = Peers(self.parts, settings.parties, settings.own, settings.entropy)
        most = settings.features_per_entity
        self.columns = OwnColumns(self.parts, count, settings.expiry, settings.limit, figures.forgotten, most)
        self.answered = Answered(self.parts, self.peers, not settings.shared, not settings.is_open, figures, notices)
        self.standardisation = Standardisation(
            self.parts, count, settings.standardise, settings.first_entities, settings.reply_seconds, settings.auto
        )
        self.secret = Secret(self.parts, settings.secret, settings.secret_is_given)
        # One more: a sample's are there before the oldest forecast gives way to its own.
        self.pending_headers = PendingHeaders(self.parts, settings.carry, settings.limit + 1)
        self._life = _Life()
        self._sends: list[Send] = []
        self.sums = Sums(
            settings,
            partition,
            self.peers,
            OwnPart(settings, partition, self.columns, self.standardisation, self.secret, self.answered, figures),
            self.standardisation,
            self._sends,
            figures,
            notices,
        )

    @property
    def awaited(self) -> str | None:
        """What the columns' scale waits for, and how much of it is there; None once it is known."""
        seen, wanted = self.standardisation.seen, self._settings.first_entities
        if self.standardisation.frozen:
            return None
        return f"knows {seen:,} of {wanted:,} entities whose columns give their scale (alignment.first_entities)"

    # ---- what comes in

    def begin(self, now: float) -> None:
        """Messages of this time follow. Tell the others of this life, unless they were."""
        self.sums.begin(now)
        self.standardisation.begin(now)
        # In one commit with what others have to know before they ask: no answer is of a secret that is not remembered.
        self.secret.remember()
        self.tell_of_this_life()

    def tell_of_this_life(self) -> None:
        """Tell the others of it, unless they were."""
        if not self.peers.are_told:
            self._tell_all()

    def take_sample(self, sample: Sample, record: Record, now: float) -> bool:
        """An entity's own columns came. Returns whether others had to do with older ones, or without."""
        self._figures.counts["samples"] += 1
        entity, columns = sample.client, np.array(sample.features, np.float64)
        self.pending_headers.came(entity, record)
        self.standardisation.see(columns, now)
        late = self.columns.put(entity, columns.astype("<f8").tobytes(), now)
        self.sums.columns_came(entity)
        return late

    def tell_revision(self, entity: str, now: float) -> None:
        """The active party has to ask for an entity again."""
        settings, life = self._settings, self._life
        if not life.epoch or is_to_come(life.epoch, now):
            # One that a clock far ahead has named would be refused until that time comes.
            life.epoch = max(1, epoch_at(now))
        life.sequence += 1
        self.parts.remember(b"life", life)
        self._figures.counts["revisions_sent"] += 1
        message = Revision(VERSION, settings.fingerprint, settings.name, life.epoch, life.sequence, entity)
        self._send(f"revisions/{settings.parties[settings.root]}", REVISION.encode(message))

    def take_incarnation(self, message: Incarnation) -> None:
        """A party says which life of it this is: what names another one comes to nothing.

        It is answered where the life is new, or where the party knows another one of this party: so whoever has lost its state
        hears of all others, and whoever was told wrongly, in whosever name, is put right.
        """
        party = self.sums.party_of(message.sender)
        if self.peers.was_heard(party, message):
            self._figures.ignored["incarnation_again"] += 1
            return
        known = self.peers.knows(party, message.number)
        began = self.peers.hear(party, message)
        # A life that was heard of before is the present one for whoever announces rounds; for others it is as good as any.
        if began and (not known or self._settings.own in self._settings.actives):
            self.sums.party_began(party, message.number)
        if began or message.known != self.peers.incarnation.number:
            self._tell(party)

    def pass_time(self, now: float) -> None:
        """A tick."""
        if self.peers.mistaken_since is not None:
            # However often it was mistaken since the last.
            self.peers.mistaken_since = None
            self._tell_all()
        self.sums.pass_time(now)
        self.columns.expire(now)

    def set_back(self, now: float) -> None:
        """The clock was ahead."""
        if self.peers.mistaken_since is not None:
            self.peers.mistaken_since = min(self.peers.mistaken_since, now)
        self.columns.set_back(now)
        self.sums.pending.set_back(now)
        self.standardisation.set_back(now)

    @property
    def wake_at(self) -> float | None:
        times = (self.columns.wake_at, self.sums.wake_at, self.peers.mistaken_since)
        return min((at for at in times if at is not None), default=None)

    def take_sends(self) -> list[Send]:
        """What has to go out."""
        sends = self._sends[:]
        self._sends.clear()
        return sends

    def _tell_all(self) -> None:
        for party in range(len(self._settings.parties)):
            if party != self._settings.own:
                self._tell(party)

    def _tell(self, party: int) -> None:
        settings, peers, incarnation = self._settings, self.peers, self.peers.incarnation
        message = Incarnation(
            VERSION,
            settings.fingerprint,
            settings.name,
            incarnation.number,
            incarnation.public,
            peers.tell(),
            peers.number_of(party) if peers.knows_of(party) else 0,
        )
        self._send(f"incarnations/{settings.parties[party]}", INCARNATION.encode(message))

    def _send(self, channel: str, content: bytes) -> None:
        self._sends.append(Send(channel, None, content, self.partition))

    # ---- state

    def changed_state(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter(self.parts.changed_state())

    def restore(self, key: bytes, value: bytes) -> bool:
        """Take back one part; False if it is not of this. Raises PeerError or ValueError for what cannot have been remembered."""
        kind, _, name = key.partition(b"/")
        if key == b"columns":
            self.standardisation.restore(value)
        elif key == b"secret":
            self.secret.restore(value)
        elif key == b"rescaled":
            self.answered.restore(value)
        elif key == b"told":
            self.peers.restore_told(value)
        elif key == b"life":
            self._life = msgspec.msgpack.decode(value, type=_Life)
        elif kind == b"entity":
            self.columns.restore(name, value)
        elif kind == b"peer":
            self.peers.restore(name, value)
        else:
            return self.pending_headers.restore(key, value)
        return True
