"""What every line of POF-MKL's boards, and of service health, has to show of a plant that was calm for a
while.

From the topics and from what a role remembers, wherever they tell it; else from what the workers themselves
say at /metrics."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from live.lines import Figures, Line, Truth, quantile

from streamfl.contract.role import Record
from streamfl.encoding.wire import record_size
from streamfl.pofmkl.messages import UPDATE

__all__ = ["EMPTY", "CalmPlant", "truths"]

CLIENT, SERVER = "plant.pofmkl-client", "plant.pofmkl-server"
RANGE = 10.0
NOTHING: Mapping[str, float] = {}
EMPTY = {
    # With the logistic loss.
    ("Accuracy of yes and no", "right, {{instance}}"),
    ("Accuracy of yes and no", "area under the curve, {{instance}}"),
    ("Log loss", "{{instance}}"),
    # With labels on a topic of their own.
    ("Labels that wait for samples", "samples, {{instance}}"),
    ("Labels that wait for samples", "labels, {{instance}}"),
    ("Never learnt from", "samples, {{reason}}"),
    ("Never learnt from", "labels, {{reason}}"),
    ("Never learnt from", "labels again"),
    ("Repeated samples, and forgotten clients", "again"),
    # Nobody writes to the model's topic but the server.
    ("Model records refused", "{{group}} {{reason}}"),
}
# Nothing of this happens in a calm plant: it has to be 0, and to be there.
ZERO = (
    ("Workers not serving", "not serving"),
    ("Restarts", "restarts"),
    ("Commits refused", "refused"),
    ("Records waiting", "waiting"),
    ("Not serving, by reason", "{{reason}}"),
    ("Commits a second", "refused, {{group}}"),
    ("Cluster did not answer", "{{group}} {{instance}}"),
    ("Rounds that timed out", "{{group}}"),
    ("Records a second", "again, {{group}}"),
    ("Records a second", "without a message, {{group}}"),
    ("Consumer lag", "{{group}} {{topic}} {{partition}}"),
    ("Clients that wait", "clients"),
    ("Clients by worker", "wait, {{instance}}"),
    ("Samples that wait", "{{instance}}"),
    ("Challengers", "failures of {{model}}"),
    ("Inputs and labels at the edge", "filled in"),
    ("Parameters without a signature", "unsigned"),
    ("Repeated samples, and forgotten clients", "clients forgotten"),
    ("Signs of a stranger, total", "times"),
    ("Ignored updates", "{{reason}}"),
    ("Rounds without all clients", "closed without all"),
    ("Rounds without all clients", "clients forgotten"),
    ("Behind", "partitions, {{instance}}"),
    ("Alone", "{{instance}}"),
    ("Predictions without a model", "latest"),
    ("Signs of a stranger", "two senders for one"),
    ("Signs of a stranger", "model repaired"),
    ("Signs of a stranger", "parameters shortened"),
)


@dataclass(frozen=True)
class Between:
    """Any value between these two."""

    least: float
    most: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and self.least < other < self.most

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class CalmPlant:
    """What a plant did between two times at which nobody was killed.

    before, after: the workers' figures then.
    records: of each topic, those that were written between.
    earlier: those before.
    clients: what each client is remembered by.
    budget: a client's bytes a second.
    """

    before: Figures
    after: Figures
    records: Mapping[str, Sequence[Record]]
    earlier: Mapping[str, Sequence[Record]]
    clients: Sequence[Mapping[str, Any]]
    budget: float

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    def grown(self, name: str, *workers: str, **labels: str) -> float:
        """A second."""
        return (
            self.after.of(name, *workers, **labels) - self.before.of(name, *workers, **labels)
        ) / self.seconds

    def grown_by(self, label: str, name: str) -> dict[str, float]:
        before = self.before.by(label, name)
        return {
            value: (count - before.get(value, 0.0)) / self.seconds
            for value, count in self.after.by(label, name).items()
        }

    def took(self, share: float, histogram: str) -> Between:
        """Of all workers. Where a bucket ends, a step more or less makes much of a difference.

        Prometheus extrapolates each bucket by a factor of its own, so that a slow step before the calm time
        can show among the slowest: those are bounded by the slowest step since the start."""
        name = f"streamfl_{histogram}_seconds_bucket"
        before, after = self.before.by("le", name), self.after.by("le", name)
        most = quantile(1, {}, after) if share > 0.9 else quantile(share + 0.1, before, after)
        return Between(0.9 * quantile(max(share - 0.1, 0), before, after), 1.1 * most)


def truths(plant: CalmPlant) -> dict[Line, Truth]:
    """By line."""
    return (
        dict.fromkeys(ZERO, NOTHING) | _service(plant) | _samples(plant) | _compared(plant) | _updates(plant)
    )


def _service(plant: CalmPlant) -> dict[Line, Truth]:
    workers = {"server": SERVER, "client-1": CLIENT, "client-2": CLIENT}
    commits = {worker: plant.grown("streamfl_commits_total", worker) for worker in workers}

    def each(of: Callable[[str], Any]) -> dict[str, Any]:
        return {f"{group} {worker}": of(worker) for worker, group in workers.items()}

    def size(*topics: str) -> float:
        return (
            sum(len(one.key or b"") + len(one.value or b"") for name in topics for one in plant.records[name])
            / plant.seconds
        )

    dead = len(plant.records["plant.dead-letters"])
    taken = {
        group: len(plant.records[topic]) / plant.seconds
        for group, topic in ((CLIENT, "readings"), (SERVER, "plant.updates"))
    }
    restored = {
        group: max(
            plant.after.of("streamfl_restore_seconds_sum", worker)
            for worker in workers
            if workers[worker] == group
        )
        for group in (CLIENT, SERVER)
    }
    return {
        ("Workers up", "up"): 3,
        ("Workers up", "of"): 3,
        ("Records refused", "refused"): dead,
        ("Restarts by worker", "{{group}} {{instance}}"): each(lambda _: 1),
        ("Seconds since the start", "{{group}} {{instance}}"): each(
            lambda worker: pytest.approx(
                plant.after.at - plant.after.of("streamfl_start_time_seconds", worker), abs=2
            )
        ),
        **{
            ("Seconds of a step", f"{legend}, {name}"): plant.took(share, histogram)
            for legend, histogram in (("step", "step"), ("commit", "commit"), ("computation", "batch"))
            for name, share in (("half", 0.5), ("99 of 100", 0.99))
        },
        ("Commits a second", "committed, {{group}}"): {
            group: sum(commits[worker] for worker in workers if workers[worker] == group)
            for group in (CLIENT, SERVER)
        },
        ("Seconds to restore state", "{{group}}"): {
            group: Between(0, 1.1 * most) for group, most in restored.items()
        },
        ("Memory", "{{group}} {{instance}}"): each(
            lambda worker: plant.after.of("process_resident_memory_bytes", worker)
        ),
        ("Processors", "{{group}} {{instance}}"): each(
            lambda worker: plant.grown("process_cpu_seconds_total", worker)
        ),
        ("Bytes written a second", "published, {{group}}"): {
            CLIENT: size("plant.predictions", "plant.updates", "plant.dead-letters")
        },
        ("Bytes written a second", "remembered, {{group}}"): plant.grown_by(
            "group", "streamfl_changelog_bytes_total"
        ),
        ("Records a second", "taken, {{group}}"): taken,
        ("Dead letters", "{{group}} {{reason}}"): {f"{CLIENT} not_numeric": dead / plant.seconds},
        ("Workers", "up, {{instance}}"): dict.fromkeys(workers, 1),
        ("Workers", "commits a second, {{group}} {{instance}}"): each(commits.__getitem__),
    }


def _owners(plant: CalmPlant) -> dict[int, str]:
    """By partition of the readings, the worker that has it."""
    return {
        int(one.labels["partition"]): worker
        for worker in ("client-1", "client-2")
        for one in plant.after.samples(worker)
        if one.name == "streamfl_consumer_lag_records" and one.labels["topic"] == "readings"
    }


def _readings(records: Iterable[Record]) -> list[tuple[int, Any]]:
    """Those that are samples, with their partitions."""
    told = [(one.partition, json.loads(one.value)) for one in records if one.value is not None]
    return [(partition, row) for partition, row in told if row["t1"] != "hot"]


def squared_errors(readings: Iterable[Record], predictions: Iterable[Record]) -> list[tuple[int, float]]:
    """By labelled sample its partition and the squared error of its prediction, in the label's own unit."""
    told = {row["sample"]: row["prediction"] for one in predictions for row in [json.loads(one.value or b"")]}
    rows = [(partition, row) for partition, row in _readings(readings) if "lever" in row]
    return [(partition, (told[row["id"]] - row["lever"]) ** 2) for partition, row in rows]


def _samples(plant: CalmPlant) -> dict[Line, Truth]:
    owners, now = _owners(plant), plant.records
    rows = _readings(now["readings"])
    errors = squared_errors(now["readings"], now["plant.predictions"])
    life = errors + squared_errors(plant.earlier["readings"], plant.earlier["plant.predictions"])
    labels = len(errors) / plant.seconds
    by_worker = Counter(owners[partition] for partition, _ in rows)
    error_of = {
        worker: _root([error for partition, error in errors if owners[partition] == worker])
        for worker in {*owners.values()}
    }
    homes = {str(one["client"]): owners[one["partition"]] for one in plant.clients}
    own = {
        worker: [one for one in plant.clients if owners[one["partition"]] == worker]
        for worker in {*homes.values()}
    }
    versions = [
        json.loads(one.value or b"")["model_version"]
        for half in (plant.earlier, now)
        for one in half["plant.predictions"]
    ]
    regret = _exact(
        sum(one["scaled_regret"] for one in plant.clients) / sum(one["labels"] for one in plant.clients)
    )
    return {
        ("Samples a second now", "samples"): len(rows) / plant.seconds,
        ("Samples a second", "samples"): len(rows) / plant.seconds,
        ("Samples a second", "predictions"): len(now["plant.predictions"]) / plant.seconds,
        ("Samples a second", "labels"): labels,
        ("Samples by worker", "{{instance}}"): {
            worker: count / plant.seconds for worker, count in by_worker.items()
        },
        ("Repeated samples, and forgotten clients", "without a label"): (len(rows) - len(errors))
        / plant.seconds,
        ("Inputs and labels at the edge", "labels outside"): sum(
            not 0 <= row.get("lever", 0) <= RANGE for _, row in rows
        )
        / plant.seconds,
        ("RMSE now, in the label's unit", "federation"): _root([error for _, error in errors]),
        ("RMSE, in the label's unit", "now"): _root([error for _, error in errors]),
        ("RMSE, in the label's unit", "whole life"): _exact(_root([error for _, error in life])),
        ("RMSE against challengers, in the label's unit", "federation"): _root(
            [error for _, error in errors]
        ),
        ("RMSE by worker, in the label's unit", "{{instance}}"): error_of,
        ("Regret now, scaled", "regret"): regret,
        ("Regret per sample, labels scaled to 0..1", "all workers"): regret,
        ("Regret per sample, labels scaled to 0..1", "{{instance}}"): {
            worker: _exact(sum(one["scaled_regret"] for one in some) / sum(one["labels"] for one in some))
            for worker, some in own.items()
        },
        ("Predictions without a model", "ever"): _exact(versions.count(0) / len(versions)),
        ("Clients", "clients"): len(plant.clients),
        ("Clients by worker", "clients, {{instance}}"): Counter(homes.values()),
        ("Known clients", "known"): len(plant.clients),
    }


def _compared(plant: CalmPlant) -> dict[Line, Truth]:
    """Of what begins anew with a worker, and is in no topic."""
    sums, counts = (
        plant.grown_by("model", f"streamfl_challenger_{name}_total")
        for name in ("squared_error_sum", "labels")
    )
    challengers = {model: math.sqrt(sums[model] / counts[model]) for model in sums}
    assert challengers["running-mean"] != pytest.approx(challengers["last-label"], rel=0.1), (
        "they can be told apart"
    )
    workers = ("client-1", "client-2")
    return {
        ("RMSE now, in the label's unit", "running mean"): challengers["running-mean"],
        ("RMSE now, in the label's unit", "best challenger"): min(challengers.values()),
        ("RMSE against challengers, in the label's unit", "{{model}}"): challengers,
        ("Challengers", "{{model}}"): challengers,
        ("Best kernel", "{{instance}}"): {
            worker: plant.after.of("streamfl_best_kernel", worker) for worker in workers
        },
        ("Behind", "labels, {{instance}}"): {
            worker: plant.grown("streamfl_catch_up_labels_total", worker) for worker in workers
        },
        ("Drifts", "drifts"): plant.grown("streamfl_drifts_total"),
        ("Inputs and labels at the edge", "predictions limited"): plant.grown(
            "streamfl_bounded_predictions_total"
        ),
        ("Known clients", "with an update in this round"): plant.after.of("streamfl_round_waiting"),
        ("Updates not sent", "{{reason}}"): plant.grown_by("reason", "streamfl_skipped_updates_total"),
    }


def _updates(plant: CalmPlant) -> dict[Line, Truth]:
    owners, records = _owners(plant), plant.records["plant.updates"]
    home = {str(one["client"]): owners[one["partition"]] for one in plant.clients}
    updates = [UPDATE.decode(one.value) for one in records]
    count = Counter(home[one.client] for one in updates)
    sent: Counter[str] = Counter()
    for update, record in zip(updates, records, strict=True):
        sent[home[update.client]] += record_size(record)
    # Counted when a worker next looks at it, so that what was allowed before the calm is in it.
    budget = {
        worker: plant.grown("streamfl_update_budget_bytes_total", worker) for worker in {*home.values()}
    }
    assert all(
        budget[worker] > 0.4 * plant.budget * number for worker, number in Counter(home.values()).items()
    )
    # Nobody waits for anybody: each update makes a version.
    version = len(plant.earlier["plant.updates"]) + len(updates)
    a_second = len(updates) / plant.seconds
    # Before it went in itself.
    late = version - 1 - updates[-1].model_version
    return {
        ("Upload budget used", "used"): sum(sent.values()) / plant.seconds / sum(budget.values()),
        ("Upload against budget", "sent"): sum(sent.values()) / plant.seconds,
        ("Upload against budget", "budget"): sum(budget.values()),
        ("Updates by worker", "{{instance}}"): {
            worker: number / plant.seconds for worker, number in count.items()
        },
        ("Bytes of updates by worker", "sent, {{instance}}"): {
            worker: size / plant.seconds for worker, size in sent.items()
        },
        ("Bytes of updates by worker", "budget, {{instance}}"): budget,
        ("Model version", "version"): _exact(version),
        ("Model version", "{{instance}}"): {
            worker: _exact(version) for worker in ("server", "client-1", "client-2")
        },
        ("Staleness", "{{instance}}"): {"server": late},
        ("Staleness of updates", "{{instance}}"): {"server": late},
        ("Updates a second now", "updates"): a_second,
        ("Updates into the model", "{{instance}}"): {"server": a_second},
    }


def _root(squares: Sequence[float]) -> float:
    """Of the mean of the squares."""
    return math.sqrt(math.fsum(squares) / len(squares))


def _exact(value: float) -> Any:
    """Of what is no rate."""
    return pytest.approx(value, rel=1e-6)
