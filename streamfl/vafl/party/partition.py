"""A party's state in one partition: a model of its own, and the entities whose key falls there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import OperatorNotice, PeerError
from streamfl.encoding.wire import encode_array
from streamfl.learning.running_scale import RunningScale
from streamfl.privacy.ledger import Ledger, promise_ended
from streamfl.roles.received_numbers import is_to_come
from streamfl.state.changelog import ChangedParts, changed_chunks, restore_chunk
from streamfl.vafl.functions.networks import Differentiable
from streamfl.vafl.party.catch_up import CatchUp
from streamfl.vafl.party.in_flight_embeddings import InFlightEmbeddings, WaitingSamples
from streamfl.vafl.party.life import PartyLife
from streamfl.vafl.party.model import AnsweredEntity, PartyModel, PartySteps
from streamfl.vafl.party.noise import PartyNoise
from streamfl.vafl.privacy import Mechanism
from streamfl.vafl.state import ARRAY, SPENT

__all__ = ["PartyPartition", "PartySettings", "PartySnapshot"]

MOMENTS = ARRAY.prefix + b"moments/"


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """Settings shared by all partitions of a party. See :class:`~streamfl.vafl.party.role.VaflParty`."""

    name: str
    function: Differentiable
    inputs: int
    embedding_size: int
    steps: PartySteps
    seed: int
    fingerprint: int
    start: bytes
    expiry: float
    limit: int
    mechanism: Mechanism | None
    without_noise: bool
    ledger_limit: int
    catch_up_samples: int
    catch_up_patience: float
    standardise: bool


@dataclass(frozen=True)
class PartySnapshot:
    """A party's state in one partition, for tests and tools.

    epoch: of the present life; None: the life has not begun.
    steps: the number of steps taken.
    in_flight: by entity, the number of its newest embedding; the oldest first.
    answered: the gradients that wait for the next step, in order.
    waiting: the number of samples that wait.
    """

    epoch: int | None
    steps: int
    in_flight: Mapping[str, int]
    answered: Sequence[AnsweredEntity]
    waiting: int


class PartyPartition:
    """The owners of a partition's state, and the work that involves several of them.

    settings: the party's.
    partition: its number.
    forgotten: counts of forgotten entities by reason, shared by all partitions.
    """

    def __init__(self, settings: PartySettings, partition: int, forgotten: dict[str, int]) -> None:
        self._settings = settings
        self.partition = partition
        self._parts = ChangedParts()
        self.life = PartyLife(self._parts, settings.fingerprint, settings.start)
        self.life.on_restore = self._go_on
        # None: inputs are not standardised.
        self._scale = RunningScale(settings.inputs) if settings.standardise else None
        self._scale_changed = False
        mechanism, name = settings.mechanism, settings.name
        budget = None if mechanism is None else mechanism.budget
        self.ledger = Ledger(settings.ledger_limit, None if budget is None else budget**2)
        noise = None if mechanism is None else PartyNoise(mechanism, settings.fingerprint, name, partition, self.life)
        self.model = PartyModel(
            settings.function,
            settings.inputs,
            settings.embedding_size,
            settings.steps,
            noise,
            self._first_parameters(settings.start),
            self.life,
            self._parts,
        )
        check = self.model.check_features
        self.in_flight = InFlightEmbeddings(self._parts, settings.expiry, settings.limit, forgotten, check)
        self.waiting = WaitingSamples(self._parts, self.life, check)
        steps = settings.steps
        # in_flight already bounds the entities on their way, with or without a backlog.
        samples = max(settings.catch_up_samples, steps.batch_size) if settings.catch_up_samples and not steps.in_flight else 0
        self.catch_up = CatchUp(self.life, self.in_flight, samples, settings.catch_up_patience)
        self._parts.register(SPENT.prefix, self.ledger.restore)
        self._parts.register(MOMENTS, self._restore_scale)

    def _first_parameters(self, start: bytes) -> NDArray[Any]:
        settings = self._settings
        return settings.function.initial(settings.seed, settings.name, *((self.partition, start.hex()) if start else ()))

    @property
    def missing(self) -> int:
        """The number of gradients that the first step still waits for."""
        return 0 if self.life.steps else max(0, self.model.wanted - self.model.gathered)

    @property
    def awaited(self) -> str | None:
        """The gradients that the first step waits for, as text; None once a step was taken."""
        if self.life.steps:
            return None
        gathered, wanted = self.model.gathered, self.model.wanted
        return f"knows {gathered:,} of {wanted:,} entities with a gradient that the first step takes (learning.batch_size)"

    def settle(self) -> None:
        """Check the restored state, once it is complete and before anything is sent or learnt."""
        if self._scale is not None and self.life.epoch is not None and not self._scale.rows:
            # A release that did not standardise began the partition, and its model has learnt from raw inputs.
            self._scale = None
            self.model.go_on_unscaled()

    def take_in(self, inputs: Sequence[float]) -> bytes:
        """A sample's inputs as the model takes them, raw numbers. Updates the scale."""
        numbers = np.array(inputs, np.float64)
        if self._scale is not None:
            self._scale_changed = True
            numbers = self._scale.see(numbers)
        return encode_array(numbers.astype(self._settings.function.dtype))

    def scaled(self, inputs: NDArray[Any]) -> NDArray[Any]:
        """Samples as the model would take them now, (n, inputs). Does not change the scale."""
        if self._scale is None:
            return inputs
        return self._scale.scaled(inputs.astype(np.float64)).astype(self._settings.function.dtype)

    @property
    def busy(self) -> bool:
        """Whether the limit of entities on their way is reached."""
        limit = self._settings.steps.in_flight
        if limit is None:
            return self.catch_up.waits(len(self.waiting))
        return len(self.in_flight) + self.model.gathered >= limit

    @property
    def wake_at(self) -> float | None:
        """When the next entity is forgotten, or no longer waited for."""
        times = (self.in_flight.wake_at, self.catch_up.wake_at(len(self.waiting)))
        return min((at for at in times if at is not None), default=None)

    def renew_epoch(self, now: float) -> None:
        """Give up an epoch named by a clock that was far ahead: the coordinator would refuse it until that time comes.

        The party still learns from gradients for that epoch's embeddings. It does not send refused embeddings again, because nobody
        knows which were refused: entities without a gradient expire.
        """
        epoch = self.life.epoch
        if epoch is not None and is_to_come(epoch, now):
            self.in_flight.end_epoch(epoch)
            self.life.renew_epoch(now)

    def snapshot(self) -> PartySnapshot:
        life = self.life
        return PartySnapshot(
            life.epoch,
            life.steps,
            {entity: shown.sequence for entity, shown in self.in_flight.items()},
            self.model.answered,
            len(self.waiting),
        )

    def changed_state(self) -> Iterator[tuple[bytes, bytes | None]]:
        yield from chain(self._parts.changed_state(), self.model.changed_state(), self.ledger.changed_state())
        if self._scale is not None and self._scale_changed:
            self._scale_changed = False
            yield from changed_chunks(self._scale.arrays)

    def restore(self, key: bytes, value: bytes) -> OperatorNotice | None:
        """Restore one changelog key. Returns a notice for the operator, if there is one.

        Raises PeerError or ValueError for state that this party cannot have written, or must not go on from.
        """
        self._parts.restore(key, value)
        settings = self._settings
        if settings.mechanism is None and key.startswith(SPENT.prefix):
            return promise_ended(settings.name, "[privacy]", settings.without_noise)
        return None

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
        """PeerError if mu would be claimed for embeddings sent, or steps taken, without noise."""
        life, mechanism = self.life, self._settings.mechanism
        if mechanism is not None and (life.shown_bare or (mechanism.guarantees and life.learnt_bare)):
            raise PeerError(
                "configuration",
                f"{self._settings.name} has {'sent embeddings' if life.shown_bare else 'taken steps'} without noise before, so "
                "no mu holds; start over with another federation.name at all members",
            )
