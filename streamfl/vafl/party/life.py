"""One life of a party's state in a partition: the numbers of its embeddings, and a digest of what its
parameters learnt from."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import Time
from streamfl.encoding.wire import Count
from streamfl.roles.received_numbers import epoch_at
from streamfl.state.changelog import ChangedParts
from streamfl.vafl.messages import ANOTHER
from streamfl.vafl.state import TASK

__all__ = ["CatchUpWindow", "PartyLife"]


class CatchUpWindow(msgspec.Struct, array_like=True, frozen=True):
    """The entities whose gradients a party that is behind waits for.

    begin: embeddings with a higher number belong to the window.
    since: when the last embedding was sent, or the last gradient came.
    answered: whether any gradient came.
    alone: no gradient came for the window before.
    """

    begin: Count = 0
    since: Time = 0.0
    answered: bool = False
    alone: bool = False


class LifeCounters(msgspec.Struct, array_like=True):
    """A life's counters, remembered under one key.

    epoch: the life's name, the microsecond in which it began.
    sequence: number of the embedding that was queued last.
    steps: the number of steps taken.
    first_waiting: number of the sample that has waited longest.
    learnt: digest of all gradients that the parameters learnt from, and of how; empty without noise, its only
    user.
    fingerprint: of the settings that all members of the federation have to agree on.
    shown_bare: whether any embedding was ever sent without the noise that mu assumes.
    learnt_bare: whether any gradient was ever taken without it.
    start: bytes that the first parameters were drawn from besides the seed; empty: from the seed alone.
    window: the entities that a party that is behind waits for.
    under_way: the most entities under way at once, since the last step, that were sent after one whose
    gradient came.
    """

    epoch: Count
    sequence: Count = 0
    steps: Count = 0
    first_waiting: Count = 0
    learnt: bytes = b""
    fingerprint: int = 0
    shown_bare: bool = False
    learnt_bare: bool = False
    start: bytes = b""
    window: CatchUpWindow = CatchUpWindow()
    under_way: Count = 0


class PartyLife:
    """The life of one partition's state, which begins with the first sample.

    parts: where the life is remembered.
    fingerprint: of the settings that all members have to agree on.
    start: bytes that the first parameters of a partition without state are drawn from.
    """

    def __init__(self, parts: ChangedParts, fingerprint: int, start: bytes) -> None:
        self._remember_counters = parts.single(TASK, LifeCounters, self._restore)
        self._fingerprint = fingerprint
        self._start = start
        self.on_restore: Callable[[], None] = lambda: None
        """Called when the life is restored."""
        self._counters: LifeCounters | None = None

    @property
    def _known(self) -> LifeCounters:
        assert self._counters is not None, "the life of this partition has not begun"
        return self._counters

    @property
    def epoch(self) -> int | None:
        """The present epoch; None: the life has not begun."""
        return None if self._counters is None else self._counters.epoch

    @property
    def sequence(self) -> int:
        """The number of the latest embedding."""
        return 0 if self._counters is None else self._counters.sequence

    @property
    def steps(self) -> int:
        return 0 if self._counters is None else self._counters.steps

    @property
    def first_waiting(self) -> int:
        return self._known.first_waiting

    @property
    def learnt(self) -> bytes:
        return self._known.learnt

    @property
    def start(self) -> bytes:
        return self._known.start

    @property
    def shown_bare(self) -> bool:
        return self._known.shown_bare

    @property
    def learnt_bare(self) -> bool:
        return self._known.learnt_bare

    @property
    def window(self) -> CatchUpWindow:
        return CatchUpWindow() if self._counters is None else self._counters.window

    @window.setter
    def window(self, window: CatchUpWindow) -> None:
        self._known.window = window
        self._remember()

    @property
    def under_way(self) -> int:
        return 0 if self._counters is None else self._counters.under_way

    @under_way.setter
    def under_way(self, entities: int) -> None:
        if entities != self._known.under_way:
            self._known.under_way = entities
            self._remember()

    def begin(self, now: float) -> None:
        """Begin the life if it has not begun."""
        if self._counters is None:
            self._counters = LifeCounters(
                epoch=epoch_at(now), fingerprint=self._fingerprint, start=self._start
            )
            self._remember()

    def renew_epoch(self, now: float) -> None:
        """Continue in a new epoch that begins now."""
        self._known.epoch = epoch_at(now)
        self._remember()

    def next_sequence(self, bare: bool) -> int:
        """The number of the next embedding. bare: whether it is sent without noise."""
        counters = self._counters
        assert counters is not None
        counters.sequence += 1
        counters.shown_bare |= bare
        self._remember_counters(counters)
        return counters.sequence

    def waited_no_longer(self) -> None:
        """Count that the sample that had waited longest was taken."""
        self._known.first_waiting += 1
        self._remember()

    def learn_bare(self) -> None:
        """Note that a gradient is taken without noise."""
        counters = self._known
        if not counters.learnt_bare:
            counters.learnt_bare = True
            self._remember()

    def learn_from(self, learnt: bytes) -> None:
        """Set the digest before a step, which draws its noise from it."""
        self._known.learnt = learnt

    def tried_step(self, taken: bool) -> None:
        """Count a step. taken: False if it was refused because a parameter would have become infinite."""
        self._known.steps += taken
        self._known.under_way = 0
        self._remember()

    def _restore(self, counters: LifeCounters) -> None:
        """BadRecord if another federation wrote them."""
        self._counters = counters
        if counters.fingerprint != self._fingerprint:
            raise BadRecord("configuration", ANOTHER)
        self.on_restore()

    def _remember(self) -> None:
        self._remember_counters(self._known)
