"""A River model of one's own, for ``experts.river`` and ``challengers.models``."""

from typing import Any

from river import linear_model, preprocessing

__all__ = ["bayesian_line"]


def bayesian_line() -> Any:
    """A new model. It is called once a client, and again whenever a client's window of samples begins
    anew."""
    return preprocessing.StandardScaler() | linear_model.BayesianLinearRegression(smoothing=0.99)
