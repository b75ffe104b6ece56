"""A party's model that the operator wrote: imported by its name, and tried out before use."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from streamfl.contract.role import ConfigurationError
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.networks import Differentiable
from streamfl.vafl.functions.torch_model import NOT_INSTALLED

__all__ = ["own_model"]


def own_model(location: str, inputs: int, settings: VaflSettings) -> Differentiable:
    """The operator's model; ConfigurationError if it cannot be made, or lacks something that a party needs.

    location: ``module:function`` of the function that makes the model.
    inputs: numbers of a sample.
    """
    module, _, attribute = location.partition(":")
    try:
        make = getattr(importlib.import_module(module), attribute)
        function: Differentiable = make(
            inputs, settings.federation.embedding_size, settings.federation.precision
        )
        _try(function, inputs, settings)
    except Exception as error:
        # The operator's own code may fail in any way.
        text = str(error) if isinstance(error, ConfigurationError) else f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            text = NOT_INSTALLED
        raise ConfigurationError(f"embedding.model = {location!r}: {text}") from None
    return function


def _try(function: Differentiable, inputs: int, settings: VaflSettings) -> None:
    """Call every method that a party will call; ConfigurationError says what does not fit."""

    def fits(name: str, found: Any, expected: tuple[int, ...]) -> None:
        if found.shape != expected:
            raise ConfigurationError(f"{name} of the shape {found.shape}, {expected} is expected")

    size = settings.federation.embedding_size
    dtype = np.dtype(settings.federation.precision)
    units = function.noise_units
    parameters = function.initial(0)
    if parameters.shape != (function.size,) or parameters.dtype != dtype:
        raise ConfigurationError(
            f"its first parameters are {parameters.dtype} of shape {parameters.shape}, "
            f"{settings.federation.precision} of shape {(function.size,)} is expected"
        )
    done = function.forward(parameters, np.zeros((2, inputs), dtype), np.zeros((2, units)) if units else None)
    fits("forward of two rows gives outputs", done.outputs, (2, size))
    cotangents = np.zeros((2, size), dtype)
    fits("backward gives a gradient", function.backward(parameters, done, cotangents), parameters.shape)
    if settings.privacy.gradient_noise is not None:
        fits(
            "backward_each gives a gradient",
            function.backward_each(parameters, done, cotangents, 1.0),
            parameters.shape,
        )
