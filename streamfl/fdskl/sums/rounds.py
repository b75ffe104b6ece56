"""Questions of an active party about entities, cut into rounds that fit into records, a limited number under
way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.learning.model import Expansion
from streamfl.fdskl.messages import CARRIED_BYTES, MOST_ENTITIES, NAMES_BYTES, OUTPUTS, PHASES, FeatureRange
from streamfl.fdskl.sums.contributions import OUTPUT_BITS

__all__ = ["Question", "Rounds", "Wanting", "cut", "fit_together", "outputs_of", "phases_of"]

# Bytes in front of an entity's encoded name.
NAME_HEADER = 5


class Wanting(Protocol):
    """Takes the answers to its questions."""

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        """Take the sum over all parties. known: how many parties had the columns of each entity."""


@dataclass(frozen=True, eq=False)
class Question:
    """What one round asks.

    wanting: takes the answer.
    renewed: returns the question to ask instead if the round was given up, or None for none. Left out: the
    same one is asked."""

    wanting: Wanting
    purpose: int
    ranges: Sequence[FeatureRange]
    entities: Sequence[str]
    bandwidth: float = 1.0
    renewed: Callable[[], Question | None] | None = None


class Rounds:
    """Questions that wait, and those that were asked. None of them is remembered: a restart asks anew.

    limit: most questions under way at a time, and as many more for outputs: each of these waits for phases
    that are asked for meanwhile.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Question] = deque()
        self._outputs: deque[Question] = deque()
        self._asked: dict[tuple[int, int], Question] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many are under way."""
        return len(self._asked)

    @property
    def busy(self) -> bool:
        """Whether any question waits or is under way."""
        return bool(self._waiting or self._outputs or self._asked)

    @property
    def are_waiting(self) -> bool:
        """Whether any question was not asked yet."""
        return bool(self._waiting or self._outputs)

    def want(self, question: Question) -> None:
        self._queue(question).append(question)

    def ask(self, incarnation: int) -> Iterator[tuple[tuple[int, int], Question]]:
        """Questions that may go out now, with the names of their rounds in this incarnation of the active
        party."""
        for outputs, queue in enumerate((self._waiting, self._outputs)):
            while queue and self._under_way(bool(outputs)) < self._limit:
                question = queue.popleft()
                key = incarnation, self._next
                self._next += 1
                self._asked[key] = question
                yield key, question

    def take(self, key: tuple[int, int]) -> Question | None:
        """The question of a round that is over."""
        return self._asked.pop(key, None)

    def ask_again(self, key: tuple[int, int]) -> None:
        """A round was given up: its question waits again, before all others."""
        if (question := self._asked.pop(key, None)) is not None:
            again = question if question.renewed is None else question.renewed()
            if again is not None:
                self._queue(again).appendleft(again)

    def drop(self, wanting: Wanting) -> None:
        """Forget all questions of ``wanting``: those that wait are not asked, and those that were asked are
        not asked again."""
        self._waiting = deque(one for one in self._waiting if one.wanting is not wanting)
        self._outputs = deque(one for one in self._outputs if one.wanting is not wanting)
        self._asked = {key: one for key, one in self._asked.items() if one.wanting is not wanting}

    def _under_way(self, outputs: bool) -> int:
        found = sum(one.purpose == OUTPUTS for one in self._asked.values())
        return found if outputs else len(self._asked) - found

    def _queue(self, question: Question) -> deque[Question]:
        return self._outputs if question.purpose == OUTPUTS else self._waiting


def cut(entities: Sequence[str], numbers: int, width: int, most: int) -> Iterator[list[str]]:
    """Entities in parts whose sums and names fit into a record.

    numbers: how many numbers an entity takes.
    width: bytes of a number.
    most: most entities in a part.
    """
    room = max(1, min(most, CARRIED_BYTES // max(1, numbers * width)))
    part: list[str] = []
    size = 0
    for entity in entities:
        length = len(entity.encode()) + NAME_HEADER
        if part and (len(part) >= room or size + length > NAMES_BYTES):
            yield part
            part, size = [], 0
        part.append(entity)
        size += length
    if part:
        yield part


def phases_of(
    wanting: Wanting,
    entities: Sequence[str],
    ranges: Sequence[FeatureRange],
    bandwidth: float,
    width: int,
    most: int,
) -> Iterator[Question]:
    """Questions for the phases of these features of these entities."""
    numbers = sum(one.count for one in ranges)
    for part in cut(entities, numbers, width, most):
        yield Question(wanting, PHASES, ranges, part, bandwidth)


def outputs_of(
    wanting: Wanting, entities: Sequence[str], expansion: Expansion, most: int
) -> Iterator[Question]:
    """Questions for f of these entities, by this version of the model."""
    for part in cut(entities, 1, OUTPUT_BITS // 8, most):
        yield Question(wanting, OUTPUTS, expansion.ranges, part, expansion.bandwidth)


def fit_together(features: int, width: int) -> int:
    """How many entities fit into a record with the phases of ``features`` features each. width: bytes of a
    number."""
    return max(1, min(MOST_ENTITIES, CARRIED_BYTES // (width * max(1, features))))
