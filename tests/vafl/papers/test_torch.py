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
from vafl.makers import Steps, make_party

from streamfl.contract.role import ConfigurationError, Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.records.samples import Sample
from streamfl.vafl.functions.networks import Activation, DenseNetwork
from streamfl.vafl.functions.torch_model import TorchModel
from streamfl.vafl.messages import EMBEDDING, Reply

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
def test_the_built_in_network_is_that_of_pytorch(activation: Activation) -> None:
    """Protects the built-in network's equations: outputs and all derivatives are those of PyTorch's layers
    and autograd."""
    network = DenseNetwork(SIZES, activation, dtype=np.float64)
    parameters = GENERATOR.normal(0, 0.7, network.size)
    inputs, cotangents = GENERATOR.normal(size=(7, 4)), GENERATOR.normal(size=(7, 2))
    module = sequential(activation).double()
    torch.nn.utils.vector_to_parameters(torch.tensor(turned(parameters)), module.parameters())
    rows = torch.tensor(inputs, requires_grad=True)
    outputs = module(rows)
    *by_parameters, by_inputs = torch.autograd.grad(
        outputs, [*module.parameters(), rows], torch.tensor(cotangents), retain_graph=True
    )
    done = network.forward(parameters, inputs)
    np.testing.assert_allclose(done.outputs, outputs.detach().numpy(), rtol=0, atol=1e-10)
    gradient = turned(network.backward(parameters, done, cotangents))
    np.testing.assert_allclose(
        gradient, np.concatenate([one.numpy().ravel() for one in by_parameters]), rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(
        network.backward_inputs(parameters, done, cotangents), by_inputs.numpy(), rtol=0, atol=1e-10
    )

    each = []
    for row, cotangent in zip(inputs, cotangents, strict=True):
        parts = torch.autograd.grad(
            module(torch.tensor(row)), list(module.parameters()), torch.tensor(cotangent)
        )
        each.append(np.concatenate([one.numpy().ravel() for one in parts]))
    norm = float(np.median([np.linalg.norm(one) for one in each]))
    clipped = np.sum([one * min(1.0, norm / np.linalg.norm(one)) for one in each], axis=0)
    np.testing.assert_allclose(
        turned(network.backward_each(parameters, done, cotangents, norm)), clipped, rtol=0, atol=1e-10
    )


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


class Same(TorchModel):
    """A module that begins where the built-in network does."""

    def initial(self, seed: int, *path: str | int) -> NDArray[Any]:
        return turned(DenseNetwork(SIZES, "tanh", dtype=self.dtype).initial(seed, *path))


def learnt(function: Any, optimiser: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """All embeddings and the last parameters of a party that is pulled towards targets."""
    role = make_party(
        name="a",
        function=function,
        inputs=4,
        embedding_size=2,
        steps=Steps(optimiser, 0.05, batch_size=8),
        seed=3,
    )
    role.open(0)
    generator, shown = np.random.default_rng(9), []
    for number in range(80):
        features, name = generator.normal(size=4), f"e{number}"
        sample = Sample(name, name, tuple(features), None)
        (sent,) = role.receive(
            [Received("samples", sample, Record("samples", 0, number, name.encode(), b""))], 1.0
        )
        assert isinstance(sent, Send)
        embedding = EMBEDDING.decode(sent.value)
        shown.append(np.frombuffer(embedding.values))
        gradient = encode_array(2 * (shown[-1] - features[:2]))
        reply = Reply(VERSION, 0, name, embedding.epoch, embedding.sequence, gradient)
        assert not role.receive(
            [Received("gradients", reply, Record("gradients", 0, number, name.encode(), b""))], 1.0
        )
    assert next(one.value for one in role.measure() if one.name == "steps") == 10
    return np.array(shown), role.parameters(0)


@pytest.mark.parametrize("optimiser", ["sgd", "adagrad", "adam"])
def test_a_party_learns_with_a_module_as_with_the_built_in_network(optimiser: str) -> None:
    """Protects a party with a user's module: ten steps on, it shows the same and has the same parameters."""
    network = DenseNetwork(SIZES, "tanh", dtype=np.float64)
    shown, parameters = learnt(network, optimiser)
    own_shown, own_parameters = learnt(Same(lambda: sequential("tanh"), "float64"), optimiser)
    assert np.abs(turned(parameters) - turned(network.initial(3, "a"))).max() > 0.05
    np.testing.assert_allclose(own_shown, shown, rtol=0, atol=1e-10)
    np.testing.assert_allclose(own_parameters, turned(parameters), rtol=0, atol=1e-10)


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
