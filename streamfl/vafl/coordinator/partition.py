"""The coordinator's state in one partition: a model of its own, and the entities whose key falls there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from streamfl.encoding.changelog_checks import check_name
from streamfl.privacy.ledger import Ledger
from streamfl.state.changelog import ChangedParts
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.entities import CoordinatorEntities
from streamfl.vafl.coordinator.figures import CoordinatorFigures
from streamfl.vafl.coordinator.intake import Intake
from streamfl.vafl.coordinator.learning_head import LearningHead
from streamfl.vafl.coordinator.parties import Parties
from streamfl.vafl.coordinator.remembered_entity import RememberedEntity
from streamfl.vafl.given import CoordinatorGiven
from streamfl.vafl.state import ALIGNED_ENTITY, SPENT

__all__ = ["CoordinatorPartition", "CoordinatorSnapshot"]


@dataclass(frozen=True)
class CoordinatorSnapshot:
    """The coordinator's state in one partition, for tests and tools.

    entities: names; the entity whose last message is oldest comes first.
    awaited: names of the entities that wait for a newer embedding, or for the learning quorum.
    """

    entities: Sequence[str]
    awaited: frozenset[str]


class CoordinatorPartition:
    """The owners of a partition's state.

    settings, given: the coordinator's.
    partition: its number.
    intake: checks the numbers of remembered entities.
    figures: of all partitions.
    """

    def __init__(
        self,
        settings: VaflSettings,
        given: CoordinatorGiven,
        partition: int,
        intake: Intake,
        figures: CoordinatorFigures,
    ) -> None:
        self.partition = partition
        self._intake = intake
        self._parts = ChangedParts("the coordinator")
        self._quorum = settings.learning_quorum
        self.head = LearningHead(settings, given, partition, self._parts, figures)
        self.parties = Parties(
            self._parts, len(settings.federation.parties), settings.federation.embedding_size
        )
        self.entities = CoordinatorEntities(settings, given.loss.outputs, figures)
        budget = settings.privacy.budget_mu
        self.ledger = Ledger(settings.privacy.ledger_limit, None if budget is None else budget**2)
        """Releases of labels."""
        self._parts.named(ALIGNED_ENTITY, check_name, RememberedEntity, self._restore_entity)
        self._parts.register(SPENT.prefix, self.ledger.restore)

    def snapshot(self) -> CoordinatorSnapshot:
        return CoordinatorSnapshot(self.entities.names, self.entities.awaited)

    @property
    def is_empty(self) -> bool:
        """Whether no entity waits in it and nothing was learnt."""
        return self.awaited is not None and not len(self.entities)

    @property
    def awaited(self) -> str | None:
        """Why nothing was learnt yet, with the entities that lack a label or embeddings; None once something
        was learnt."""
        if self.parties.have_stepped or self.head.has_learnt:
            return None
        unlabelled, unshown = self.entities.lacking()
        return (
            f"has learnt from no entity: knows {unlabelled:,} without a label, and {unshown:,} with a label "
            f"that fewer than {self._quorum} parties have sent (learning.quorum)"
        )

    def changed_state(self) -> Iterator[tuple[bytes, bytes | None]]:
        arrays = list(self.head.changed_state(self.entities.touched or self.parties.touched))
        self.parties.remember()
        return chain(
            arrays, self._parts.changed_state(), self.entities.changed_state(), self.ledger.changed_state()
        )

    def restore(self, key: bytes, value: bytes) -> None:
        """Restore one changelog key; BadRecord or ValueError for state that the coordinator cannot have
        written."""
        self._parts.restore(key, value)

    def _restore_entity(self, name: str, entity: RememberedEntity) -> None:
        self.parties.check_numbers(entity.held)
        values = [self._intake.values(one.values) for one in entity.held.values()]
        if entity.label is not None:
            self._intake.check_label(
                entity.label, f"of the entity {name!r} the label {entity.label:g} is remembered"
            )
        self.entities.restore(name, entity, values)
