"""Models as strangers bring them: one that is right, and some that are not."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Counting", "Forgetful", "Guest", "Line", "growing", "line", "no_model", "raising"]


PREDICTIONS: dict[str, Any] = {"nan": np.nan, "inf": np.inf, "text": "0.5", "none": None, "list": [0.5]}


class Line:
    """Least squares by stochastic gradient; an array, a number and a dictionary are its state."""

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
    """As a settings file names it."""
    return Line(rate)


class Counting:
    """Predicts how many labels it has learnt, in millionths."""

    def __init__(self) -> None:
        self.count = 0

    def predict_one(self, x: dict[int, float]) -> float:
        # What it does to its input must be nobody else's concern.
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
    """Forgets to remember half of what it learnt."""

    def state(self) -> Any:
        return {"weights": self.weights, "offset": 0.0, "seen": {}}


class Guest(Line):
    """Wrong in one way, from a label on.

    how: predict, learn, state or restore raise, exit: predict ends the process; nan, inf, text, none, list: what it predicts.
    after: so many labels are learnt first.
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
    """Remembers a byte more with each label."""

    def state(self) -> Any:
        return b"x" * self.count

    def restore(self, state: Any) -> None:
        self.count = len(state)


class brief(Counting):
    """Has nothing to say of itself."""

    state = restore = None  # type: ignore[assignment]


class Chance:
    """A classifier that gives the share of True."""

    def __init__(self) -> None:
        self.count = self.true = 0

    def predict_proba_one(self, x: dict[int, float]) -> dict[bool, float]:
        return {True: self.true / self.count, False: 1 - self.true / self.count} if self.count else {}

    def learn_one(self, x: dict[int, float], y: bool) -> None:
        assert y is True or y is False
        self.count, self.true = self.count + 1, self.true + y


def hungry(rates: list[float]) -> Line:
    """Takes from the list that it is given."""
    return Line(rates.pop())


def no_model() -> object:
    """Makes what is no model."""
    return object()


def raising() -> object:
    """Cannot be made."""
    raise OSError("no weights here")


ready = "not a function"


class Wild(Counting):
    """Predicts what no label ever was."""

    def predict_one(self, x: dict[int, float]) -> float:
        return 1e9


class Shared(Counting):
    """All of it count together."""

    total = 0

    def predict_one(self, x: dict[int, float]) -> float:
        return Shared.total / 1e6

    def learn_one(self, x: dict[int, float], y: float) -> None:
        Shared.total += 1


class Asked(Counting):
    """Counts predictions."""

    def predict_one(self, x: dict[int, float]) -> float:
        self.count += 1
        return self.count / 1e6
