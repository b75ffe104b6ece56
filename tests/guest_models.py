"""User models for tests: a correct one, and several wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Counting", "Forgetful", "Guest", "Line", "growing", "line", "no_model", "raising"]


PREDICTIONS: dict[str, Any] = {"nan": np.nan, "inf": np.inf, "text": "0.5", "none": None, "list": [0.5]}


class Line:
    """Least squares by stochastic gradient. Its state has an array, a number and a dictionary."""

    def __init__(self, rate: float = 0.05) -> None:
        self.rate, self.weights, self.offset = rate, np.zeros(3), 0.0
        self.seen: dict[int, int] = {}

    def predict_one(self, x: dict[int, float]) -> float:
        return float(self.weights @ [x[0], x[1], x[2]]) + self.offset

    def learn_one(self, x: dict[int, float], y: float) -> None:
        step = self.rate * (y - self.predict_one(x))
        self.weights = self.weights + step * np.array([x[0], x[1], x[2]])
        self.offset += step
        self.seen[len(x)] = self.seen.get(len(x), 0) + 1

    def state(self) -> Any:
        return {"weights": self.weights, "offset": self.offset, "seen": self.seen}

    def restore(self, state: Any) -> None:
        self.weights, self.offset, self.seen = state["weights"], state["offset"], state["seen"]


def line(rate: float = 0.05) -> Line:
    """The function that a settings file names."""
    return Line(rate)


class Counting:
    """Predicts the number of labels it has learnt, in millionths."""

    def __init__(self) -> None:
        self.count = 0

    def predict_one(self, x: dict[int, float]) -> float:
        # Changes to its input may not affect others.
        x.clear()
        return self.count / 1e6

    def learn_one(self, x: dict[int, float], y: float) -> None:
        x.clear()
        self.count += 1

    def state(self) -> Any:
        return self.count

    def restore(self, state: Any) -> None:
        self.count = state


class Forgetful(Line):
    """Leaves half of what it learnt out of its state."""

    def state(self) -> Any:
        return {"weights": self.weights, "offset": 0.0, "seen": {}}


class Guest(Line):
    """Fails in one way, after some labels.

    how: predict, learn, state or restore raises; exit: predict ends the process; nan, inf, text, none, list:
    its predictions.
    after: number of labels that it learns first.
    """

    def __init__(self, how: str, after: int = 2) -> None:
        super().__init__()
        self.how, self.after, self.labels = how, after, 0

    def predict_one(self, x: dict[int, float]) -> Any:
        wrong = self.labels >= self.after
        if wrong and self.how in ("predict", "exit"):
            raise KeyError("gone") if self.how == "predict" else SystemExit(0)
        return PREDICTIONS[self.how] if wrong and self.how in PREDICTIONS else 0.25

    def learn_one(self, x: dict[int, float], y: float) -> None:
        self.labels += 1
        if self.how == "learn" and self.labels > self.after:
            raise ZeroDivisionError("gone")

    def state(self) -> Any:
        if self.how == "state":
            raise RuntimeError("gone")
        return self.labels

    def restore(self, state: Any) -> None:
        if self.how == "restore":
            raise RuntimeError("gone")
        self.labels = state


class growing(Counting):
    """Its state grows by a byte with each label."""

    def state(self) -> Any:
        return b"x" * self.count

    def restore(self, state: Any) -> None:
        self.count = len(state)


class brief(Counting):
    """Has no state and restore."""

    state = restore = None  # type: ignore[assignment]


class Chance:
    """A classifier that predicts the share of True."""

    def __init__(self) -> None:
        self.count = self.true = 0

    def predict_proba_one(self, x: dict[int, float]) -> dict[bool, float]:
        return {True: self.true / self.count, False: 1 - self.true / self.count} if self.count else {}

    def learn_one(self, x: dict[int, float], y: bool) -> None:
        assert y is True or y is False
        self.count, self.true = self.count + 1, self.true + y


def hungry(rates: list[float]) -> Line:
    """Removes an item from the list that it is given."""
    return Line(rates.pop())


def no_model() -> object:
    """Returns an object that is not a model."""
    return object()


def raising() -> object:
    """Raises when it is made."""
    raise OSError("no weights here")


ready = "not a function"


class Wild(Counting):
    """Predicts numbers far from any label."""

    def predict_one(self, x: dict[int, float]) -> float:
        return 1e9


class Shared(Counting):
    """All instances share one count."""

    total = 0

    def predict_one(self, x: dict[int, float]) -> float:
        return Shared.total / 1e6

    def learn_one(self, x: dict[int, float], y: float) -> None:
        Shared.total += 1


class Asked(Counting):
    """Counts its predictions."""

    def predict_one(self, x: dict[int, float]) -> float:
        self.count += 1
        return self.count / 1e6
