"""One cell of the table: one federation on one table in one way, and what ``simulate`` says of the same
rows."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.commands import Floats
from benchmarks.end_to_end import span
from benchmarks.history.bus import bus_at
from benchmarks.history.deployment import LOOK_SECONDS, Deployment
from benchmarks.history.tables import CLIENT, LABEL, write_table

WAYS = ("history", "paced")
# Records a second of each client that come live.
CLIENTS_RATE = 5.0
SERVERS = ("always", "never", "half")


@dataclass(frozen=True)
class Cell:
    """What is run.

    data: a table's name.
    way: ``history``: all records lie in the topic before the workers start; ``paced``: so many records a
    second (rate) come to workers that serve.
    server: it runs always, never, or until half of the predictions are out.
    settings: as ``init --set`` takes them.
    seed: of the table's rows and of the federation.
    workers: processes of clients.
    patience: after so many seconds the predictions that there are count, and no more are waited for.
    """

    data: str
    clients: int
    samples: int
    way: str = "history"
    rate: float = 200.0
    server: str = "always"
    settings: tuple[str, ...] = ()
    seed: int = 0
    workers: int = 1
    partitions: int = 4
    patience: float = 180.0


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
    by_tenth: the error of each tenth.
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
    by_tenth: list[float] = field(default_factory=list)


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
        """Of a figure of ``simulate``; NaN where it was left out."""
        return (
            float(np.mean([getattr(one, name) for one in self.simulations]))
            if self.simulations
            else float("nan")
        )

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


def measure_cell(cell: Cell, bus: str, program: Path) -> Measured:
    """Run the deployment on a bus of its own, for all deployments have the same topics, and print a line of
    it on stderr."""
    with bus_at(bus) as url, tempfile.TemporaryDirectory(prefix="streamfl-history-") as name:
        folder = Path(name)
        table = folder / "readings.csv"
        labels = write_table(cell.data, cell.clients, cell.samples, cell.seed, table)
        where = url or f"sqlite://{folder / 'plant.db'}"
        deployment = Deployment(folder, table, where, program, cell.settings, cell.partitions, cell.seed)
        try:
            began, processor = _run(deployment, cell)
            found = _measured(deployment, labels, began, processor)
        finally:
            deployment.close()
    _tell(f"{cell.data} {bus} {cell.way}, server {cell.server}, seed {cell.seed}", found)
    return found


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
    if cell.server != "never":
        deployment.start("server")
    for _ in range(cell.workers):
        deployment.start("client")
    writer = None
    if cell.way == "paced":
        deployment.wait_until_serving()
        began = time.time()
        writer = deployment.writing(cell.rate)
    total = cell.clients * cell.samples
    stop_at = total // 2 if cell.server == "half" else total + 1
    deadline = began + cell.patience + (total / cell.rate if writer else 0.0)
    while (done := deployment.look()) < total and time.time() < deadline:
        if done >= stop_at:
            deployment.stop("server")
            stop_at = total + 1
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
        by_tenth=[float(np.nanmean(part)) for part in np.array_split(errors, min(10, samples))],
    )


def simulated(cell: Cell, program: Path) -> Promised:
    """What ``streamfl simulate`` says with the same file, on the same rows."""
    with tempfile.TemporaryDirectory(prefix="streamfl-history-") as name:
        folder = Path(name)
        table = folder / "readings.csv"
        write_table(cell.data, cell.clients, cell.samples, cell.seed, table)
        deployment = Deployment(
            folder,
            table,
            f"sqlite://{folder / 'plant.db'}",
            program,
            cell.settings,
            cell.partitions,
            cell.seed,
        )
        began = time.monotonic()
        told = deployment.command(
            "simulate", "client.toml", "--data", str(table), "--label", LABEL, "--client-column", CLIENT,
            "--trace", "trace", "--format", "json",
        )  # fmt: skip
        figures: dict[str, Any] = json.loads(told)
        deployment.close()
        with np.load(folder / "trace" / "trace.npz") as trace:
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
