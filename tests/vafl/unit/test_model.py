"""A party's own model, by its name in the configuration."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from streamfl.contract.role import ConfigurationError
from streamfl.vafl.config import VaflSettings
from streamfl.vafl.functions.models import embedding_function, head
from streamfl.vafl.functions.networks import DenseNetwork

PAGE = Path(__file__).parents[3] / "docs" / "vertical.md"


@pytest.fixture(autouse=True)
def module() -> Iterator[ModuleType]:
    """The page's example, as a module that can be imported."""
    source, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    made = ModuleType("clinic_models")
    exec(source, made.__dict__)
    sys.modules["clinic_models"] = made
    yield made
    del sys.modules["clinic_models"]


def settings(model: str, privacy: dict[str, Any] | None = None, **embedding: Any) -> VaflSettings:
    return VaflSettings(
        federation={"name": "f", "parties": ["a"], "embedding_size": 2, "precision": "float64"},  # type: ignore[arg-type]
        role={"kind": "simulation"},  # type: ignore[arg-type]
        embedding={"model": model, **embedding},  # type: ignore[arg-type]
        privacy=privacy or {},  # type: ignore[arg-type]
    )


def test_the_pages_example_is_the_built_in_linear_map() -> None:
    """Protects whoever follows the page: it loads, and does what the built-in network without a constant
    does."""
    own = embedding_function(settings("clinic_models:embedding"), 3)
    built_in = DenseNetwork([3, 2], bias=False, dtype=np.float64)
    generator = np.random.default_rng(1)
    inputs = generator.normal(size=(5, 3))
    cotangents = generator.normal(size=(5, 2))
    parameters = generator.normal(size=6)
    one, other = (function.forward(parameters, inputs) for function in (own, built_in))
    np.testing.assert_allclose(one.outputs, other.outputs)
    np.testing.assert_allclose(
        own.backward(parameters, one, cotangents), built_in.backward(parameters, other, cotangents)
    )
    clipped = [
        function.backward_each(parameters, done, cotangents, 0.5)
        for function, done in ((own, one), (built_in, other))
    ]
    np.testing.assert_allclose(*clipped)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("no_such_module:embedding", "ModuleNotFoundError"),
        ("clinic_models:nothing", "AttributeError"),
        ("clinic_models:Pass", "TypeError"),
        ("clinic_models:wide", "shape"),
        ("clinic_models:single", "float32"),
        ("clinic_models:Backless", r"backward gives a gradient of the shape \(3,\), \(6,\) is expected"),
        ("clinic_models:Raising", "ValueError: boom"),
        ("clinic_models:Unitless", "noise_units"),
        ("clinic_models:Listing", "AttributeError"),
    ],
)
def test_a_model_that_does_not_fit_is_told_of_at_the_start(model: str, text: str, module: ModuleType) -> None:
    """Protects operators from a party that fails at its first sample: what is wrong with the model is said
    before."""
    module.__dict__["wide"] = lambda inputs, outputs, precision: module.Linear(inputs, outputs + 1, precision)
    module.__dict__["single"] = lambda inputs, outputs, precision: module.Linear(inputs, outputs, "float32")

    class Backless(module.Linear):  # type: ignore[name-defined]
        def backward(self, *arguments: Any) -> Any:
            return np.zeros(3)

    class Raising(module.Linear):  # type: ignore[name-defined]
        def backward(self, *arguments: Any) -> Any:
            raise ValueError("boom")

    class Unitless(module.Linear):  # type: ignore[name-defined]
        @property
        def noise_units(self) -> int:
            raise AttributeError("noise_units")

    class Listing(module.Linear):  # type: ignore[name-defined]
        def initial(self, *arguments: Any) -> Any:
            return [0.0] * self.size

    module.__dict__.update({made.__name__: made for made in (Backless, Raising, Unitless, Listing)})
    with pytest.raises(ConfigurationError, match=rf"embedding.model = '{model}'.*{text}"):
        embedding_function(settings(model), 3)


@pytest.mark.parametrize(
    ("result", "text"), [(None, "backward_each"), (np.zeros(2), r"backward_each .* \(2,\)")]
)
def test_private_steps_need_the_sum_of_shortened_gradients(
    result: Any, text: str, module: ModuleType
) -> None:
    """Protects a party with noise on its steps from a traceback at the first: what that alone needs is tried
    at the start, and asked of nobody else.
    """

    class Whole(module.Linear):  # type: ignore[name-defined]
        @property
        def backward_each(self) -> Any:
            if result is None:
                raise AttributeError("backward_each")
            return lambda *arguments: result

    module.__dict__["Whole"] = Whole
    privacy = {"embedding_norm": 1.0, "embedding_noise": 4.0, "secret_file": "secret"}
    noisy = {"gradient_norm": 1.0, "gradient_noise": 4.0}
    embedding_function(settings("clinic_models:Whole", privacy=privacy), 3)
    with pytest.raises(ConfigurationError, match=rf"embedding.model = 'clinic_models:Whole'.*{text}"):
        embedding_function(settings("clinic_models:Whole", privacy={**privacy, **noisy}), 3)


def test_a_network_that_no_memory_holds_is_refused_by_its_keys() -> None:
    """Protects whoever mistypes a size from running out of memory: party and coordinator say which keys make
    too many numbers."""
    shape = {"embedding_size": 65_536, "parties": ["a", "b"], "name": "f"}
    made = VaflSettings(
        federation=shape,  # type: ignore[arg-type]
        role={"kind": "simulation"},  # type: ignore[arg-type]
        embedding={"hidden": [65_536]},  # type: ignore[arg-type]
        head={"kind": "network", "hidden": [65_536]},  # type: ignore[arg-type]
    )
    with pytest.raises(
        ConfigurationError, match=r"embedding.hidden and federation.embedding_size: they make 4,295,"
    ):
        embedding_function(made, 3)
    with pytest.raises(ConfigurationError, match=r"head.hidden.*: they make 8,590,"):
        head(made)


def test_layers_and_a_model_of_ones_own_exclude_one_another() -> None:
    """Protects from settings without effect."""
    with pytest.raises(ValueError, match="hidden has no meaning"):
        settings("clinic_models:embedding", hidden=[3])


@pytest.mark.parametrize(
    "source",
    [
        "import torch",
        "from streamfl.vafl.functions.torch_model import TorchModel\nembedding = lambda *sizes: "
        "TorchModel(None)",
    ],
)
def test_without_pytorch_it_is_said_what_to_install(
    source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Protects operators from a bare import error, whether their own module asks for PyTorch first or
    streamfl does."""
    (tmp_path / "torch_models.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "torch_models", raising=False)
    with pytest.raises(ConfigurationError, match=r"torch_models:embedding'.*pip install 'streamfl\[torch\]'"):
        embedding_function(settings("torch_models:embedding"), 3)
