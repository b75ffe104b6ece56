"""VAFL's networks against PyTorch, and PyTorch's modules in a party. Needs the extra ``torch``, which is not
among ``dev``."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streamfl.contract.role import ConfigurationError
from streamfl.vafl.functions.networks import Activation, DenseNetwork
from streamfl.vafl.functions.torch_model import TorchModel

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'streamfl[torch]'")

GENERATOR = np.random.default_rng(6)
SIZES = (4, 6, 5, 2)
ACTIVATIONS: list[Activation] = ["relu", "tanh"]


def sequential(activation: Activation, sizes: tuple[int, ...] = SIZES) -> Any:
    """The same network of PyTorch's own layers."""
    layers: list[Any] = []
    for below, above in pairwise(sizes):
        layers += [
            torch.nn.Linear(below, above),
            torch.nn.ReLU() if activation == "relu" else torch.nn.Tanh(),
        ]
    return torch.nn.Sequential(*layers[:-1])


def turned(parameters: NDArray[Any], sizes: tuple[int, ...] = SIZES) -> NDArray[Any]:
    """Parameters of a DenseNetwork in PyTorch's order: the weights of a layer output by output."""
    parts, start = [], 0
    for below, above in pairwise(sizes):
        parts.append(parameters[start : start + below * above].reshape(below, above).T.ravel())
        start += below * above
        parts.append(parameters[start : start + above])
        start += above
    return np.concatenate(parts)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_module_is_the_same_function(activation: Activation) -> None:
    """Protects users of a module: flat parameters mean what they say, and private steps are clipped record by
    record."""
    network = DenseNetwork(SIZES, activation, dtype=np.float64)
    model = TorchModel(lambda: sequential(activation), "float64")
    assert model.size == network.size
    parameters = GENERATOR.normal(0, 0.7, network.size)
    inputs, cotangents = GENERATOR.normal(size=(7, 4)), GENERATOR.normal(size=(7, 2))
    # Arrays from the wire cannot be written to.
    inputs.flags.writeable = cotangents.flags.writeable = False
    done, expected = model.forward(turned(parameters), inputs), network.forward(parameters, inputs)
    np.testing.assert_allclose(done.outputs, expected.outputs, rtol=0, atol=1e-10)
    for norm in (None, 0.5, 2.0, 100.0):
        if norm is None:
            one = model.backward(turned(parameters), done, cotangents)
            other = network.backward(parameters, expected, cotangents)
        else:
            one = model.backward_each(turned(parameters), done, cotangents, norm)
            other = network.backward_each(parameters, expected, cotangents, norm)
        np.testing.assert_allclose(one, turned(other), rtol=0, atol=1e-10)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_party_begins_the_same_at_every_start(precision: str) -> None:
    """Protects restarts and simulations: first parameters go by the seed and the party's name, not by
    PyTorch's generator."""
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    one, other = (TorchModel(lambda: sequential("relu"), precision) for _ in range(2))
    first = one.initial(5, "bank")
    assert first.dtype == np.dtype(precision)
    np.testing.assert_array_equal(first, other.initial(5, "bank"))
    assert not np.array_equal(first, one.initial(5, "shop"))
    assert not np.array_equal(first, one.initial(6, "bank"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == 1


def test_dropout_is_off() -> None:
    """Protects predictions and replays from chance: a row is embedded the same each time."""
    model = TorchModel(
        lambda: torch.nn.Sequential(torch.nn.Linear(4, 50), torch.nn.Dropout(0.5), torch.nn.Linear(50, 2))
    )
    rows = np.ones((1, 4), np.float32)
    parameters = model.initial(0)
    np.testing.assert_array_equal(
        model.forward(parameters, rows).outputs, model.forward(parameters, rows).outputs
    )


def test_modules_that_would_lose_what_they_know_are_refused() -> None:
    """Protects from running means that no restart would bring back, and from a party that cannot learn."""
    with pytest.raises(ConfigurationError, match="running_mean"):
        TorchModel(lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)))
    with pytest.raises(ConfigurationError, match="nothing to learn"):
        TorchModel(torch.nn.Identity)


def test_a_record_without_a_finite_gradient_counts_for_nothing() -> None:
    """Protects the privacy of a record whose gradient overflows, and the step of the others."""
    model = TorchModel(lambda: torch.nn.Linear(2, 1, bias=False))
    parameters, inputs = np.ones(2, np.float32), np.array([[1.0, 2.0], [3e38, 3e38]], np.float32)
    done = model.forward(parameters, inputs)
    gradient = model.backward_each(parameters, done, np.full((2, 1), 10, np.float32), 100.0)
    np.testing.assert_allclose(gradient, [10.0, 20.0])


def test_the_pages_module_is_a_model() -> None:
    """Protects whoever follows the page on vertical federations."""
    page = Path(__file__).parents[3] / "docs" / "vertical.md"
    _, source = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    made = ModuleType("clinic_models")
    exec(source, made.__dict__)
    model = made.__dict__["embedding"](3, 2, "float32")
    assert model.forward(model.initial(0, "a"), np.ones((5, 3), np.float32)).outputs.shape == (5, 2)
