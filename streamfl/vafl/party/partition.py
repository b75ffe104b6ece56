"""A party's state in one partition: a model of its own, and the entities whose key falls there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.wire import encode_array
from streamfl.learning.running_scale import RunningScale
from streamfl.privacy.ledger import Ledger
from streamfl.roles.received_numbers import is_to_come
from streamfl.state.changelog import ChangedParts, changed_chunks, restore_chunk
from streamfl.state.clock_guard import earliest
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.given import PartyGiven
from streamfl.vafl.party.catch_up import CatchUp
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbeddings, WaitingSamples
from streamfl.vafl.party.life import PartyLife
from streamfl.vafl.party.model import PartyModel
from streamfl.vafl.party.noise import PartyNoise
from streamfl.vafl.state import ARRAY, SPENT

__all__ = ["PartyPartition"]

MOMENTS = ARRAY.prefix + b"moments/"


class PartyPartition:
    """The owners of a partition's state, and the work that involves several of them.

    settings, given: the party's.
    partition: its number.
    forgotten: counts of forgotten entities by reason, shared by all partitions.
    """

    def __init__(
        self, settings: VaflSettings, given: PartyGiven, partition: int, forgotten: dict[str, int]
    ) -> None:
        self._settings = settings
        self._given = given
        self._name = settings.required_party()
        self._dtype = given.function.dtype
        learning, alignment, mechanism = settings.learning, settings.alignment, given.mechanism
        self._most_in_flight = learning.in_flight
        self.partition = partition
        self._parts = ChangedParts()
        self.life = PartyLife(self._parts, settings.fingerprint, given.start)
        self.life.on_restore = self._go_on
        # None: inputs are not standardised.
        self._scale = RunningScale(settings.inputs) if settings.standardise else None
        self._scale_changed = False
        budget = None if mechanism is None else mechanism.budget
        self.ledger = Ledger(settings.privacy.ledger_limit, None if budget is None else budget**2)
        noise = (
            None
            if mechanism is None
            else PartyNoise(mechanism, settings.fingerprint, self._name, partition, self.life)
        )
        first = self._first_parameters(given.start)
        self.model = PartyModel(settings, given.function, noise, first, self.life, self._parts)
        check = self.model.check_features
        self.in_flight = InFlightEmbeddings(
            self._parts, alignment.expiry_seconds, alignment.limit, forgotten, check
        )
        self.waiting = WaitingSamples(self._parts, self.life, check)
        # in_flight already bounds the entities on their way, with or without a backlog.
        catches_up = learning.catch_up_samples and not learning.in_flight
        samples = max(learning.catch_up_samples, settings.batch_size) if catches_up else 0
        self.catch_up = CatchUp(self.life, self.in_flight, samples, learning.catch_up_patience_seconds)
        self._parts.register(SPENT.prefix, self.ledger.restore)
        self._parts.register(MOMENTS, self._restore_scale)

    def _first_parameters(self, start: bytes) -> NDArray[Any]:
        path = (self.partition, start.hex()) if start else ()
        return self._given.function.initial(self._settings.federation.seed, self._name, *path)

    @property
    def missing(self) -> int:
        """The number of gradients that the first step still waits for."""
        return 0 if self.life.steps else max(0, self.model.wanted - self.model.gathered)

    @property
    def is_empty(self) -> bool:
        """Whether no sample has come to it that is remembered, and no step was taken."""
        return not (self.life.steps or len(self.in_flight) or len(self.waiting) or self.model.gathered)

    @property
    def awaited(self) -> str | None:
        """The gradients that the first step waits for, as text; None once a step was taken."""
        if self.life.steps:
            return None
        gathered, wanted = self.model.gathered, self.model.wanted
        return (
            f"knows {gathered:,} of {wanted:,} entities with a gradient that the first step takes "
            "(learning.batch_size)"
        )

    def settle(self) -> None:
        """Check the restored state, once it is complete and before anything is sent or learnt."""
        if self._scale is not None and self.life.epoch is not None and not self._scale.rows:
            # A release that did not standardise began the partition, and its model has learnt from raw
            # inputs.
            self._scale = None
            self.model.go_on_unscaled()

    def take_in(self, inputs: Sequence[float]) -> bytes:
        """A sample's inputs as the model takes them, raw numbers. Updates the scale."""
        numbers = np.array(inputs, np.float64)
        if self._scale is not None:
            self._scale_changed = True
            numbers = self._scale.see(numbers)
        return encode_array(numbers.astype(self._dtype))

    def scaled(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Samples as the model would take them now, (n, inputs). Does not change the scale."""
        scaled = inputs if self._scale is None else self._scale.scaled(inputs)
        return scaled.astype(self._dtype)

    @property
    def busy(self) -> bool:
        """Whether the limit of entities on their way is reached."""
        limit = self._most_in_flight
        if limit is None:
            return self.catch_up.waits(len(self.waiting))
        return len(self.in_flight) + self.model.gathered >= limit

    @property
    def wake_at(self) -> float | None:
        """When the next entity is forgotten, or no longer waited for."""
        return earliest(self.in_flight.wake_at, self.catch_up.wake_at(len(self.waiting)))

    def renew_epoch(self, now: float) -> None:
        """Give up an epoch named by a clock that was far ahead: the coordinator would refuse it until that
        time comes.

        The party still learns from gradients for that epoch's embeddings. It does not send refused embeddings
        again, because nobody knows which were refused: entities without a gradient expire.
        """
        epoch = self.life.epoch
        if epoch is not None and is_to_come(epoch, now):
            self.in_flight.end_epoch(epoch)
            self.life.renew_epoch(now)

    def changed_state(self) -> Iterator[tuple[bytes, bytes | None]]:
        yield from chain(self._parts.changed_state(), self.model.changed_state(), self.ledger.changed_state())
        if self._scale is not None and self._scale_changed:
            self._scale_changed = False
            yield from changed_chunks(self._scale.arrays)

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore one changelog key.

        Raises BadRecord or ValueError for state that this party cannot have written, or must not go on from.
        """
        self._parts.restore(key, value)

    def _restore_scale(self, name: bytes, value: bytes) -> None:
        """The partition keeps its scale, whatever the settings say for new partitions."""
        self._scale = self._scale or RunningScale(self._settings.inputs)
        restore_chunk(self._scale.arrays, MOMENTS + name, value, self._scale.check)

    def _go_on(self) -> None:
        """The life was restored."""
        self._check_history()
        if not self.life.steps:
            self.model.begin_with(self._first_parameters(self.life.start))

    def _check_history(self) -> None:
        """BadRecord if mu would be claimed for embeddings sent, or steps taken, without noise."""
        life, mechanism = self.life, self._given.mechanism
        if mechanism is not None and (life.shown_bare or (mechanism.guarantees and life.learnt_bare)):
            raise BadRecord(
                "configuration",
                f"{self._name} has {'sent embeddings' if life.shown_bare else 'taken steps'} without noise "
                "before, so no mu holds; start over with another federation.name at all members",
            )
