"""A party's own part of the sums of a partition, from its columns and its secret, within the limits on what
it answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.config import FdsklSettings
from streamfl.fdskl.messages import DISTANCES, KNOWN, PHASES
from streamfl.fdskl.metrics import PartyMetrics
from streamfl.fdskl.party.answered import Answered
from streamfl.fdskl.party.given import PartyGiven
from streamfl.fdskl.sums.contributions import Contributions, numbers_of
from streamfl.fdskl.sums.masks import CHECK_WORDS
from streamfl.fdskl.sums.own_columns import OwnColumns
from streamfl.fdskl.sums.pending_sums import FIRST_MASK_STAGE, PendingSum
from streamfl.fdskl.sums.secret import Secret
from streamfl.fdskl.sums.standardisation import Standardisation

__all__ = ["OwnPart"]


class OwnPart:
    """Computes the own part. It remembers nothing but what the owners given to it remember.

    settings, given: of the party.
    partition: its number.
    columns, standardisation, secret, answered: the owners of what goes in.
    metrics: for the operator.
    """

    def __init__(
        self,
        settings: FdsklSettings,
        given: PartyGiven,
        partition: int,
        columns: OwnColumns,
        standardisation: Standardisation,
        secret: Secret,
        answered: Answered,
        metrics: PartyMetrics,
    ) -> None:
        self._settings = settings
        self._given = given
        self._own = settings.own
        # Only then a round has more than one sum.
        self._sums_masks = settings.aggregation.mask == "paper" and len(settings.federation.parties) > 1
        self._partition = partition
        self._columns = columns
        self._standardisation = standardisation
        self._secret = secret
        self.answered = answered
        self._metrics = metrics
        self._contributions: Contributions | None = None

    @property
    def contributions(self) -> Contributions:
        """This party's part of sums, by its secret."""
        if self._contributions is None:
            self._contributions = Contributions(
                self._settings, self._secret.value, self._given.noise_secret, self._partition
            )
        self._contributions.first_bandwidth = self.answered.bandwidth
        return self._contributions

    def missing_of(self, entities: Iterable[str]) -> set[str]:
        """The entities among these that an answer waits for.

        An entity that has reached its limit of features is answered like an unknown one: in the same form,
        and no sooner."""
        known, spent = self._columns.knows, self._columns.is_spent
        return {entity for entity in entities if not known(entity) or spent(entity)}

    def put_into(
        self,
        pending: PendingSum,
        secrets: Mapping[int, bytes],
        outputs: NDArray[np.float64] | None,
        now: float,
    ) -> None:
        """Add the own part. secrets: by party, for masks. outputs: f_l' of the round's entities, if the round
        asks for it."""
        announced = pending.announced
        rows, known = self._columns.rows(announced.entities)
        self.answered.note(announced)
        told = announced.ranges if announced.purpose == PHASES else ()
        other = None if announced.bandwidth == self.answered.bandwidth else announced.bandwidth
        for place, entity in enumerate(announced.entities):
            if not self._columns.is_spent(entity):
                self._columns.ask(entity, now, told if known[place] else (), other)
            elif announced.purpose != KNOWN:
                known[place] = False
                self.answered.spent()
        if outputs is not None:
            rows = outputs
        elif announced.purpose != KNOWN:
            rows = self._standardisation.apply(rows, known)
            self._metrics.imputed += int((~known).sum())
        parts = self.contributions
        numbers = parts.numbers(announced, pending.identity, secrets, rows)
        pending.answered = True
        pending.stage(pending.total).add(numbers, known.astype(np.uint8), [self._own])
        for stage in self.stages(pending):
            if stage != pending.total and stage != FIRST_MASK_STAGE + self._own:
                masks = parts.own_masks(announced, stage - FIRST_MASK_STAGE)
                pending.stage(stage).add(masks, np.zeros(len(announced.entities), np.uint8), [self._own])

    def stages(self, pending: PendingSum) -> list[int]:
        """The sums of a round: one, and with mask = "paper" one more for each owner of its features."""
        announced = pending.announced
        if not self._sums_masks or announced.purpose in (DISTANCES, KNOWN):
            return [pending.total]
        return [
            pending.total,
            *(FIRST_MASK_STAGE + int(owner) for owner in np.unique(self.contributions.owners(announced))),
        ]

    def size(self, pending: PendingSum, stage: int) -> tuple[int, Any]:
        """How many numbers a sum of this stage has, and of which type."""
        announced = pending.announced
        count, dtype = numbers_of(announced, self._settings.aggregation.circle_bits)
        if stage == pending.total:
            return count, dtype
        return int(
            (self.contributions.owners(announced) == stage - FIRST_MASK_STAGE).sum()
        ) + CHECK_WORDS, dtype
