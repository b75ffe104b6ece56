"""The mathematics that several systems share: kernel dictionaries, random features and losses."""

from streamfl.kernels.dictionary import FAMILIES, Kernel, grid, paper_dictionary
from streamfl.kernels.losses import LOGISTIC, LOSSES, SQUARE, Loss, loss_named
from streamfl.kernels.random_features import FeatureMap, frequencies, random_features

__all__ = [
    "FAMILIES",
    "LOGISTIC",
    "LOSSES",
    "SQUARE",
    "FeatureMap",
    "Kernel",
    "Loss",
    "frequencies",
    "grid",
    "loss_named",
    "paper_dictionary",
    "random_features",
]
