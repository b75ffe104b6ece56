"""The mathematics that several systems share: kernel dictionaries, random features, losses and kernel
weights."""

from streamfl.kernels.dictionary import FAMILIES, Kernel, grid, paper_dictionary
from streamfl.kernels.log_weights import bin_probabilities, bins, heaviest_first, normalised
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
    "bin_probabilities",
    "bins",
    "frequencies",
    "grid",
    "heaviest_first",
    "loss_named",
    "normalised",
    "paper_dictionary",
    "random_features",
]
