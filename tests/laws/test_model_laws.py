"""The laws of users' models: good models pass, and each law finds a model that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from streamfl.learning.model_state import StateRefused
from streamfl.learning.own_models import NoNumber, OwnModel
from streamfl.testing.model_laws import ModelLaws


def own(function: str, **keys: Any) -> OwnModel:
    return OwnModel(function, f"guest_models:{function}", **keys)


class TestLine(ModelLaws):
    """A model with state and restore."""

    own = own("line")


class TestLogisticRegression(ModelLaws):
    """River's logistic regression after a scaler. It has no state to show."""

    own = OwnModel("river", "river.linear_model:LogisticRegression")
    loss = "logistic"


@pytest.mark.parametrize(
    ("model", "law", "error"),
    [
        (own("Guest", parameters={"how": "nan"}), "test_it_predicts_numbers", NoNumber),
        (own("Shared"), "test_it_becomes_the_same_each_time", AssertionError),
        (own("Asked"), "test_it_learns_nothing_by_predicting", AssertionError),
        (own("Forgetful"), "test_it_goes_on_as_if_never_stopped", AssertionError),
        (own("growing"), "test_its_state_is_bounded", AssertionError),
        (own("growing", state_bytes=700), "test_its_state_is_bounded", StateRefused),
    ],
)
def test_each_law_can_be_broken(model: OwnModel, law: str, error: type[Exception]) -> None:
    """Protects users of the laws: a law that no model can break checks nothing."""

    class Broken(ModelLaws):
        own = model

    laws = Broken()
    with pytest.raises(error):
        getattr(laws, law)([*laws._drawn(laws.samples)])
