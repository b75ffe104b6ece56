"""The entities of a partition: their embeddings and labels, and when each is predicted and learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.contract.role import BadRecord
from streamfl.encoding.changelog_checks import check_within
from streamfl.records.alignment import AlignedEntities
from streamfl.state.clock_guard import earliest
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.coordinator.alignment import Decision, PredictionBatch, decide
from streamfl.vafl.coordinator.parties import SentEmbeddings
from streamfl.vafl.coordinator.pending_embeddings import PendingEmbeddings
from streamfl.vafl.coordinator.remembered_entity import (
    EMBEDDING_ROW,
    ENTITY_ROW,
    RememberedEntity,
    encode_entities,
)
from streamfl.vafl.metrics import CoordinatorMetrics
from streamfl.vafl.state import ALIGNED_ENTITY

__all__ = ["LARGEST_OUTPUT", "CoordinatorEntities"]

LARGEST_OUTPUT = 1e100
"""Bound of a head's output. Larger outputs are clipped to it, or in single precision to the largest with a
finite square."""


class CoordinatorEntities:
    """The entities of a partition. There are M parties.

    Methods take n entities by their rows, all different.

    settings: the coordinator's.
    outputs: outputs of the head per entity.
    metrics: count what became of entities, in all partitions.
    """

    def __init__(self, settings: VaflSettings, outputs: int, metrics: CoordinatorMetrics) -> None:
        self._settings = settings
        self._alignment = alignment = settings.alignment
        self._learning_quorum = settings.learning_quorum
        parties, embedding_size = len(settings.federation.parties), settings.federation.embedding_size
        self._rows = AlignedEntities(alignment.limit, alignment.expiry_seconds)
        self._pending = PendingEmbeddings(alignment.reply_seconds)
        self._entities = np.zeros(0, ENTITY_ROW)
        self._embeddings = np.zeros((0, parties), EMBEDDING_ROW)
        self._values = np.zeros((0, parties, embedding_size), settings.dtype)
        self._outputs = np.zeros((0, outputs))
        self._metrics = metrics

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> tuple[str, ...]:
        """Names; the entity whose last message is oldest comes first."""
        return tuple(self._rows)

    @property
    def awaited(self) -> frozenset[str]:
        """Names of the entities that wait for a newer embedding, or for the learning quorum."""
        return self._pending.names

    def lacking(self) -> tuple[int, int]:
        """The number of entities with the learning quorum and without a label, and with a label and without
        the quorum."""
        rows = np.fromiter((self._rows[name] for name in self._rows), np.intp, len(self._rows))
        labelled = self._entities["labelled"].take(rows)
        shown = self._embeddings["held"].take(rows, axis=0).sum(axis=1) >= self._learning_quorum
        return int((shown & ~labelled).sum()), int((labelled & ~shown).sum())

    @property
    def wake_at(self) -> float | None:
        return earliest(self._rows.wake_at, self._pending.wake_at)

    # ---- input

    def admit(
        self, names: Sequence[str], now: float, *, with_labels: bool = False
    ) -> tuple[NDArray[np.intp], Sequence[int], int]:
        """Admit entities in this order, as many as can be worked off together. Returns their rows and places,
        and how many names were read.

        It stops before a name that came already, and before one that needs the room of an entity that may be
        forgotten once it is learnt from.

        with_labels: whether their labels come; then an entity that has a label is skipped.
        """
        places: Sequence[int]
        if not self._rows.has_room(len(names)) or len(set(names)) < len(names):
            taken, places, read = self._admit_in_turn(names, with_labels)
        elif with_labels:
            places, read = self._without_label(names), len(names)
            taken = self._rows.hear([names[place] for place in places])
        else:
            taken, places, read = self._rows.hear(names), range(len(names)), len(names)
        self._blank()
        rows = np.array(taken, np.intp)
        self._rows.mark(rows, now)
        # The clock may have been ahead: times after now are moved back to now.
        self._entities["learnt_at"][rows] = np.minimum(self._entities["learnt_at"][rows], now)
        for place in np.flatnonzero(self._pending.since(rows) > now).tolist():
            self._pending.put(names[places[place]], taken[place], now)
        return rows, places, read

    def _without_label(self, names: Sequence[str]) -> list[int]:
        """Places of entities that have no label yet; the others are counted as duplicates."""
        labelled = self._entities["labelled"]
        places = [
            place for place, row in enumerate(map(self._rows.get, names)) if row is None or not labelled[row]
        ]
        self._metrics.duplicate_labels += len(names) - len(places)
        return places

    def _admit_in_turn(self, names: Sequence[str], with_labels: bool) -> tuple[list[int], Sequence[int], int]:
        """Admit entities one by one, up to one whose result depends on those before it being worked off
        first."""
        taken: dict[str, int] = {}
        places: list[int] = []
        may_make_room = False
        for place, name in enumerate(names):
            row = self._rows.get(name)
            if name in taken:
                return list(taken.values()), places, place
            if row is None:
                # There may be several to forget where the limit was lowered.
                while self._rows.full:
                    oldest = self._rows.oldest
                    if may_make_room or oldest in taken:
                        return list(taken.values()), places, place
                    self._forget(oldest, displaced=True)
            elif with_labels and self._entities["labelled"][row]:
                self._metrics.duplicate_labels += 1
                continue
            else:
                learnt_from = with_labels or bool(self._entities["labelled"][row])
                may_make_room = may_make_room or (not self._alignment.keep and learnt_from)
            (taken[name],) = self._rows.hear([name])
            places.append(place)
        return list(taken.values()), places, len(names)

    def label(self, rows: NDArray[np.intp], labels: NDArray[np.float64]) -> None:
        self._entities["label"][rows], self._entities["labelled"][rows] = labels, True

    def show(self, rows: NDArray[np.intp], number: int, shown: SentEmbeddings) -> None:
        """Take the embeddings of one party, in the order of the rows. number: the party's."""
        of_party = self._embeddings[:, number]
        before = of_party.take(rows)
        of_party["requests"][rows] = np.where(before["asked"], before["requests"] + 1, 0)
        of_party["epoch"][rows], of_party["sequence"][rows] = shown.epochs, shown.sequences
        of_party["parameters_version"][rows] = shown.versions
        of_party["held"][rows] = of_party["unanswered"][rows] = True
        of_party["asked"][rows] = False
        self._values[rows, number] = shown.values

    # ---- predicting and learning

    def to_predict(self, rows: NDArray[np.intp]) -> PredictionBatch:
        """Choose the entities to predict now, and note them as predicted."""
        entities = self._entities.take(rows)
        present = self._embeddings["held"].take(rows, axis=0).sum(axis=1)
        shown = entities["shown"]
        better = (entities["rounds"] == 0) & self._alignment.revise & (present > shown)
        places = np.flatnonzero((present >= self._alignment.quorum) & ((shown == 0) | better))
        chosen, present, revisions = rows[places], present[places], entities["revision"][places]
        self._entities["shown"][chosen] = present
        self._entities["revision"][chosen] = revisions + 1
        return PredictionBatch(places, present, revisions)

    def numbers(
        self, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Epochs, sequences and parameters' versions of the embeddings, each (n, M)."""
        embeddings = self._embeddings.take(rows, axis=0)
        return embeddings["epoch"], embeddings["sequence"], embeddings["parameters_version"]

    def labels(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The labels, and how often each was released."""
        return self._entities["label"].take(rows), self._entities["releases"].take(rows)

    def labelled(self, rows: NDArray[np.intp]) -> bool:
        """Whether any of the entities has a label."""
        return bool(self._entities["labelled"].take(rows).any())

    def missing(self, rows: NDArray[np.intp]) -> list[int]:
        """Numbers of parties that lack at least one of the entities."""
        return np.flatnonzero(~self._embeddings["held"].take(rows, axis=0).all(axis=0)).tolist()

    def inputs(
        self, rows: NDArray[np.intp], means: NDArray[np.float64], used: NDArray[np.bool_] | None = None
    ) -> NDArray[Any]:
        """The head's inputs, (n, M, embedding size): embeddings, or the party's mean where there is none.

        means: (M, embedding size).
        used: (n, M) which embeddings are used; None: all that are held.
        """
        present = self._embeddings["held"].take(rows, axis=0) if used is None else used
        values = self._values.take(rows, axis=0)
        if not present.all():
            values = np.where(present[:, :, np.newaxis], values, means.astype(values.dtype))
        return values

    def predicted(self, rows: NDArray[np.intp], outputs: NDArray[Any]) -> None:
        """Remember the head's outputs of their predictions, (n, outputs)."""
        self._outputs[rows] = outputs

    def last_outputs(self, rows: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Places of the entities that were predicted, and their last outputs, (predicted, outputs)."""
        places = np.flatnonzero(self._entities["shown"].take(rows))
        return places, self._outputs.take(rows[places], axis=0)

    def missed(self, rows: NDArray[np.intp], number: int, now: float) -> NDArray[np.bool_]:
        """Whether a party sends each entity too late to be waited for, (n,).

        The entity was learnt from without the party, more than once or longer ago than ``reply_seconds``.
        """
        rounds = self._entities["rounds"][rows] - self._embeddings["answers"][rows, number]
        in_time = now - self._entities["learnt_at"][rows] <= self._alignment.reply_seconds
        return np.asarray((rounds > 1) | ((rounds == 1) & ~in_time))

    def missing_parties(self, rows: NDArray[np.intp], outdated: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Parties that have no embedding of an entity, or an outdated one that waits for no gradient, (n,
        M)."""
        embeddings = self._embeddings.take(rows, axis=0)
        return np.asarray(~embeddings["held"] | (outdated & ~embeddings["unanswered"]))

    def may_be_asked(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Embeddings that wait for their gradient and were not asked for before, (n, M). None without
        requests: a party that is asked beyond them forgets the entity."""
        embeddings = self._embeddings.take(rows, axis=0)
        allowed = self._alignment.requests > 0
        return np.asarray(embeddings["unanswered"] & (embeddings["requests"] == 0) & allowed)

    def decide(
        self, rows: NDArray[np.intp], outdated: NDArray[np.bool_], behind: NDArray[np.bool_]
    ) -> Decision:
        """See :func:`~streamfl.vafl.coordinator.alignment.decide`."""
        entities, embeddings = self._entities.take(rows), self._embeddings.take(rows, axis=0)
        return decide(self._settings, self._learning_quorum, entities, embeddings, outdated, behind)

    def settle(self, names: Sequence[str], rows: NDArray[np.intp], decision: Decision, now: float) -> None:
        """Carry out a decision: note which parties are answered and waited for, and forget entities that are
        done."""
        entities, embeddings = self._entities.take(rows), self._embeddings.take(rows, axis=0)
        learns, withheld = decision.learns, decision.withheld
        answered = decision.answered & learns[:, np.newaxis]
        asks = decision.asks & ~withheld
        decided = decision.ready & ~asks
        waits = np.where(decided, decision.waits & ~withheld, ~np.isnan(self._pending.since(rows)))
        self._pending.settle(names, rows, now, asks, waits)
        unanswered = embeddings["unanswered"] & ~decision.given_up & ~answered
        asked = embeddings["asked"] | (decision.stale & asks[:, np.newaxis])
        self._embeddings["unanswered"][rows], self._embeddings["asked"][rows] = unanswered, asked
        self._embeddings["answers"][rows] = embeddings["answers"] + answered
        together = decision.together & learns
        self._entities["rounds"][rows] = entities["rounds"] + together
        self._entities["learnt_at"][rows] = np.where(together, now, entities["learnt_at"])
        self._entities["releases"][rows], self._entities["noise"][rows] = decision.releases, decision.noises
        self._entities["withheld"][rows] = np.where(decision.answers, withheld, entities["withheld"])
        if self._alignment.keep:
            return
        shown_by_all = embeddings["held"].all(axis=1)
        for place in np.flatnonzero(shown_by_all & withheld).tolist():
            self._forget(names[place])
        for place in np.flatnonzero(
            shown_by_all & decided & ~withheld & ~(unanswered | asked).any(axis=1)
        ).tolist():
            self._remove(names[place])

    # ---- time

    def give_up_waiting(self, now: float) -> tuple[list[str], NDArray[np.intp]]:
        """End overdue waits. Returns the entities' names and rows. A party that was asked and did not answer
        counts as absent."""
        names = self._pending.overdue(now)
        rows, _, _ = self.admit(names, now)
        embeddings = self._embeddings.take(rows, axis=0)
        silent = embeddings["unanswered"] & embeddings["asked"]
        self._metrics.silent_parties += int(silent.sum())
        self._embeddings["unanswered"][rows] = embeddings["unanswered"] & ~silent
        self._pending.give_up(names, rows)
        return names, rows

    def set_back(self, now: float) -> None:
        """Move times after ``now`` back to ``now``: the clock was ahead."""
        names, rows = self._rows.set_back(now)
        for name, row in zip(names, rows.tolist(), strict=True):
            self._pending.not_later_than(name, row, now)
        self._entities["learnt_at"][rows] = np.minimum(self._entities["learnt_at"][rows], now)

    def expire(self, now: float) -> None:
        for name, _ in self._rows.overdue(now):
            self._forget(name)

    def _forget(self, name: str, displaced: bool = False) -> None:
        """Forget an entity and count why."""
        row = self._rows[name]
        present = int(self._embeddings["held"][row].sum())
        if self._entities["rounds"][row]:
            reason = "learnt"
        elif self._entities["withheld"][row]:
            reason = "withheld"
        elif displaced:
            reason = "displaced"
        elif not self._entities["labelled"][row]:
            reason = "no_label" if present >= self._alignment.quorum else "no_quorum"
        else:
            reason = "no_quorum" if present else "no_embedding"
        self._metrics.forgotten_entities[reason] += 1
        self._remove(name)

    def _remove(self, name: str) -> None:
        self._rows.remove(name)
        self._pending.remove(name)

    # ---- state

    @property
    def touched(self) -> bool:
        """Whether anything changed since the last commit."""
        return self._rows.touched

    def changed_state(self) -> list[tuple[bytes, bytes | None]]:
        gone, names, rows = self._rows.take_changed()
        prefix = ALIGNED_ENTITY.prefix
        changes: list[tuple[bytes, bytes | None]] = [(prefix + name.encode(), None) for name in gone]
        contents = encode_entities(
            self._entities.take(rows),
            self._embeddings.take(rows, axis=0),
            self._values.take(rows, axis=0),
            self._outputs.take(rows, axis=0),
            {"since": self._rows.since(rows), "awaited_at": self._pending.since(rows)},
        )
        changes += zip([prefix + name.encode() for name in names], contents, strict=True)
        return changes

    def restore(self, name: str, entity: RememberedEntity, values: Sequence[NDArray[Any]]) -> None:
        """Restore one entity. values: of ``entity.held``, in its order, each (embedding size,)."""
        outputs = entity.outputs or ()
        if len(outputs) != (self._outputs.shape[1] if entity.shown else 0):
            raise BadRecord("shape", f"of the entity {name!r} {len(outputs)} outputs are remembered")
        check_within(outputs, -LARGEST_OUTPUT, LARGEST_OUTPUT, f"the outputs of entity {name!r}")
        self._pending.remove(name)
        row = self._rows.restore(name, entity.since)
        self._blank()
        for column in ("shown", "revision", "rounds", "releases", "noise", "withheld"):
            self._entities[column][row] = getattr(entity, column)
        self._entities["label"][row], self._entities["labelled"][row] = (
            entity.label or 0.0,
            entity.label is not None,
        )
        if entity.awaited_at is not None:
            self._pending.put(name, row, entity.awaited_at)
        if entity.learnt_at is not None:
            self._entities["learnt_at"][row] = entity.learnt_at
        for (number, one), content in zip(entity.held.items(), values, strict=True):
            numbers = one.epoch, one.sequence, one.parameters_version, one.requests, one.answers
            self._embeddings[row, number] = (*numbers, True, one.unanswered, one.asked)
            self._values[row, number] = content
        if entity.shown:
            self._outputs[row] = outputs

    def _blank(self) -> None:
        """Clear the rows that were given to new entities, and grow the arrays if there are more rows."""
        rows = self._rows.given_out()
        if not rows:
            return
        old, capacity = len(self._entities), self._rows.capacity
        if capacity > old:
            for name in ("_entities", "_embeddings", "_values", "_outputs"):
                before = getattr(self, name)
                grown = np.zeros((capacity, *before.shape[1:]), before.dtype)
                grown[:old] = before
                setattr(self, name, grown)
        self._pending.blank(rows, capacity)
        self._entities[rows], self._embeddings[rows] = np.zeros((), ENTITY_ROW), np.zeros((), EMBEDDING_ROW)
        self._entities["learnt_at"][rows] = np.nan
