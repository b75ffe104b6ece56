"""When a party is ready for a training: for the first one, for another on a schedule, and for one after a
failure."""

from __future__ import annotations

import hashlib
import math
from typing import Annotated

import msgspec

from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.identity.keys import derive
from streamfl.quasi_newton.config import QuasiNewtonSettings
from streamfl.quasi_newton.encryption.keys import digest_of
from streamfl.quasi_newton.members.training_progress import (
    FAILED,
    GATHERING,
    READY,
    TRAINED,
    TrainingProgress,
)
from streamfl.quasi_newton.rows.learnt_batches import LearntBatches
from streamfl.quasi_newton.rows.table import EntityTable
from streamfl.quasi_newton.state import SINCE
from streamfl.state.changelog import ChangedParts

__all__ = ["HeldOut", "Readiness"]

WHOLE = 2**64
# Most doublings of the wait after a failed training: one for each failure in a row.
MOST_DOUBLINGS = 12
# Most times ``settle`` that a party waits for a history, because a stream of old records may never end.
MOST_WAITS = 20


class HeldOut:
    """Decides by a keyed hash of the name which entities are held out of all batches.

    They evaluate and calibrate the model: rows that it has learnt from would flatter it.

    secret: of the party, so that nobody else can tell which entities these are.
    share: of all names, 0 to 1.
    """

    def __init__(self, secret: bytes, share: float) -> None:
        self._key = derive(secret, b"quasi-newton held out")[:32]
        self._below = int(share * WHOLE)

    def __call__(self, name: str) -> bool:
        if not self._below:
            return False
        return (
            int.from_bytes(hashlib.blake2b(name.encode(), key=self._key, digest_size=8).digest(), "big")
            < self._below
        )


class _Since(msgspec.Struct, array_like=True):
    """What has happened since the latest run began. Times are in seconds.

    ended: when it ended.
    fresh: entities that became complete.
    tried_with: digest of the settings that the run began with.
    failures: runs in a row that failed.
    enough: since when the party waits only for time; 0: it waits for something else, too.
    old: after that, when a record of a history came last.
    """

    ended: Time = 0.0
    fresh: Count = 0
    tried_with: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    failures: Count = 0
    enough: Time = 0.0
    old: Time = 0.0


class Readiness:
    """Decides when a party reports that it is ready.

    A party that has enough entities waits for a while longer, so that the others have the same ones and a
    history is read to its end. It does not wait for a pause, because a live stream has none. A host is ready
    for another training as soon as one is over: the guest decides. After a failure the guest waits for new
    entities, each time twice as long, or for other settings, because the same training would fail again. A
    party whose key has changed since it reported ready reports again.
    """

    def __init__(
        self,
        parts: ChangedParts,
        settings: QuasiNewtonSettings,
        progress: TrainingProgress,
        table: EntityTable,
        batches: LearntBatches,
    ) -> None:
        self._remember_since = parts.single(SINCE, _Since, self._restore)
        self._settings = settings
        self._progress = progress
        self._table = table
        self._batches = batches
        self._since = _Since()
        self._settle = settings.alignment.settle_seconds
        learning = settings.learning.descent
        limits = learning.tolerance, learning.epochs, learning.iterations
        changeable = learning.learning_rate, learning.largest_step, learning.freeze_below, *limits
        self._tried_with = hashlib.blake2b(msgspec.msgpack.encode(changeable), digest_size=16).digest()

    @property
    def due_at(self) -> float | None:
        """When the party is to report that it is ready; None if it is not ready, or has reported already."""
        phase, settings, since = self._progress.phase, self._settings, self._since
        # State of an earlier release has no ``enough``.
        begun = since.enough or self._table.latest
        settled = min(max(begun, since.old) + self._settle, begun + MOST_WAITS * self._settle)
        if self._progress.has_said:
            return since.ended if self._progress.told[-1:] != [settings.encryption.agreed_key] else None
        if phase == GATHERING:
            return settled if self._knows_enough else None
        if phase not in (TRAINED, FAILED):
            return None
        if not settings.is_guest or (phase == FAILED and self.has_other_key):
            return since.ended
        scheduled = (
            None
            if settings.retraining.every_seconds is None
            else since.ended + settings.retraining.every_seconds
        )
        if phase == TRAINED:
            return scheduled if since.fresh >= settings.new_entities else None
        if not (self._batches or self._knows_enough):
            return None
        if since.tried_with != self._tried_with:
            return since.ended
        if not since.fresh:
            return None
        # Without this wait, a cause that new entities do not remove would start a new alignment for each
        # entity that comes.
        rest = math.ldexp(self._settle, min(since.failures - 1, MOST_DOUBLINGS))
        return max(since.ended + rest, settled if scheduled is None else min(settled, scheduled))

    @property
    def _knows_enough(self) -> bool:
        """Whether the party knows alignment.entities entities, and those that are not held out are enough for
        a batch."""
        return (
            self._table.known >= self._settings.alignment.entities
            and self._table.complete >= self._settings.least_batch
        )

    @property
    def awaited(self) -> str | None:
        """A text on what the first training waits for at this party, and how much of it there is; None once
        it has begun."""
        progress, settings, table = self._progress, self._settings, self._table
        if progress.phase == READY and not progress.run:
            return (
                f"ready with {table.known:,} entities: waits for the coordinator, and for parties that are "
                "not ready yet"
            )
        if progress.phase != GATHERING or self._batches:
            return None
        wanted = "columns and a label" if settings.is_guest else "columns"
        told = (
            f"knows {table.known:,} of {settings.alignment.entities:,} entities with {wanted} "
            "(alignment.entities)"
        )
        if table.known < settings.alignment.entities:
            return told
        if table.complete < settings.least_batch:
            return (
                f"{told}: {table.complete:,} of {settings.least_batch:,} that a batch needs, because the "
                "others are held out"
            )
        return (
            f"{told}: begins {self._settle:g} s after that, or after the last of a history "
            "(alignment.settle_seconds)"
        )

    @property
    def missing(self) -> int:
        """Entities that the first training still waits for."""
        if self._progress.phase != GATHERING or self._batches:
            return 0
        settings, table = self._settings, self._table
        return max(0, settings.alignment.entities - table.known, settings.least_batch - table.complete)

    @property
    def has_other_key(self) -> bool:
        """Whether the latest run began under a key that the party no longer takes."""
        return digest_of(self._progress.modulus) not in (b"", self._settings.encryption.agreed_key)

    def came(self, now: float, written: float, *, fresh: bool = False) -> None:
        """An entity's columns or label came. written: the record's time. fresh: whether a training may take
        one more entity now."""
        if fresh and self._progress.phase > READY:
            self._since.fresh += 1
            self._remember()
        self.look(now)
        if self._since.enough and written < now - self._settle and self._since.old != now:
            self._since.old = now
            self._remember()

    def look(self, now: float) -> None:
        """Note since when the party waits only for time."""
        phase, since = self._progress.phase, self._since
        known = self._knows_enough
        only_time = (
            known
            if phase == GATHERING
            else phase == FAILED and since.fresh > 0 and (known or bool(self._batches))
        )
        if only_time != (since.enough > 0):
            since.enough, since.old = now if only_time else 0.0, 0.0
            self._remember()

    def began(self) -> None:
        """A run begins: only entities that come from now on count as fresh."""
        self._since = _Since(0.0, 0, self._tried_with, self._since.failures)
        self._remember()

    def ended(self, now: float, *, failed: bool = False) -> None:
        """The run is over, as a failure or with a model."""
        self._since.ended = now
        self._since.failures = self._since.failures + 1 if failed else 0
        self._remember()
        self.look(now)

    def set_back(self, now: float) -> None:
        """Set times after ``now`` to ``now``, because the clock was ahead."""
        since = self._since
        times = since.ended, since.enough, since.old
        if max(times) > now:
            since.ended, since.enough, since.old = (min(one, now) for one in times)
            self._remember()

    def _restore(self, since: _Since) -> None:
        self._since = since

    def _remember(self) -> None:
        self._remember_since(self._since)
