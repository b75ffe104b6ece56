"""The user's own experts with state and restore: they know all samples of a client, not only the latest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.challengers import own_model
from streamfl.learning.model_state import ModelSnapshot, StateRefused
from streamfl.learning.own_models import (
    GUESTS_ERRORS,
    ModelFailures,
    OwnChallenger,
    OwnModel,
    decode_remembered,
)
from streamfl.pofmkl.learning.client_journal import ChangedClientParts, part_key
from streamfl.pofmkl.learning.windowed import by_column

__all__ = ["StatefulExperts", "is_stateful"]

KIND = b"m"

_Rows = NDArray[np.float32]


@dataclass
class _Held:
    """One client's models, None for one that is off, and how many of the client's samples they know."""

    models: list[OwnChallenger | None]
    known: int


def is_stateful(model: str | OwnModel, loss: Literal["square", "logistic"]) -> bool:
    """Whether a user's own model has state and restore. ConfigurationError if it cannot be created."""
    return OwnChallenger(own_model(model), loss).stateful


class StatefulExperts:
    """Models that are stored at every multiple of ``period`` samples, and learn the samples since from the
    client's ring.

    At each multiple a model is created again from its own state, whether or not the worker stops. What the
    state lacks is lost in either case, so a restart changes nothing. A model whose state cannot be stored, or
    that failed, begins anew with the latest ``period`` samples.

    models: by their place in ``experts.river``.
    loss, inputs, label, ring: as in :class:`streamfl.pofmkl.learning.windowed.RiverExperts` and ``Windowed``.
    changed: collects changed states.
    failures: counts failures.
    """

    def __init__(
        self,
        models: dict[int, OwnModel],
        loss: Literal["square", "logistic"],
        inputs: int,
        label: int,
        ring: int,
        changed: ChangedClientParts,
        failures: ModelFailures,
    ) -> None:
        self._models = models
        self._places = list(models)
        self._loss = loss
        self._inputs, self._label, self._ring = inputs, label, ring
        self._period = max(1, ring // 2)
        self._changed = changed
        self._failures = failures
        self._held: dict[int, _Held] = {}
        self._restored: dict[int, dict[int, ModelSnapshot]] = {}

    def keep(self, rows: Sequence[int], kept: NDArray[np.float32], counts: Sequence[int]) -> None:
        """Note that a sample of each client was kept, ``counts`` so far. Stores models before their samples
        leave the ring."""
        for row, count in zip(rows, counts, strict=True):
            if count % self._period == 0:
                # The restored state is from before this sample.
                self._at(row, kept[row], count - 1)
                self._at(row, kept[row], count)

    def predict(self, row: int, kept: _Rows, count: int, inputs: _Rows) -> dict[int, float]:
        """By place, each model's prediction for ``inputs`` (columns,), NaN if there is none. kept, count: as
        in ``Windowed``."""
        found = {}
        for place, model in zip(self._places, self._at(row, kept, count).models, strict=True):
            found[place] = math.nan
            if model is not None:
                try:
                    found[place] = model.predict(by_column(inputs))
                # The operator's own code may raise anything. The client goes on without it.
                except GUESTS_ERRORS as error:
                    self._failures.note(
                        self._models[place].name, "predict", error, "the running mean replaces it"
                    )
        return found

    def forget(self, row: int) -> None:
        """Forget the models: the row's client is another one."""
        self._held.pop(row, None)
        self._restored.pop(row, None)

    def begin_anew(self, row: int) -> None:
        """Forget the models: the client's samples are numbered anew."""
        self.forget(row)
        for place in self._places:
            self._changed.put(row, part_key(KIND, place), ModelSnapshot(0).encoded())

    def restore(self, row: int, place: int, remembered: ModelSnapshot) -> None:
        """Restore the stored state of a model."""
        self._restored.setdefault(row, {})[place] = remembered

    def _at(self, row: int, kept: _Rows, count: int) -> _Held:
        held = self._held.get(row)
        if held is None or held.known > count:
            held = self._held[row] = self._taken_back(row, kept, count)
        for number in range(held.known, count):
            held.models = [
                self._learnt(*one, kept[number % self._ring])
                for one in zip(self._places, held.models, strict=True)
            ]
            held.known = number + 1
            if held.known % self._period == 0:
                held.models = [
                    self._made_again(row, *one, kept, held.known)
                    for one in zip(self._places, held.models, strict=True)
                ]
        return held

    def _taken_back(self, row: int, kept: _Rows, count: int) -> _Held:
        """The models as they were at the last multiple of the period."""
        number = count - count % self._period
        remembered = self._restored.pop(row, {})
        return _Held(
            [self._restored_or_new(place, remembered.get(place), kept, number) for place in self._places],
            number,
        )

    def _restored_or_new(
        self, place: int, remembered: ModelSnapshot | None, kept: _Rows, number: int
    ) -> OwnChallenger | None:
        if number and remembered is not None and remembered.state:
            try:
                if remembered.number != number:
                    raise StateRefused("restore", f"it is of sample {remembered.number}, not {number}")
                return self._copy(place, remembered)
            except GUESTS_ERRORS as error:
                self._note(place, "restore", error)
        return self._new(place, kept, number)

    def _made_again(
        self, row: int, place: int, model: OwnChallenger | None, kept: _Rows, number: int
    ) -> OwnChallenger | None:
        """The model created again from its own state, which is stored."""
        content, again = ModelSnapshot(number).encoded(), None
        if model is not None:
            try:
                content = model.remembered(number)
                again = self._copy(place, decode_remembered(content))
            except GUESTS_ERRORS as error:
                self._note(place, "state", error)
                content, again = ModelSnapshot(number).encoded(), None
        self._changed.put(row, part_key(KIND, place), content)
        return self._new(place, kept, number) if again is None else again

    def _copy(self, place: int, remembered: ModelSnapshot) -> OwnChallenger:
        model = OwnChallenger(self._models[place], self._loss)
        model.take_back(remembered)
        return model

    def _new(self, place: int, kept: _Rows, number: int) -> OwnChallenger | None:
        """A model without stored state that has learnt the latest ``period`` samples before sample
        ``number``."""
        model: OwnChallenger | None
        try:
            model = OwnChallenger(self._models[place], self._loss)
        except GUESTS_ERRORS as error:
            self._note(place, "make", error)
            return None
        for before in range(max(0, number - self._period), number):
            model = self._learnt(place, model, kept[before % self._ring])
        return model

    def _learnt(self, place: int, model: OwnChallenger | None, sample: _Rows) -> OwnChallenger | None:
        if model is None:
            return None
        try:
            model.learn(by_column(sample[: self._inputs]), float(sample[self._label]))
        except GUESTS_ERRORS as error:
            self._failures.note(self._models[place].name, "learn", error, "it is off for a while")
            return None
        return model

    def _note(self, place: int, reason: str, error: BaseException) -> None:
        self._failures.note(self._models[place].name, reason, error, "it starts over with the latest samples")

    def part_keys(self) -> Iterable[bytes]:
        """Every key that a model may be stored under."""
        return (part_key(KIND, place) for place in self._places)
