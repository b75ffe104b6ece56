"""The part of f that one of several active parties computes, from its own coefficients (FDSKL, Algorithm
2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streamfl.fdskl.learning.model import Expansion, KernelModel
from streamfl.fdskl.messages import MOST_ENTITIES, Round
from streamfl.fdskl.sums.contributions import features_of
from streamfl.fdskl.sums.pending_sums import Key
from streamfl.fdskl.sums.rounds import Question, Rounds, phases_of

__all__ = ["OwnOutputs"]

# Versions of the model that can still be asked for, so that predictions are completed while others go on
# learning.
MOST_VERSIONS = 16


class _Evaluation:
    """f_l' of the entities of one round. outputs: (n,). left: answers that are missing; None: nothing was
    asked for yet."""

    def __init__(self, announced: Round, ready: Callable[[], None]) -> None:
        self.announced = announced
        self.outputs = np.zeros(len(announced.entities))
        self.left: int | None = None
        self._places: dict[str, list[int]] = {}
        for place, entity in enumerate(announced.entities):
            self._places.setdefault(entity, []).append(place)
        self._expansion: Expansion | None = None
        self._ready = ready

    def questions(self, expansion: Expansion, width: int) -> list[Question]:
        """The phases of this party's own features of these entities. width: bytes of a number."""
        self._expansion = expansion
        entities = list(self._places) if expansion.own else []
        asked = list(phases_of(self, entities, expansion.own, expansion.bandwidth, width, MOST_ENTITIES))
        self.left = len(asked)
        return asked

    def answered(self, question: Question, total: NDArray[Any], known: NDArray[np.uint8]) -> None:
        assert self._expansion is not None
        assert self.left is not None
        outputs = self._expansion.evaluate_own(features_of(total, len(question.entities)))
        for entity, output in zip(question.entities, outputs.tolist(), strict=True):
            self.outputs[self._places[entity]] = output
        self.left -= 1
        if not self.left:
            self._ready()


class OwnOutputs:
    """Computes f_l'(x) = sum over this party's i of alpha_i phi_i(x), for rounds that ask for it. It
    remembers nothing.

    The phases are asked for anew in each round, so that no outdated columns go into f.

    model: the party's.
    rounds: take its questions.
    width: bytes of a number.
    ready: called when a round may be answered.
    over: called with rounds that ask for a version that is not known any more.
    """

    def __init__(
        self,
        model: KernelModel,
        rounds: Rounds,
        width: int,
        ready: Callable[[], None],
        over: Callable[[Key], None],
    ) -> None:
        self._model = model
        self._rounds = rounds
        self._width = width
        self._ready = ready
        self._over = over
        self._wanted: dict[Key, _Evaluation] = {}
        # By the first kept feature and the number of kept features, the oldest version first.
        self._versions: dict[tuple[int, int], Expansion] = {}

    def model_changed(self) -> None:
        """There is a new version: rounds may have waited for it."""
        expansion = self._model.snapshot()
        self._versions[expansion.first, len(expansion.alphas)] = expansion
        while len(self._versions) > MOST_VERSIONS:
            del self._versions[next(iter(self._versions))]
        for key in list(self._wanted):
            self._begin(key)

    def want(self, key: Key, announced: Round) -> None:
        """Compute them for this round."""
        self._wanted[key] = _Evaluation(announced, self._ready)
        self._begin(key)

    def has(self, key: Key) -> bool:
        """Whether they are known."""
        found = self._wanted.get(key)
        return found is not None and found.left == 0

    def drop(self, key: Key) -> NDArray[np.float64] | None:
        """Forget a round that is answered or over. Returns its outputs, (n,), if they are known."""
        found = self._wanted.pop(key, None)
        if found is None:
            return None
        if found.left:
            self._rounds.drop(found)
        return found.outputs if found.left == 0 else None

    def _begin(self, key: Key) -> None:
        wanted = self._wanted[key]
        if wanted.left is not None:
            return
        asked, now = wanted.announced.ranges[0], self._model.snapshot()
        if asked.first + asked.count > now.first + len(now.alphas):
            # The party that asks has read further in the log.
            return
        current = (asked.first, asked.count) == (now.first, len(now.alphas))
        expansion = now if current else self._versions.get((asked.first, asked.count))
        if expansion is None:
            self._over(key)
            return
        for question in wanted.questions(expansion, self._width):
            self._rounds.want(question)
        if not wanted.left:
            self._ready()
