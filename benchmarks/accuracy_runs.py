"""The runs of the accuracy figures: what is run on which streams, and what is kept of it.

A run is kept with a hash of the code that it depends on, so that a rerun computes only what is missing or has
changed."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from benchmarks.commands import Floats
from streamfl.contract.role import DataError
from streamfl.learning.challengers import challenger_names
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.tools.comparison import Problem, compare
from streamfl.pofmkl.tools.direct import federated

ROOT = Path(__file__).parents[1]
CURVE_POINTS = 24
Sections = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Method:
    """Something to be judged.

    runs: a method of ``streamfl compare``; or "direct", the default federation called without a bus, which
    predicts the same in half the time and counts no bytes.
    settings: its sections.
    sources: the files that decide what it predicts, as patterns below the repository.
    draws: it depends on the seed, even where the streams do not.
    """

    runs: str
    sources: tuple[str, ...]
    settings: Sections = field(default_factory=dict)
    draws: bool = True


@dataclass(frozen=True)
class Run:
    """One method on one deal of one set to so many clients, labels ``delay`` samples late."""

    method: str
    data: str
    clients: int
    samples: int
    seed: int = 0
    delay: int = 0

    @property
    def key(self) -> str:
        """What the run is kept under."""
        return f"{self.method}|{self.data}|{self.clients}x{self.samples}|seed {self.seed}|delay {self.delay}"


@dataclass(frozen=True)
class Stream:
    """Inputs (T, K, d) and labels (T, K), both on the learning scale."""

    inputs: Floats
    labels: Floats


class Results:
    """What was found, by a name, in a file that has a line for each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found: dict[str, dict[str, Any]] = (
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        )

    def keep(self, key: str, found: dict[str, Any]) -> None:
        """The file is replaced whole, so that ending the program never leaves half of one."""
        self.found[key] = found
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(one)}" for key, one in sorted(self.found.items()))
        beside = self._path.with_suffix(".tmp")
        beside.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        os.replace(beside, self._path)


class Cache(Results):
    """Results by run."""

    def get(self, run: Run) -> dict[str, Any] | None:
        """What is kept of the run, whatever the code was."""
        return self.found.get(run.key)

    def is_current(self, run: Run, source: str) -> bool:
        """Whether it is there, and of this code."""
        return self.found.get(run.key, {}).get("source") == source

    def put(self, run: Run, result: dict[str, Any]) -> None:
        self.keep(run.key, result)


def load_streams(folder: Path) -> ModuleType:
    """The module ``streams.py`` beside the data sets, which deals their rows to clients; FileNotFoundError
    without it."""
    path = folder / "streams.py"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    spec = importlib.util.spec_from_file_location("streams", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def source_hash(method: Method, root: Path = ROOT) -> str:
    """Of the method's settings, with what is left out of them, and of its source files' code; comments and
    layout do not count."""
    resolved = _settings(method, clients=1, seed=0, dimension=1)
    sections = resolved.model_dump(include={"learning", "kernels", "experts", "drift", "uplink"})
    dictionary = resolved.views, resolved.bandwidths, resolved.kernels_per_upload
    said = [method.runs] if method.runs in challenger_names() else [method.runs, sections, dictionary]
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
    for pattern in method.sources:
        found = sorted(root.glob(pattern))
        if not found:
            raise FileNotFoundError(f"{pattern}: there is no such file below {root}")
        for path in found:
            digest.update(_code(path.read_text(encoding="utf-8")))
    if method.runs in challenger_names():
        digest.update(version("river").encode())
    return digest.hexdigest()[:16]


@lru_cache
def _code(text: str) -> bytes:
    return ast.unparse(ast.parse(text)).encode()


def _settings(
    method: Method, clients: int, seed: int, dimension: int, horizon: int | None = None
) -> PofmklSettings:
    """The method's settings; horizon: T, which the paper's step size is of."""
    sections: dict[str, Any] = {name: dict(section) for name, section in method.settings.items()}
    # The figures are of rounds, whatever a deployment runs if nothing is said.
    sections["learning"] = {"staleness": "lockstep", **sections.get("learning", {})}
    if horizon is not None and sections.get("learning", {}).get("preset") == "paper":
        sections["learning"]["horizon"] = horizon
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "accuracy", "clients": clients, "seed": seed},
            "role": {"kind": "pofmkl-client"},
            "samples": {"topic": "samples", "features": "inputs", "dimension": dimension, "label": "label"},
            **sections,
        }
    )


def compute(method: Method, run: Run, stream: Stream) -> dict[str, Any]:
    """Mean squared error x 1000, bytes a sample, and the error so far at some points; null: diverged, or not
    counted."""
    settings = _settings(method, run.clients, run.seed, stream.inputs.shape[2], len(stream.labels))
    problem = Problem(settings, stream.inputs, stream.labels, delay=run.delay)
    sent: float | None = None
    try:
        if method.runs == "direct":
            predictions = federated(
                problem.settings, stream.inputs, stream.labels, problem.client_names(), run.delay
            )
            errors = np.square(predictions - stream.labels)
        else:
            (found,) = compare(problem, [method.runs])
            errors, sent = found.squared_errors, found.summary()["uplink_bytes_per_sample"]
    except DataError:
        return {"mse": None, "bytes": None}
    by_time = 1e3 * errors.mean(axis=1)
    so_far = np.cumsum(by_time) / np.arange(1, len(by_time) + 1)
    if not math.isfinite(so_far[-1]):
        return {"mse": None, "bytes": sent}
    result: dict[str, Any] = {"mse": rounded(so_far[-1]), "bytes": None if sent is None else round(sent, 1)}
    if not run.delay:
        result["curve"] = [rounded(so_far[point - 1]) for point in curve_points(len(by_time))]
    return result | {"samples": len(by_time)}


def curve_points(samples: int) -> list[int]:
    """The numbers of samples at which the error so far is kept: evenly on a logarithmic axis, the last
    included."""
    return sorted({round(float(point)) for point in np.geomspace(1, samples, CURVE_POINTS)})


def rounded(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def pending(runs: Sequence[Run], methods: Mapping[str, Method], cache: Cache) -> list[tuple[Run, str]]:
    """The runs that are missing or of older code, in the order given, with the hash of the code as it is
    now."""
    sources = {name: source_hash(methods[name]) for name in {run.method for run in runs}}
    return [(run, sources[run.method]) for run in runs if not cache.is_current(run, sources[run.method])]


def measure(
    runs: Sequence[Run],
    methods: Mapping[str, Method],
    cache: Cache,
    deal: Callable[[str, int, int, int], Stream],
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Compute what is missing or of older code, in the order given; returns how many runs that were.

    deal: the streams of a set by its name, K, T and seed.
    """
    # All hashes first, of the code that was imported: it may change on disk while this runs.
    due = pending(runs, methods, cache)
    for run, source in due:
        started = time.perf_counter()
        result = compute(methods[run.method], run, deal(run.data, run.clients, run.samples, run.seed))
        cache.put(run, {"source": source, **result})
        say(f"{run.key}: {result['mse']} x 1e-3, {time.perf_counter() - started:.1f} s")
    return len(due)
