"""One cell of the table: one federation on one table in one way, and what ``simulate`` says of the same
rows."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.broker import running_broker
from benchmarks.commands import Floats
from benchmarks.end_to_end import span
from benchmarks.history.deployment import LOOK_SECONDS, Deployment
from benchmarks.history.tables import CLIENT, LABEL, write_table

WAYS = ("history", "paced")
# Records a second of each client that come live.
CLIENTS_RATE = 5.0
# After so many seconds the predictions that there are count, and no more are waited for.
PATIENCE = 180.0


@dataclass(frozen=True)
class Cell:
    """What is run.

    data: a table's name.
    way: ``history``: all records lie in the topic before the workers start; ``paced``: so many records a
    second (rate) come to workers that serve.
    server: whether it runs.
    settings: as ``init --set`` takes them.
    seed: of the table's rows and of the federation.
    """

    data: str
    clients: int
    samples: int
    way: str = "history"
    rate: float = 200.0
    server: bool = True
    settings: tuple[str, ...] = ()
    seed: int = 0


@dataclass
class Promised:
    """What ``simulate`` says: mean squared errors of the federation and of each client alone, all of them and
    the second half's."""

    mse: float
    mse_half: float
    alone: float
    alone_half: float
    seconds: float


@dataclass
class Measured:
    """What the predictions in the topic say. Errors are in the label's own unit, squared.

    half: of the second half of each client's samples. variance: of the labels. versions: of the model that
    predictions were made with; unlearnt: the share made with version 0. rate: samples a second from the first
    prediction to the last. seconds: from the start of the workers of clients to the last prediction.
    processor: seconds that those workers took.
    missing: samples without a prediction.
    """

    mse: float
    mse_half: float
    variance: float
    versions: int
    unlearnt: float
    rate: float
    seconds: float
    processor: float
    missing: int


@dataclass
class Comparison:
    """Runs of some seeds, and what ``simulate`` says of the same rows; every figure is a mean over the
    seeds."""

    runs: list[Measured]
    simulations: list[Promised]

    def mean(self, name: str) -> float:
        """Of a figure of the deployments."""
        return float(np.mean([getattr(one, name) for one in self.runs]))

    def promised(self, name: str) -> float:
        """Of a figure of ``simulate``."""
        return float(np.mean([getattr(one, name) for one in self.simulations]))

    @property
    def error(self) -> float:
        """The deployments' mean squared error against what ``simulate`` says."""
        return self.mean("mse") / self.promised("mse")

    @property
    def error_alone(self) -> float:
        """The same against what ``simulate`` says of clients alone."""
        return self.mean("mse") / self.promised("alone")

    @property
    def share_of_allowed(self) -> float:
        """How far the second half's error is from the promise, against 5 % of it or 1 % of the labels'
        variance."""
        told = self.promised("mse_half")
        return abs(self.mean("mse_half") - told) / max(0.05 * told, 0.01 * self.mean("variance"))


def measure_cell(cell: Cell, bus: str) -> Measured:
    """Run the deployment on a bus of its own, for all deployments have the same topics, and print a line of
    it on stderr."""
    with bus_at(bus) as url, deployed(cell, url) as (deployment, labels):
        began, processor = _run(deployment, cell)
        found = _measured(deployment, labels, began, processor)
    server = "with the server" if cell.server else "no server"
    _tell(f"{cell.data} {bus} {cell.way}, {server}, seed {cell.seed}", found)
    return found


@contextmanager
def bus_at(name: str) -> Iterator[str | None]:
    """The address of a bus of this name: a broker of its own, or None for SQLite, which lies in a folder of
    the run's own."""
    if name == "sqlite":
        yield None
    else:
        with running_broker() as broker:
            yield f"{name}://{broker.address}"


@contextmanager
def deployed(cell: Cell, url: str | None = None) -> Iterator[tuple[Deployment, Floats]]:
    """A federation with the cell's table, and its labels."""
    with tempfile.TemporaryDirectory(prefix="streamfl-history-") as name:
        folder = Path(name)
        table = folder / "readings.csv"
        labels = write_table(cell.data, cell.clients, cell.samples, cell.seed, table)
        where = url or f"sqlite://{folder / 'plant.db'}"
        with closing(Deployment(folder, table, where, cell.settings, cell.seed)) as deployment:
            yield deployment, labels


def _tell(what: str, one: Measured) -> None:
    """A line on stderr, for a run of several cells takes minutes."""
    told = (
        f"mse {one.mse:.4g}, second half {one.mse_half:.3g}, versions {one.versions}, by version 0 "
        f"{one.unlearnt:.1%}"
    )
    print(
        f"{what}: {told}, {one.rate:,.0f} samples/s, {one.seconds:.1f} s, missing {one.missing}",
        file=sys.stderr,
        flush=True,
    )


def _run(deployment: Deployment, cell: Cell) -> tuple[float, float]:
    """When the workers of clients were started, and the processor time that they took."""
    if cell.way == "history":
        deployment.write()
    began = time.time()
    if cell.server:
        deployment.start("server")
    deployment.start("client")
    writer = None
    if cell.way == "paced":
        deployment.wait_until_serving()
        began = time.time()
        writer = deployment.writing(cell.rate)
    total = cell.clients * cell.samples
    deadline = began + PATIENCE + (total / cell.rate if writer else 0.0)
    while deployment.look() < total and time.time() < deadline:
        time.sleep(LOOK_SECONDS)
    if writer is not None:
        writer.terminate()
        writer.wait()
    return began, deployment.stop("client")


def _measured(deployment: Deployment, labels: Floats, began: float, processor: float) -> Measured:
    samples, clients = labels.shape
    predictions = np.full((samples, clients), np.nan)
    versions = np.zeros((samples, clients), dtype=int)
    times = []
    next_of: defaultdict[str, int] = defaultdict(int)
    # A client's records lie in one partition, so its predictions are in the order of its samples.
    for one in deployment.predictions:
        column, row = int(one.client.removeprefix(f"{CLIENT}-")), next_of[one.client]
        next_of[one.client] += 1
        if one.label is None or abs(one.label - labels[row, column]) > 1e-9 * max(1.0, abs(one.label)):
            raise RuntimeError(
                f"prediction {row} of {one.client} is told with label {one.label}, which is "
                f"{labels[row, column]}"
            )
        predictions[row, column] = np.inf if one.prediction is None else one.prediction
        versions[row, column] = one.model_version
        times.append(one.at)
    made = ~np.isnan(predictions)
    errors = np.square(predictions - labels)
    return Measured(
        mse=float(np.nanmean(errors)),
        mse_half=float(np.nanmean(errors[samples // 2 :])),
        variance=float(labels.var()),
        versions=len(np.unique(versions[made])),
        unlearnt=float((versions[made] == 0).mean()),
        rate=(len(times) - 1) / span(times or [np.nan]),
        seconds=max(times, default=np.nan) - began,
        processor=processor,
        missing=int((~made).sum()),
    )


def simulated(cell: Cell) -> Promised:
    """What ``streamfl simulate`` says with the same file, on the same rows."""
    with deployed(cell) as (deployment, _):
        began = time.monotonic()
        told = deployment.command(
            "simulate", "client.toml", "--data", "readings.csv", "--label", LABEL, "--client-column", CLIENT,
            "--trace", "trace", "--format", "json",
        )  # fmt: skip
        figures: dict[str, Any] = json.loads(told)
        with np.load(deployment.folder / "trace" / "trace.npz") as trace:
            unit = float(trace["label_unit"]) ** 2
            errors, local = np.square(trace["published"] - trace["labels"]), trace["local_squared_errors"]
        half = len(errors) // 2
        return Promised(
            mse=figures["rmse"] ** 2,
            mse_half=unit * float(errors[half:].mean()),
            alone=unit * float(local.mean()),
            alone_half=unit * float(local[half:].mean()),
            seconds=time.monotonic() - began,
        )
