"""What the active party wants to know of entities, cut into rounds that fit into records, so many on their way at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.messages import CARRIED_BYTES, NAMES_BYTES, PHASES, FeatureRange

__all__ = ["Question", "Rounds", "Wanting", "cut"]

# An entity's name is up to four bytes a character, and has a header.
NAME_HEADER = 5


class Wanting(Protocol):
    """Who wants to know."""

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        """The sum over all parties. known: of how many parties' columns each entity's part is."""


@dataclass(frozen=True, eq=False)
class Question:
    """What one round asks. wanting: who wants to know."""

    wanting: Wanting
    purpose: int
    ranges: Sequence[FeatureRange]
    entities: Sequence[str]
    bandwidth: float = 1.0


class Rounds:
    """Questions that wait, and those that were asked. None of it is remembered: a restart asks anew.

    limit: so many on their way at a time.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[Question] = deque()
        self._asked: dict[tuple[int, int], Question] = {}
        self._next = 0

    def __len__(self) -> int:
        """How many are on their way."""
        return len(self._asked)

    @property
    def busy(self) -> bool:
        """Whether anything is wanted."""
        return bool(self._waiting or self._asked)

    def want(self, question: Question) -> None:
        self._waiting.append(question)

    def ask(self, incarnation: int) -> Iterator[tuple[tuple[int, int], Question]]:
        """Questions that may go out now, with the names of their rounds in this incarnation of the active party."""
        while self._waiting and len(self._asked) < self._limit:
            question = self._waiting.popleft()
            key = incarnation, self._next
            self._next += 1
            self._asked[key] = question
            yield key, question

    def take(self, key: tuple[int, int]) -> Question | None:
        """The question of a round that is over."""
        return self._asked.pop(key, None)

    def ask_again(self, key: tuple[int, int]) -> None:
        """A round came to nothing: its question waits again, before all others."""
        if (question := self._asked.pop(key, None)) is not None:
            self._waiting.appendleft(question)


def cut(entities: Sequence[str], numbers: int, width: int, most: int) -> Iterator[list[str]]:
    """Entities in parts whose sums and names fit into a record.

    numbers: of an entity.
    width: bytes of a number.
    most: so many entities together at most.
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
    wanting: Wanting, entities: Sequence[str], ranges: Sequence[FeatureRange], bandwidth: float, width: int, most: int
) -> Iterator[Question]:
    """Questions for the phases of these features of these entities."""
    numbers = sum(one.count for one in ranges)
    for part in cut(entities, numbers, width, most):
        yield Question(wanting, PHASES, ranges, part, bandwidth)
