"""River's objects as functions of a client's latest samples. They cannot be stored, so they are created again
from these."""

from __future__ import annotations

import functools
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from streamfl.learning.challengers import Challenger, challenger, model_name
from streamfl.learning.own_models import GUESTS_ERRORS, ModelFailures, NoNumber, OwnModel

__all__ = ["ChangeDetector", "RiverExperts", "Windowed", "by_column", "risen_since"]

# Samples between two checks. A check takes a few microseconds; until the next one, an old model goes on
# predicting.
CHECK_EVERY = 8
# Fewest labels with a mean and a deviation worth using. ADWIN does not use fewer either.
LEAST_SINCE = 5

_Rows = NDArray[np.float32]


class _Learns(Protocol):
    def learn(self, sample: _Rows) -> None:
        """Take the next kept sample in."""


_Learner = TypeVar("_Learner", bound=_Learns)


class Windowed(Generic[_Learner]):
    """One object for each client. It knows the client's latest ``period`` to 2 ``period`` samples and nothing
    else.

    At every multiple of ``period`` samples it begins anew: it learns the latest ``period`` in their order,
    then each sample that comes. So it depends only on the number of samples and on a ring of the latest 2
    ``period``, and a restart changes nothing.

    make: creates an object that has learnt nothing.
    ring: how many samples are kept; sample number n lies in slot n modulo ``ring``.
    """

    def __init__(self, make: Callable[[], _Learner], ring: int) -> None:
        self._make = make
        self._ring = ring
        self._period = max(1, ring // 2)
        self._held: dict[int, tuple[int, int, _Learner]] = {}

    def at(self, row: int, kept: _Rows, count: int) -> _Learner:
        """The object of a client.

        row: the client's number.
        kept: its latest samples, (ring, width).
        count: how many samples it has given.
        """
        start = max(0, (count // self._period - 1) * self._period)
        begun, known, learner = self._held.get(row, (-1, 0, None))
        if learner is None or begun != start or known > count:
            learner, known = self._make(), start
        for number in range(known, count):
            learner.learn(kept[number % self._ring])
        self._held[row] = start, count, learner
        return learner

    def forget(self, row: int) -> None:
        """Forget the object: the row's client is another one, or its samples are numbered anew."""
        self._held.pop(row, None)


class RiverExperts:
    """Models of :func:`streamfl.learning.challengers.challenger`, each of which predicts a client's labels.

    A model that raises while it learns is off, and predicts NaN, until the window begins anew. Any model
    predicts NaN where its prediction raises or is not finite.

    models: by their place in ``experts.river``.
    loss: of the labels.
    inputs: how many columns of a kept sample are the input.
    label: which column is the label.
    failures: counts failures.
    """

    def __init__(
        self,
        models: Mapping[int, str | OwnModel],
        loss: Literal["square", "logistic"],
        inputs: int,
        label: int,
        failures: ModelFailures,
    ) -> None:
        self._names = {place: model_name(model) for place, model in models.items()}
        self._models: dict[int, Challenger] = {}
        self._inputs, self._label = inputs, label
        self._failures = failures
        for place, model in models.items():
            try:
                self._models[place] = challenger(model, loss)
            # The model could be created when the worker started. But another library's model may raise
            # anything, at any time.
            except GUESTS_ERRORS as error:
                self._note(place, "make", error, "it is off for a while")

    def learn(self, sample: _Rows) -> None:
        """Let every model learn a kept sample (width,)."""
        inputs, label = by_column(sample[: self._inputs]), float(sample[self._label])
        for place in [*self._models]:
            try:
                self._models[place].learn(inputs, label)
            except GUESTS_ERRORS as error:
                self._note(place, "learn", error, "it is off for a while")
                del self._models[place]

    def predict(self, inputs: _Rows) -> dict[int, float]:
        """By place, each model's prediction for inputs (columns,), NaN if there is none."""
        x = by_column(inputs)
        return {place: self._prediction(place, x) for place in self._names}

    def _prediction(self, place: int, inputs: dict[int, float]) -> float:
        if place in self._models:
            try:
                prediction = self._models[place].predict(inputs)
                if math.isfinite(prediction):
                    return prediction
                raise NoNumber(f"the prediction is {prediction}")
            except GUESTS_ERRORS as error:
                self._note(place, "predict", error, "the running mean replaces it")
        return math.nan

    def _note(self, place: int, reason: str, error: BaseException, then: str) -> None:
        self._failures.note(self._names[place], reason, error, then)


@functools.cache
def _adwin_class() -> Any:
    """River's ADWIN, loaded without the rest of ``river.drift``: its data sets bring scikit-learn, which
    doubles the memory of a worker and the processor time of its start."""
    name = "river.drift"
    if name in sys.modules:
        return sys.modules[name].ADWIN
    spec = importlib.util.find_spec(name)
    assert spec is not None
    # A package that is not executed. It only says where its modules are.
    sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        return importlib.import_module(f"{name}.adwin").ADWIN
    finally:
        # Whoever imports them later gets them whole.
        del sys.modules[name]
        sys.modules.pop(f"{name}.adwin", None)


class ChangeDetector:
    """ADWIN (Bifet and Gavalda 2007) on a client's errors between 0 and 1: have they risen, and when?

    ADWIN detects a change. Its buckets double in size, so it cannot give the time. The split of least squares
    gives it: the place where n0 n1 (mean1 - mean0)^2 of the errors before and after it is largest.

    error: which column of a kept sample is the error of its prediction.
    samples_since: how many samples came since the errors rose. It is set by the sample that shows the rise,
    and 0 after any other."""

    def __init__(self, error: int) -> None:
        self._adwin = _adwin_class()(clock=CHECK_EVERY)
        self._error = error
        self._errors: list[float] = []
        self.samples_since = 0

    def __getstate__(self) -> dict[str, Any]:
        # By its content: pickle looks for ADWIN's class in River, and finds another one there if this was
        # loaded alone.
        return {**self.__dict__, "_adwin": self._adwin.__dict__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        held = state["_adwin"]
        self.__dict__.update(state)
        # Pickles of before hold the object.
        if isinstance(held, dict):
            self._adwin = _adwin_class()(clock=CHECK_EVERY)
            self._adwin.__dict__.update(held)

    def learn(self, sample: _Rows) -> None:
        """Take in the error of a kept sample (width,)."""
        error, before = float(sample[self._error]), self._adwin.estimation
        self._errors.append(error)
        self._adwin.update(error)
        risen = self._adwin.drift_detected and self._adwin.estimation > before
        self.samples_since = risen_since(np.array(self._errors)) if risen else 0


def risen_since(errors: NDArray[np.float64]) -> int:
    """How many of the errors (n,) came since they rose, 5 at least; 0 if there is no such split.

    >>> risen_since(np.array([0.0, 0.1, 0.0, 0.1, 0.9, 0.8, 0.9, 0.7, 0.9, 0.9]))
    6
    """
    before = np.arange(1, len(errors) - LEAST_SINCE + 1)
    if not len(before):
        return 0
    after = len(errors) - before
    sums = np.cumsum(errors)
    rises = (sums[-1] - sums[before - 1]) / after - sums[before - 1] / before
    scores = np.square(np.maximum(rises, 0.0)) * before * after
    return int(after[np.argmax(scores)]) if scores.max() > 0 else 0


def by_column(inputs: NDArray[Any]) -> dict[int, float]:
    """The numbers of a sample (columns,) as models take them."""
    return dict(enumerate(inputs.astype(np.float64).tolist()))
