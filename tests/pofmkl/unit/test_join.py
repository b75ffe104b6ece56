"""Samples and their labels on two topics: in whatever order they come, whatever happens in between, each pair
is learnt once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pofmkl.makers import MemoryFederation

from streamfl.contract.role import BadRecord
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.messages import UPDATE, Update
from streamfl.pofmkl.roles import feature_map
from streamfl.pofmkl.roles import learner as learner_of
from streamfl.pofmkl.tools import direct
from streamfl.records.join import JoinKey, LabelJoin
from streamfl.runtime.bus import Outgoing
from streamfl.runtime.worker import Worker

EXPIRY = 100.0


def content(**sections: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {
        "federation": {"name": "f", "clients": 8, "seed": 5, "features": 2},
        "bus": {"commit_interval_ms": 1},
        "samples": {"topic": "samples", "features": "inputs", "dimension": 2, "sample_id": "id"},
        "labels": {"topic": "labels", "sample_id": "id", "label": "y", "expiry_seconds": EXPIRY},
        "learning": {"features_per_kernel": 4, "staleness": "async", "precision": "float64"},
        "uplink": {"kernels_per_upload": 1},
    }
    return found | {name: found.get(name, {}) | section for name, section in sections.items()}


class Federation(MemoryFederation):
    """What is written is worked off at once."""

    def __init__(self, **sections: dict[str, Any]) -> None:
        super().__init__(content(**sections))

    def kill(self, worker: Worker) -> None:
        """The worker is gone without a word: the cluster gives its partitions to others, and nothing of its
        memory is left."""
        self.workers.remove(worker)
        assert worker._session is not None
        self.bus.expel(worker._session)  # type: ignore[arg-type]

    def sample(self, name: str, client: str = "a", inputs: Sequence[float] = (0.5, -0.5)) -> None:
        self.write("samples", [(client, {"id": name, "inputs": [*inputs]})])
        self.settle()

    def label(self, name: str, label: float = 0.5, client: str = "a") -> None:
        self.write("labels", [(client, {"id": name, "y": label})])
        self.settle()

    def predicted(self) -> list[tuple[str, str]]:
        return sorted((one["client"], one["sample"]) for one in self.predictions())

    def updates(self) -> list[Update]:
        """One a label that was learnt."""
        return [UPDATE.decode(record.value) for record in self.bus.read("f.updates")]

    def figures(self, *only: Worker) -> dict[str, float]:
        """The join's figures that are not zero, and the labels that were learnt, added over the workers."""
        figures: dict[str, float] = {}
        for item in (item for worker in only or self.workers for item in worker.role.measure()):
            name = "".join([item.name, *(f" {value}" for _, value in item.labels)])
            if item.name in JOIN_FIGURES and item.value:
                figures[name] = figures.get(name, 0.0) + item.value
        return figures


JOIN_FIGURES = {
    "labels",
    "samples_without_label",
    "labels_without_sample",
    "duplicate_labels",
    "repeated_samples",
    "unlearnt_samples",
    "unused_labels",
}


@pytest.fixture
def federation() -> Iterator[Federation]:
    made = Federation()
    made.start()
    made.settle()
    yield made
    made.close()


def test_label_after_sample(federation: Federation) -> None:
    """Protects the ordinary case: predicted before the label is there, learnt when it comes, and nothing is
    left waiting."""
    federation.sample("1")
    assert federation.predicted() == [("a", "1")]
    assert federation.updates() == []
    assert federation.figures() == {"samples_without_label": 1}
    federation.clock.now += EXPIRY - 1
    federation.label("1")
    assert federation.predicted() == [("a", "1")]
    assert len(federation.updates()) == 1
    assert federation.figures() == {"labels": 1}


def test_label_before_sample(federation: Federation) -> None:
    """Protects labels that overtake their samples: the two topics have no order between them."""
    federation.label("1")
    assert (federation.predicted(), federation.updates()) == ([], [])
    assert federation.figures() == {"labels_without_sample": 1}
    federation.sample("1")
    assert federation.predicted() == [("a", "1")]
    assert len(federation.updates()) == 1
    assert federation.figures() == {"labels": 1}


def test_label_twice(federation: Federation) -> None:
    """Protects from learning twice what a producer sent twice: the first label counts, before its sample and
    after it."""
    federation.sample("1")
    for _ in range(3):
        federation.label("1")
    federation.label("2", 0.25)
    federation.label("2", 0.75)
    federation.sample("2")
    assert len(federation.updates()) == 2
    assert federation.figures() == {"labels": 2, "duplicate_labels": 3}


def test_first_of_two_labels_counts() -> None:
    """Protects what is learnt from a correction that came too late: the pair has the label that came
    first."""
    join = LabelJoin(EXPIRY, 10, 5)
    join.open(0)
    key = JoinKey(0, "a", "1")
    assert join.label(key, 0.25, 1.0) is None
    assert join.label(key, 0.75, 2.0) is None
    pair = join.sample(key, b"then", 3.0)
    assert pair == (key, b"then", 0.25)


def test_label_of_another_client_is_another_label(federation: Federation) -> None:
    """Protects clients from each other: names of samples are each client's own."""
    federation.sample("1", "a")
    federation.label("1", client="b")
    assert federation.figures() == {"samples_without_label": 1, "labels_without_sample": 1}


def test_sample_twice(federation: Federation) -> None:
    """Protects from learning a sample twice: every record is predicted, but one of the same name is
    learnt."""
    federation.sample("1")
    federation.sample("1", inputs=(9.0, 9.0))
    federation.label("1")
    federation.sample("1")
    federation.label("1")
    assert federation.predicted() == [("a", "1")] * 3
    assert len(federation.updates()) == 1
    assert federation.figures() == {"labels": 1, "repeated_samples": 2, "duplicate_labels": 1}


def test_label_never(federation: Federation) -> None:
    """Protects the memory: a sample whose label never comes is forgotten in time, without another record, and
    counted."""
    federation.sample("1")
    federation.clock.now += EXPIRY - 1
    federation.settle()
    assert federation.figures() == {"samples_without_label": 1}
    federation.clock.now += 1
    federation.settle()
    assert federation.figures() == {"unlearnt_samples expired": 1}
    assert federation.updates() == []


def test_label_after_expiry(federation: Federation) -> None:
    """Protects the promise of an end: a label too late for its sample teaches nothing, waits in vain, and is
    counted."""
    federation.sample("1")
    federation.clock.now += EXPIRY
    federation.settle()
    federation.label("1")
    assert federation.figures() == {"unlearnt_samples expired": 1, "labels_without_sample": 1}
    federation.clock.now += EXPIRY
    federation.settle()
    assert federation.figures() == {"unlearnt_samples expired": 1, "unused_labels expired": 1}
    assert federation.updates() == []


def test_time_passes_in_ticks_only(federation: Federation) -> None:
    """Protects who was away: labels that came meanwhile find their samples, however late the worker reads
    them."""
    federation.sample("1")
    federation.kill(federation.workers[0])
    federation.bus.write([Outgoing("labels", b"a", b'{"id": "1", "y": 0.5}')])
    federation.clock.now += 10 * EXPIRY
    federation.start()
    federation.settle()
    assert len(federation.updates()) == 1
    assert federation.figures() == {"labels": 1}


def test_what_changed_twice_in_a_step_is_remembered_last() -> None:
    """Protects the order of age in the changelog: a pair learnt in the step of its sample must not hide older
    ones from expiry."""
    join, restored = LabelJoin(EXPIRY, 10, 5), LabelJoin(EXPIRY, 10, 5)
    join.open(0)
    restored.open(0)
    first, second = JoinKey(0, "a", "1"), JoinKey(0, "a", "2")
    join.sample(first, b"then", 1.0)
    join.sample(second, b"then", 2.0)
    join.label(first, 0.5, 50.0)
    join.learnt(first, 50.0)
    for _, name, value in join.changed_state():
        restored.restore(0, name, value or b"", lambda content: None)
    assert restored.wake_at == join.wake_at == 2.0 + EXPIRY
    restored.expire(2.0 + EXPIRY)
    assert restored.label(second, 0.5, 2.0 + EXPIRY) is None


def test_pairs_that_wait_for_the_model_are_bounded() -> None:
    """Protects the memory from labels without a model: a partition where enough pairs wait is read no
    further, then again."""
    federation = Federation(federation={"clients": 1}, learning={"staleness": "lockstep"})
    worker = federation.start()
    role = worker.role
    assert isinstance(role, PofmklClient)
    role.waiting_limit = 2
    federation.settle()
    names = [str(number) for number in range(8)]
    for name in names:
        federation.sample(name)
    (partition,) = {record.partition for record in federation.bus.read("samples")}
    for name in names[:2]:
        federation.label(name)
    # The first label is learnt, the second waits for its round.
    assert list(role.full) == []
    for name in names[2:]:
        federation.label(name)
    assert list(role.full) == [partition]
    federation.sample("late")
    assert ("a", "late") not in federation.predicted()
    federation.start("pofmkl-server")
    federation.settle()
    assert list(role.full) == []
    assert ("a", "late") in federation.predicted()
    assert [update.model_version for update in federation.updates()] == [*range(8)]


def test_displaced_by_the_limit(caplog: pytest.LogCaptureFixture) -> None:
    """Protects the memory from one client: its oldest gives way, is counted by side, and others keep theirs;
    and the operator is told what to raise."""
    federation = Federation(labels={"limit": 2})
    federation.start()
    federation.settle()
    federation.sample("other", "b")
    for name in ("1", "2", "3"):
        federation.sample(name)
    assert federation.figures() == {"samples_without_label": 3, "unlearnt_samples displaced": 1}
    federation.label("1")
    assert federation.figures() == {
        "samples_without_label": 2,
        "labels_without_sample": 1,
        "unlearnt_samples displaced": 2,
    }
    federation.label("3")
    federation.label("x")
    federation.label("other", client="b")
    assert federation.figures() == {
        "labels": 2,
        "labels_without_sample": 1,
        "unlearnt_samples displaced": 2,
        "unused_labels displaced": 1,
    }
    assert "or raise labels.limit" in caplog.text


def test_a_lower_limit_after_a_restart() -> None:
    """Protects the bound: what an earlier, higher limit let in gives way at the client's next record."""
    federation = Federation(labels={"limit": 10})
    worker = federation.start()
    federation.settle()
    for number in range(6):
        federation.sample(str(number))
    federation.kill(worker)
    federation.content = content(labels={"limit": 2})
    federation.start()
    federation.settle()
    federation.sample("6")
    assert federation.figures() == {"samples_without_label": 2, "unlearnt_samples displaced": 5}


def test_state_of_another_learner_is_refused(federation: Federation) -> None:
    """Protects from learning garbage: what was kept of a sample by another preset or dictionary is no input
    of this one."""
    federation.sample("1")
    (key, value) = next(
        (record.key, record.value)
        for record in federation.bus.read("f.pofmkl-client.state")
        if (record.key or b"").startswith(b"join/")
    )
    join = LabelJoin(EXPIRY, 10, 5)
    join.open(0)
    settings = Federation(learning={"preset": "paper"}).settings("pofmkl-client")
    other = learner_of(settings, 2)
    with pytest.raises(BadRecord, match="shape"):
        join.restore(0, (key or b"").removeprefix(b"join/"), value or b"", other.check_forecast)


def late_labels(rounds: int, clients: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Inputs (T, K, 2) and labels (T, K) between 0 and 1."""
    generator = np.random.Generator(np.random.PCG64(4))
    inputs = generator.normal(size=(rounds, clients, 2))
    return inputs, 0.5 + 0.3 * np.sin(2 * inputs[..., 0]) + 0.1 * generator.uniform(size=(rounds, clients))


def published(federation: Federation, rounds: int, clients: int) -> NDArray[np.float64]:
    """Predictions (T, K) by the sample's name and the client's number."""
    found = np.full((rounds, clients), np.nan)
    for prediction in federation.predictions():
        found[int(prediction["sample"]), int(prediction["client"])] = prediction["prediction"]
    return found


def run_late(
    federation: Federation, inputs: NDArray[np.float64], labels: NDArray[np.float64], delay: int
) -> None:
    """Round by round, the labels of round t once round t + delay is predicted; the rest never."""
    rounds, clients = labels.shape
    for number in range(rounds):
        for client in range(clients):
            federation.sample(str(number), str(client), inputs[number, client].tolist())
        for client in range(clients) if number >= delay else ():
            federation.label(str(number - delay), float(labels[number - delay, client]), str(client))


@pytest.mark.parametrize("delay", [3])
def test_paper_with_late_labels_is_its_equations(delay: int) -> None:
    """Protects what is learnt from a late label: (7) and (9) with the f_i of then, all else of now.

    The oracle is plain NumPy from the paper's equations. It takes the frequencies and which kernels were sent
    from the run."""
    rounds, clients, eta, penalty, xi = 25, 3, 0.4, 0.05, 0.3
    federation = Federation(
        federation={"clients": clients},
        learning={
            "preset": "paper",
            "staleness": "lockstep",
            "learning_rate": eta,
            "regularisation": penalty,
            "exploration": xi,
        },
        kernels={"bandwidths": [0.3, 1.0, 3.0, 10.0]},
        uplink={"kernels_per_upload": 2},
    )
    chosen = federation.settings("pofmkl-client")
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    inputs, labels = late_labels(rounds, clients)
    run_late(federation, inputs, labels, delay)
    omega = feature_map(chosen, 2).frequencies
    sent = {(int(update.client), update.model_version): update for update in federation.updates()}
    assert len(sent) == len(federation.updates()) == (rounds - delay) * clients

    kernels, features = omega.shape[:2]
    theta, log_weights = np.zeros((kernels, 2 * features)), np.zeros((clients, kernels))
    expected, then = np.empty((rounds, clients)), np.empty((rounds, clients, kernels))
    maps = np.empty((rounds, clients, kernels, 2 * features))
    for t in range(rounds):
        for k in range(clients):
            phases = omega @ inputs[t, k]
            maps[t, k] = np.concatenate([np.sin(phases), np.cos(phases)], axis=1) / np.sqrt(features)
            # (6)
            then[t, k] = (theta * maps[t, k]).sum(axis=1)
            weights = np.exp(log_weights[k] - log_weights[k].max())
            expected[t, k] = (weights * then[t, k]).sum() / weights.sum()
        if t < delay:
            continue
        s, total, norms = t - delay, np.zeros_like(theta), (theta**2).sum(axis=1)
        for k in range(clients):
            f, y = then[s, k], labels[s, k]
            weights = np.exp(log_weights[k] - log_weights[k].max())
            update = sent[k, s]
            chosen_kernels = [*update.kernels]
            # (8), two bins
            p = (1 - xi) * weights[chosen_kernels].sum() / weights.sum() + xi / 2
            # (9)
            step = (eta / p) * (2 * (f - y)[:, None] * maps[s, k] + 2 * penalty * theta)[chosen_kernels]
            np.testing.assert_allclose(
                np.frombuffer(update.steps).reshape(step.shape), step, rtol=0, atol=1e-9
            )
            total[chosen_kernels] += step
            # (7)
            log_weights[k] -= eta * ((f - y) ** 2 + penalty * norms)
        # (10)
        theta = theta - total / clients
    np.testing.assert_allclose(published(federation, rounds, clients), expected, rtol=0, atol=1e-9)
    assert np.ptp(expected[delay + 1 :]) > 0.1


@pytest.mark.parametrize("delay", [4])
def test_default_with_late_labels_is_the_direct_computation(delay: int) -> None:
    """Protects the figures for late labels in the documents: roles on a bus predict what the direct
    computation predicts."""
    rounds, clients = 40, 3
    federation = Federation(
        federation={"clients": clients}, learning={"staleness": "lockstep"}, uplink={"kernels_per_upload": 2}
    )
    chosen = federation.settings("pofmkl-client")
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    inputs, labels = late_labels(rounds, clients)
    run_late(federation, inputs, labels, delay)
    expected = direct.federated(chosen, inputs, labels, [str(k) for k in range(clients)], delay)
    np.testing.assert_allclose(published(federation, rounds, clients), expected, rtol=0, atol=1e-9)
    assert np.ptp(expected[delay + 1 :]) > 0.1


def test_labels_of_strangers_take_no_clients_place(federation: Federation) -> None:
    """Protects predictions: labels that are keyed by something else fill the join at most, and never refuse a
    sample."""
    for number in range(20):
        federation.label("0", client=f"stranger-{number}")
    federation.sample("0")
    federation.settle()
    assert federation.predicted() == [("a", "0")]
    reasons = [dict(letter.headers)["error"] for letter in federation.bus.read("f.dead-letters")]
    assert set(reasons) == {b"labels_keyed_otherwise"}


def test_sample_never(federation: Federation) -> None:
    """Protects the memory from labels of samples that nobody sent, were refused, or have another name."""
    federation.label("1")
    federation.clock.now += EXPIRY
    federation.settle()
    assert federation.figures() == {"unused_labels expired": 1}


def test_after_a_restart(federation: Federation) -> None:
    """Protects what waits, and the memory of what was learnt, from a worker that is killed: all of it is in
    the changelog."""
    federation.sample("waits")
    federation.label("early")
    federation.sample("learnt")
    federation.label("learnt")
    federation.kill(federation.workers[0])
    federation.start()
    federation.settle()
    assert federation.figures() == {"samples_without_label": 1, "labels_without_sample": 1}
    federation.label("waits")
    federation.sample("early")
    federation.label("learnt")
    federation.label("early")
    assert federation.predicted() == [("a", "early"), ("a", "learnt"), ("a", "waits")]
    assert len(federation.updates()) == 3
    assert federation.figures() == {"labels": 2, "duplicate_labels": 2}


def test_pair_that_waits_for_the_model_after_a_restart() -> None:
    """Protects pairs between label and learning: in lockstep they wait for a version, and a restart in
    between keeps them, once."""
    federation = Federation(federation={"clients": 1}, learning={"staleness": "lockstep"})
    federation.start()
    federation.settle()
    for name in ("1", "2", "3"):
        federation.sample(name)
        federation.label(name, 0.1 * int(name))
    # Without a server no second round begins.
    assert len(federation.updates()) == 1
    assert federation.workers[0].role.full == []
    federation.kill(federation.workers[0])
    federation.start()
    federation.settle()
    assert len(federation.updates()) == 1
    federation.label("2")
    assert federation.figures() == {"duplicate_labels": 1}
    federation.start("pofmkl-server")
    federation.settle()
    assert [update.model_version for update in federation.updates()] == [0, 1, 2]
    assert federation.figures() == {"labels": 2, "duplicate_labels": 1}


def test_after_a_rebalance_to_another_worker(federation: Federation) -> None:
    """Protects a moved partition: the worker that has it now knows what waits, and the killed one's step is
    not done twice."""
    clients = ["a", "b", "c", "d", "e", "g"]
    first, second = federation.workers[0], federation.start()
    federation.settle()
    for client in clients:
        federation.sample("waits", client)
        federation.label("early", client=client)
        federation.sample("learnt", client)
        federation.label("learnt", client=client)
    held = federation.figures(second)["samples_without_label"]
    assert 0 < held < len(clients)
    federation.kill(second)
    federation.settle()
    assert federation.figures(first)["samples_without_label"] == len(clients)
    for client in clients:
        federation.label("waits", client=client)
        federation.sample("early", client)
        federation.label("learnt", client=client)
    assert federation.predicted() == sorted(
        (client, name) for client in clients for name in ("waits", "early", "learnt")
    )
    learnt = [update.client for update in federation.updates()]
    assert sorted(learnt) == sorted(3 * clients)
    figures = federation.figures()
    assert figures.pop("duplicate_labels") == len(clients)
    assert figures == {"labels": 3 * len(clients) - held}
