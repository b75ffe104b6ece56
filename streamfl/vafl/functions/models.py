"""Builds the functions that the settings name: a party's embedding, the coordinator's head and its loss."""

from __future__ import annotations

from streamfl.contract.role import ConfigurationError
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.heads import (
    LOGISTIC,
    SQUARE,
    Head,
    NetworkHead,
    OutputLoss,
    SumHead,
    softmax_loss,
)
from streamfl.vafl.functions.networks import DenseNetwork, Differentiable
from streamfl.vafl.functions.own_model import own_model
from streamfl.vafl.privacy import BoundedOutput

__all__ = ["embedding_function", "head", "output_loss"]

# Bound for a party's network and for a head: some gigabytes, with the optimiser's arrays.
MOST_PARAMETERS = 2**27


def embedding_function(settings: VaflSettings, inputs: int) -> Differentiable:
    """h_m, this party's embedding."""
    section, privacy = settings.embedding, settings.privacy
    function: Differentiable
    if section.model is not None:
        function = own_model(section.model, inputs, settings)
    else:
        function = _affordable(
            DenseNetwork(
                [inputs, *section.hidden, settings.federation.embedding_size],
                section.activation,
                bias=section.bias,
                dtype=settings.dtype,
                perturbation=privacy.hidden_noise,
            ),
            "samples.features, embedding.hidden and federation.embedding_size",
        )
    if privacy.embedding_norm is None:
        return function
    return BoundedOutput(function, privacy.embedding_norm, privacy.normalise)


def _affordable(network: DenseNetwork, keys: str) -> DenseNetwork:
    if network.size > MOST_PARAMETERS:
        raise ConfigurationError(
            f"{keys}: they make {network.size:,} parameters, at most {MOST_PARAMETERS:,} are possible"
        )
    return network


def head(settings: VaflSettings) -> Head:
    """The coordinator's function of the embeddings."""
    section, federation = settings.head, settings.federation
    if section.kind == "sum":
        return SumHead(settings.dtype)
    sizes = [len(federation.parties) * federation.embedding_size, *section.hidden, settings.outputs]
    network = DenseNetwork(sizes, section.activation, dtype=settings.dtype)
    return NetworkHead(
        _affordable(
            network, "federation.parties, federation.embedding_size, head.hidden and learning.classes"
        )
    )


def output_loss(settings: VaflSettings) -> OutputLoss:
    """The loss of the head's outputs."""
    if settings.learning.loss == "softmax":
        return softmax_loss(settings.outputs)
    return SQUARE if settings.learning.loss == "square" else LOGISTIC
