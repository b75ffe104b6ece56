"""The laws of your own model, as a test suite: subclass :class:`ModelLaws`, set how the model is made, and
run pytest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from streamfl.learning.own_models import Loss, OwnChallenger, OwnModel, decode_remembered

__all__ = ["ModelLaws"]

Sample = tuple[dict[int, float], float]


class ModelLaws:
    """Laws of experts and challengers. A model without ``state`` and ``restore`` passes the laws about them.

    own: how the model is made; set by a subclass.
    loss, columns: the loss that it is for, and its number of inputs.
    samples: number of samples that it is given.
    """

    own: OwnModel
    loss: Loss = "square"
    columns = 3
    samples = 600

    @pytest.fixture
    def stream(self) -> list[Sample]:
        """Inputs around 0, and labels that follow the first input: on the learning scale, or 0 and 1."""
        return [*self._drawn(self.samples)]

    def _drawn(self, count: int) -> Iterator[Sample]:
        draws = np.random.default_rng(7)
        for inputs in draws.normal(size=(count, self.columns)):
            label = float(np.clip(0.5 + 0.2 * inputs[0] + 0.05 * draws.normal(), 0.0, 1.0))
            yield dict(enumerate(inputs.tolist())), float(label > 0.5) if self.loss == "logistic" else label

    def test_it_predicts_numbers(self, stream: list[Sample]) -> None:
        """Every prediction is a finite number, from the first sample on. Otherwise the running mean would
        replace it."""
        model = OwnChallenger(self.own, self.loss)
        for inputs, label in stream:
            # Raises for any other prediction.
            model.predict(inputs)
            model.learn(inputs, label)

    def test_it_becomes_the_same_each_time(self, stream: list[Sample]) -> None:
        """After a restart it learns samples again. Random draws need a fixed seed, and two models may not
        share anything."""
        first, then = (self._predictions(stream) for _ in range(2))
        assert first == then, "two models that learnt the same predict otherwise"

    def _predictions(self, stream: list[Sample]) -> list[object]:
        """A new model's prediction of each sample before it learns it."""
        model, found = self.own.made(self.loss), []
        for inputs, label in stream:
            found.append(self._asked(model, inputs))
            model.learn_one(dict(inputs), self._label(label))
        return found

    def _asked(self, model: Any, inputs: dict[int, float]) -> object:
        return (model.predict_proba_one if self.loss == "logistic" else model.predict_one)(dict(inputs))

    def _label(self, label: float) -> float:
        return bool(label) if self.loss == "logistic" else label

    def test_it_learns_nothing_by_predicting(self, stream: list[Sample]) -> None:
        """Samples that are learnt again after a restart are not predicted again."""
        asked, silent = (self.own.made(self.loss) for _ in range(2))
        for inputs, label in stream:
            self._asked(asked, inputs)
            for model in (asked, silent):
                model.learn_one(dict(inputs), self._label(label))
        inputs = stream[0][0]
        assert self._asked(asked, inputs) == self._asked(silent, inputs), (
            "it predicts otherwise because it was asked before"
        )

    def test_it_goes_on_as_if_never_stopped(self, stream: list[Sample]) -> None:
        """Whatever ``state`` leaves out is lost at each restart."""
        model = OwnChallenger(self.own, self.loss)
        if not model.stateful:
            return
        again, since = OwnChallenger(self.own, self.loss), len(stream) // 2
        for inputs, label in stream[:since]:
            model.learn(inputs, label)
        again.take_back(decode_remembered(model.remembered(since)))
        for inputs, label in stream[since:]:
            assert again.predict(inputs) == model.predict(inputs), "after restore it predicts otherwise"
            again.learn(inputs, label)
            model.learn(inputs, label)
        assert again.remembered(1) == model.remembered(1), "after restore it remembers otherwise"

    def test_its_state_is_bounded(self, stream: list[Sample]) -> None:
        """A state that grows with the samples is refused some day. Ten times as many samples may need hardly
        more."""
        model = OwnChallenger(self.own, self.loss)
        if not model.stateful:
            return
        sizes = []
        for number, (inputs, label) in enumerate(self._drawn(10 * self.samples), 1):
            model.learn(inputs, label)
            if number in (self.samples, 10 * self.samples):
                sizes.append(len(model.remembered(number)))
        assert sizes[1] <= 1.1 * sizes[0] + 100, (
            f"its state grows: {sizes[0]} bytes after {self.samples} samples, then {sizes[1]}"
        )
