"""A history whose labels have a topic of their own is learnt while it is predicted, whatever lies in the two
topics; and neither input waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from pofmkl.makers import MemoryFederation, new_client

from streamfl.contract.role import Received, Record
from streamfl.kernels import SQUARE
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.views import ViewedFeatures
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

PATIENCE = 30.0
Row = tuple[str, str, tuple[float, float], float]


def rows(count: int, clients: Sequence[str] = "abcd") -> list[Row]:
    """Client, name, inputs and label of each sample: clients in turn, a label that follows from the
    inputs."""
    draws = np.random.default_rng(count).uniform(-1, 1, size=(count, 2))
    return [
        (clients[n % len(clients)], str(n), (x, y), float(np.sin(3 * x) / 2 + y / 4))
        for n, (x, y) in enumerate(draws.tolist())
    ]


class Federation(MemoryFederation):
    """A worker of clients and a server."""

    def __init__(self, partitions: int = 1, **sections: dict[str, Any]) -> None:
        content: dict[str, dict[str, Any]] = {
            "federation": {"name": "f", "clients": 4, "seed": 5, "features": 2},
            "bus": {"commit_interval_ms": 1},
            "samples": {
                "topic": "samples",
                "features": "inputs",
                "dimension": 2,
                "sample_id": "id",
                "label_range": [-1, 1],
            },
            "labels": {"topic": "labels", "sample_id": "id", "label": "y"},
            "learning": {"catch_up_patience_seconds": PATIENCE},
        }
        for name, section in sections.items():
            content[name] = content.get(name, {}) | section
        if "label" in content["samples"]:
            del content["labels"]
        super().__init__(content, partitions)

    def samples(self, found: Iterable[Row]) -> None:
        self.write(
            "samples",
            [(name, {"id": id, "inputs": inputs, "y": label}) for name, id, inputs, label in found],
        )

    def labels(self, found: Iterable[Row]) -> None:
        self.write("labels", [(name, {"id": id, "y": label}) for name, id, _, label in found])

    def by_sample(self) -> dict[str, dict[str, Any]]:
        """Each was predicted once."""
        found = self.predictions()
        assert max(Counter(one["sample"] for one in found).values(), default=1) == 1
        return {one["sample"]: one for one in found}

    def on_version_zero(self) -> int:
        return sum(one["model_version"] == 0 for one in self.predictions())

    def figure(self, name: str) -> float:
        return sum(one.value for one in self.workers[0].role.measure() if one.name == name)

    @property
    def paused(self) -> set[str]:
        """The inputs that wait."""
        return {channel for channel, _ in self.workers[0].role.paused}  # type: ignore[attr-defined]


@pytest.fixture
def made() -> Iterator[list[Federation]]:
    federations: list[Federation] = []
    yield federations
    for federation in federations:
        federation.close()


def error(federation: Federation, of: Sequence[Row]) -> float:
    predictions = federation.by_sample()
    return float(np.sqrt(np.mean([(predictions[id]["prediction"] - label) ** 2 for _, id, _, label in of])))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"learning": {"preset": "paper"}},
        {"labels": {"limit": 8}},
    ],
    ids=["default", "paper", "a small limit"],
)
def test_a_history_is_learnt_while_it_is_predicted(
    made: list[Federation], sections: dict[str, dict[str, Any]]
) -> None:
    """Protects whoever has history: all of its samples were predicted by a model that had learnt nothing,
    and labels beyond ``labels.limit`` were lost."""
    history = rows(240)
    made.append(federation := Federation(**sections))
    federation.samples(history)
    federation.labels(history)
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    assert len(federation.by_sample()) == 240
    assert federation.figure("labels") == 240
    assert federation.figure("unused_labels") == federation.figure("unlearnt_samples") == 0
    assert federation.on_version_zero() <= 10
    made.append(together := Federation(**sections, samples={"label": "y"}))
    together.samples(history)
    together.start()
    together.start("pofmkl-server")
    together.settle()
    assert error(federation, history) < 1.05 * error(together, history)
    assert not federation.paused
    # A live sample does not wait for its label.
    federation.samples([("a", "live", (0.1, 0.2), 0.0)])
    federation.settle()
    assert "live" in federation.by_sample()


def test_a_client_with_more_history_than_others_learns_while_it_is_predicted(made: list[Federation]) -> None:
    """Protects the client that has a third of the samples among fifty others: as many samples were read as
    all clients together may learn, so that most of its own were predicted before the labels of those before
    them were learnt, and its error was 60% larger."""
    history = [("often" if n % 3 == 0 else f"other {n % 50}", *row[1:]) for n, row in enumerate(rows(400))]
    errors = []
    for labels_of_their_own in (True, False):
        samples = {} if labels_of_their_own else {"label": "y"}
        made.append(federation := Federation(federation={"clients": 51}, samples=samples))
        federation.samples(history)
        if labels_of_their_own:
            federation.labels(history)
        federation.start()
        federation.start("pofmkl-server")
        federation.settle()
        assert federation.figure("labels") == 400
        errors.append(error(federation, [row for row in history if row[0] == "often"]))
    assert errors[0] < 1.3 * errors[1]


def test_a_round_waits_for_no_sample_that_could_be_read(made: list[Federation]) -> None:
    """Protects a history in lockstep, as with the preset paper: where one client has more samples than the
    others, those in hand waited for the round, and the round for samples that were not read, 30 s each."""
    history = [("often" if n % 3 == 0 else f"other {n % 7}", *row[1:]) for n, row in enumerate(rows(240))]
    made.append(federation := Federation(federation={"clients": 8}, learning={"staleness": "lockstep"}))
    federation.samples(history)
    federation.labels(history)
    federation.start()
    federation.start("pofmkl-server")
    began, timeout = federation.clock.now, 30.0
    while federation.figure("labels") < 240:
        federation.clock.now += 0.001
        if not sum(worker.step(0.0) for worker in federation.workers):
            federation.clock.now += 1
    # The seven have no more samples once, and the one that is left has no round of its own.
    assert federation.clock.now - began < 4 * timeout
    assert len(federation.by_sample()) == 240


def test_labels_of_clients_without_samples_do_not_hurry_lockstep(made: list[Federation]) -> None:
    """Protects a history in lockstep with labels of thirty clients that have no samples: four samples for
    each of them were read ahead of the rounds, and the error of the others was 2.6 times as large."""
    history = rows(600)
    errors = []
    for ghosts in (0, 30):
        federation = Federation(
            federation={"clients": 4 + ghosts}, learning={"staleness": "lockstep"}, labels={"limit": 100}
        )
        made.append(federation)
        federation.labels([(f"ghost {n % 30}", f"old {n}", (0.0, 0.0), 0.5) for n in range(3 * ghosts)])
        federation.labels(history)
        federation.samples(history)
        federation.start()
        federation.start("pofmkl-server")
        while federation.figure("labels") < 600:
            federation.clock.now += 0.001
            if not sum(worker.step(0.0) for worker in federation.workers):
                federation.clock.now += 1
        errors.append(error(federation, history))
    assert errors[1] < 1.1 * errors[0]


@pytest.mark.parametrize("whose", ["of a client without samples", "of samples that were deleted"])
def test_labels_that_no_sample_has_stop_no_history(made: list[Federation], whose: str) -> None:
    """Protects a history with other labels before its own: one that waited for them to be used would be
    predicted without any label."""
    history = rows(200)
    others = [("ghost" if "client" in whose else name, f"old {id}", x, y) for name, id, x, y in rows(400)]
    made.append(federation := Federation(labels={"limit": 40}))
    federation.labels(others)
    if "deleted" in whose:
        federation.samples(others)
        federation.bus._log("samples", 0).drop(len(others))
    for row in history:
        federation.clock.now += 1
        federation.samples([row])
        federation.labels([row])
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    assert len(federation.by_sample()) == 200
    # 50 samples have to miss their labels before the old labels are given up.
    assert federation.figure("labels") >= 140
    assert federation.on_version_zero() <= 70


# Samples without a label, from this one on and so many; and labels of other samples that come before.
LACKING = {
    "the first have no label": (0, 250, 0),
    "some have no label": (200, 100, 0),
    "other labels come first": (0, 0, 400),
    "some have no label, other labels come first": (0, 60, 40),
}


@pytest.mark.parametrize("lacking", LACKING)
@pytest.mark.parametrize("order", ["labels' file first", "samples' file first", "as they were made"])
def test_a_history_is_learnt_whole_whatever_lacks_its_counterpart(
    made: list[Federation], order: str, lacking: str
) -> None:
    """Protects whoever has a history of which more than ``labels.limit`` samples of a client have no label,
    or more labels no sample: what is read meanwhile displaced what had a counterpart.

    The times of records say nothing of which label belongs to which sample where files were written one after
    the other.
    """
    first, count, others = LACKING[lacking]
    if others > 40 and "samples' file" in order:
        pytest.skip("nothing tells these labels from those of the samples that come next")
    history = rows(400)
    labelled = history[:first] + history[first + count :]
    made.append(federation := Federation(labels={"limit": 40}))
    old = [(name, f"old {id}", x, y) for name, id, x, y in history[:others]]
    if order == "as they were made":
        federation.labels(old)
        for row in history:
            federation.clock.now += 1
            federation.samples([row])
            federation.labels([row] if row in labelled else [])
    else:
        files = [lambda: federation.labels(old + labelled), lambda: federation.samples(history)]
        for write in files if "labels' file" in order else reversed(files):
            write()
            federation.clock.now += 60
    federation.start()
    federation.start("pofmkl-server")
    while sum(worker.step(0.0) for worker in federation.workers):
        federation.clock.now += 0.001
    assert len(federation.by_sample()) == 400
    assert federation.figure("labels") == len(labelled)


@pytest.mark.parametrize(("partitions", "poll"), [(3, 4000), (5, 4000), (3, 5)])
def test_a_partition_that_is_read_slowly_makes_no_other_lose_its_labels(
    made: list[Federation], partitions: int, poll: int
) -> None:
    """Protects a history in several partitions: while samples of one were read a few at a time, the patience
    of the others ended, and 130 of 520 labels were lost; with a small bus.max_poll_records still 25."""
    history = rows(1000)
    bus = {"max_poll_records": poll}
    made.append(federation := Federation(partitions, labels={"limit": 100}, bus=bus))
    federation.labels(history[480:])
    federation.samples(history)
    federation.start()
    federation.start("pofmkl-server")
    while sum(worker.step(0.0) for worker in federation.workers):
        federation.clock.now += 5
    assert len(federation.by_sample()) == 1000
    assert federation.figure("labels") == 520
    assert federation.figure("unused_labels") == 0


def test_a_restart_amid_samples_without_labels_costs_no_label(made: list[Federation]) -> None:
    """Protects a history that is read on after a restart: that its first sample has a high offset was taken
    for deleted samples, the labels in hand for theirs, and 80 of 300 were displaced."""
    history = rows(400)
    labelled = history[:200] + history[300:]
    made.append(federation := Federation(labels={"limit": 40}))
    federation.labels(labelled)
    federation.samples(history)
    federation.start()
    federation.start("pofmkl-server")
    while len(federation.predictions()) < 210:
        federation.clock.now += 0.001
        for worker in federation.workers:
            worker.step(0.0)
    before = federation.figure("labels")
    federation.close()
    federation.start()
    federation.start("pofmkl-server")
    while sum(worker.step(0.0) for worker in federation.workers):
        federation.clock.now += 0.001
    assert len(federation.by_sample()) == 400
    assert federation.figure("unused_labels") == 0
    assert before + federation.figure("labels") == len(labelled)


def test_a_client_whose_labels_lack_for_a_time_costs_no_label(made: list[Federation]) -> None:
    """Protects the labels in hand while samples of one client have none: 144 of 540 were displaced by those
    samples. And the labels of a client whose first sample comes behind another's without labels."""
    history = rows(800)
    of = {name: [row for row in history if row[0] == name] for name in "abcd"}
    lacking = {*map(str, of["a"][:140]), *map(str, of["b"][60:180])}
    labelled = [row for row in history if str(row) not in lacking]
    made.append(federation := Federation(labels={"limit": 80}))
    federation.labels(labelled)
    federation.clock.now += 5
    federation.samples(history)
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    assert federation.figure("labels") == len(labelled) == 540
    assert federation.figure("unused_labels") == 0


def test_a_long_time_without_labels_is_read_fast(made: list[Federation]) -> None:
    """Protects a history whose labels begin a year later: its samples were read four at a time, each time
    with a commit."""
    history = rows(3000)
    made.append(federation := Federation(partitions=3))
    federation.samples(history)
    federation.labels(history[2900:])
    federation.start()
    federation.start("pofmkl-server")
    steps = 0
    while sum(worker.step(0.0) for worker in federation.workers):
        steps += 1
    assert len(federation.by_sample()) == 3000
    assert federation.figure("labels") == 100
    assert steps < 205


def test_a_clock_that_was_ahead_does_not_leave_labels_out(made: list[Federation]) -> None:
    """Protects a history that is read while the clock is set right: the time at which a label was met lies in
    the future then, and all labels came before it."""
    history = rows(400)
    labelled = history[:100] + history[200:]
    made.append(federation := Federation(labels={"limit": 40}))
    federation.labels(labelled)
    federation.samples(history)
    federation.clock.now += 86_400
    federation.start()
    federation.start("pofmkl-server")
    # Amid the samples that have no label.
    while len(federation.predictions()) < 160:
        federation.clock.now += 0.001
        for worker in federation.workers:
            worker.step(0.0)
    federation.clock.now -= 86_400
    while sum(worker.step(0.0) for worker in federation.workers):
        federation.clock.now += 0.001
    assert federation.figure("labels") == len(labelled)


def test_samples_without_labels_are_predicted(made: list[Federation]) -> None:
    """Protects a history of which few samples have a label, or whose labels begin late."""
    history = rows(300)
    made.append(federation := Federation())
    federation.samples(history)
    federation.labels(history[200::5])
    federation.start()
    federation.start("pofmkl-server")
    federation.settle()
    assert len(federation.by_sample()) == 300
    assert federation.figure("labels") == 20


def test_samples_do_not_wait_for_labels_of_earlier_samples(made: list[Federation]) -> None:
    """Protects predictions from labels that come a day later and all at once while the worker is away: they
    are a backlog, but of samples that were predicted."""
    yesterday, today = rows(200), [(name, f"today {id}", x, y) for name, id, x, y in rows(60)]
    made.append(federation := Federation())
    federation.start()
    federation.samples(yesterday)
    federation.settle()
    assert len(federation.by_sample()) == 200
    federation.close()
    federation.labels(yesterday)
    federation.samples(today)
    federation.start()
    federation.settle()
    assert len(federation.by_sample()) == 260
    # No version of the model has come.
    assert federation.figure("labels") < 20
    federation.start("pofmkl-server")
    federation.settle()
    assert federation.figure("labels") == 200


def test_without_a_server_a_history_is_predicted_after_the_patience(made: list[Federation]) -> None:
    """Protects who starts no server, or starts it later: samples wait no longer than the patience for a
    model, and no label is lost meanwhile."""
    history = rows(200)
    made.append(federation := Federation())
    federation.samples(history)
    federation.labels(history)
    federation.start()
    federation.settle()
    assert len(federation.by_sample()) < 50
    for _ in range(3):
        federation.clock.now += PATIENCE
        federation.settle()
    assert len(federation.by_sample()) == 200
    assert federation.figure("labels") == 200


@pytest.mark.parametrize(
    "learning", [{"staleness": "lockstep"}, {"staleness": "bounded", "max_staleness": 2}]
)
def test_without_a_server_no_label_is_lost_whatever_the_staleness(
    made: list[Federation], learning: dict[str, Any]
) -> None:
    """Protects a history that is read without a server: labels that were read made samples wait for the model
    anew, so that labels were read to their end, and 228 of 400 displaced, or samples took 30 s for eleven."""
    history = rows(400)
    made.append(federation := Federation(learning=learning, labels={"limit": 40}))
    federation.samples(history)
    federation.labels(history)
    federation.start()
    for _ in range(3 * int(PATIENCE)):
        federation.settle()
        federation.clock.now += 1
    assert len(federation.by_sample()) == 400
    assert federation.figure("unused_labels") == 0


def client_with_labels(**labels: Any) -> PofmklClient:
    features = ViewedFeatures(("standardised",), (0.7,), 4, 2, seed=3)
    return new_client(
        DefaultLearner(features=features, loss=SQUARE, seed=3, experts=("running-mean",)),
        labels=labels,
        learning={"catch_up_samples": 3, "catch_up_patience_seconds": PATIENCE},
    )


def test_samples_wait_until_every_partition_has_its_labels() -> None:
    """Protects a history in several partitions: where one read samples, the others read one label a step.

    A poll may bring the records of any partition, and of samples only a few may be read.
    """
    made = client_with_labels(limit=40)
    for partition in (0, 1):
        made.open(partition)

    def give(partition: int, count: int, now: float = 1.0) -> tuple[set[tuple[str, int]], int | None]:
        made.unread({number: {"samples": 900, "labels": 500} for number in (0, 1)})
        made.receive(
            [
                Received("labels", Label("a", str(n), 0.5), Record("labels", partition, n, b"a", b""))
                for n in range(count)
            ],
            now,
        )
        return set(made.paused), made.most_records

    samples, labels = {("samples", 0), ("samples", 1)}, {("labels", 0), ("labels", 1)}
    assert give(0, 1) == (samples, 10)
    assert give(0, 10) == (samples | {("labels", 0)}, 10), "the first has enough, and waits for the other"
    assert give(1, 10) == (labels, 1)
    # If the labels of the other do not come, nobody waits for them longer than the patience.
    made.close(1)
    made.open(1)
    assert give(0, 0) == (samples | {("labels", 0)}, 10)
    assert give(0, 0, now=1.0 + PATIENCE) == (set(), 1)


def test_labels_that_came_with_one_that_was_met_are_not_given_up() -> None:
    """Protects labels in hand behind a gap: those that were read in one step with the last one that a sample
    met were taken for labels of earlier samples, and displaced."""
    made = client_with_labels(limit=60)
    made.open(0)

    def give(channel: str, names: Sequence[str], now: float) -> None:
        made.unread({0: {"samples": 900, "labels": 500}})
        made.receive(
            [
                Received(
                    channel,
                    Sample("a", name, (0.1, 0.2), None) if channel == "samples" else Label("a", name, 0.5),
                    Record(channel, 0, n, b"a", b""),
                )
                for n, name in enumerate(names)
            ],
            now,
        )

    labels = [str(n) for n in range(10)]
    give("labels", labels, now=1.0)
    give("samples", ["0"], now=2.0)
    for n in range(60):
        give("samples", [f"without {n}"], now=3.0 + n)
    assert next(one.value for one in made.measure() if one.name == "labels_without_sample") == 9
    (unused,) = [one for one in made.measure() if one.name == "unused_labels" and "displaced" in str(one)]
    assert unused.value == 0


def test_what_does_not_come_is_not_waited_for() -> None:
    """Protects samples from a topic of labels that cannot be read: they wait for the patience, and again once
    a label came."""
    made = client_with_labels()
    made.open(0)

    def give(channel: str, number: int, now: float) -> None:
        made.unread({0: {"samples": 100, "labels": 500}})
        sample = Sample("a", str(number), (0.1, 0.2), None)
        message = sample if channel == "samples" else Label("a", str(number), 0.5)
        made.receive([Received(channel, message, Record(channel, 0, number, b"a", b""))], now)

    give("samples", 0, now=1.0)
    assert (made.paused, made.wake_at) == ([("samples", 0)], 1.0 + PATIENCE)
    give("samples", 1, now=PATIENCE)
    made.receive([], 1.0 + PATIENCE)
    assert made.paused == []
    give("samples", 2, now=5.0 + PATIENCE)
    assert made.paused == []
    give("labels", 9, now=6.0 + PATIENCE)
    assert made.paused == [("samples", 0)]
    # The clock was ahead.
    made.receive([], 2.0)
    assert made.wake_at == 2.0 + PATIENCE


def test_patience_that_is_over_does_not_begin_anew() -> None:
    """Protects samples whose labels cannot be read: polls that bring as many samples as were asked for must
    not make them wait again."""
    made = client_with_labels()
    made.open(0)
    made.unread({0: {"samples": 100, "labels": 500}})
    made.receive([], 1.0)
    made.receive([], 1.0 + PATIENCE)
    for number in range(40):
        assert made.paused == []
        asked_for = made.most_records
        assert asked_for
        made.receive(
            [
                Received(
                    "samples",
                    Sample("a", f"{number} {n}", (0.1, 0.2), None),
                    Record("samples", 0, 9 * number + n, b"a", b""),
                )
                for n in range(asked_for)
            ],
            2.0 + PATIENCE + number,
        )


def test_bursts_of_another_partition_do_not_renew_the_patience() -> None:
    """Protects samples whose labels cannot be read: every burst elsewhere that filled a poll made them wait
    for the patience again, for ever if one came every 20 s."""
    made = client_with_labels(limit=40)
    for partition in (0, 1):
        made.open(partition)
    now = 1.0
    made.unread({0: {"samples": 900, "labels": 500}, 1: {"samples": 0, "labels": 0}})
    made.receive([], now)
    assert made.paused == [("samples", 0)]
    while now < 1.0 + 2 * PATIENCE:
        asked_for = made.most_records
        assert asked_for
        for left, count in ((5, asked_for), (0, 5)):
            now += 0.1
            made.unread({0: {"samples": 900, "labels": 500}, 1: {"samples": left, "labels": 0}})
            made.receive(
                [
                    Received(
                        "samples",
                        Sample("b", f"{now} {n}", (0.1, 0.2), None),
                        Record("samples", 1, n, b"b", b""),
                    )
                    for n in range(count)
                ],
                now,
            )
        now += 20.0
        made.receive([], now)
    assert made.paused == []


def test_clients_without_samples_are_not_remembered_for_ever() -> None:
    """Protects the memory of a worker that reads a long history in which clients with labels alone come and
    go."""
    made = client_with_labels(expiry_seconds=10)
    made.open(0)

    def give(channel: str, messages: Sequence[Sample | Label], now: float) -> None:
        made.unread({0: {"samples": 900, "labels": 500}})
        made.receive(
            [
                Received(channel, message, Record(channel, 0, n, message.client.encode(), b""))
                for n, message in enumerate(messages)
            ],
            now,
        )

    give("samples", [Sample("a", str(n), (0.1, 0.2), None) for n in range(60)], 1.0)
    for n in range(30):
        made.receive([], now=11.0 * (n + 1))
        give("labels", [Label(f"without {n}", "0", 0.5)], now=11.0 * (n + 1))
    assert len(made._labels._order._partitions[0].without_samples) <= 1  # type: ignore[attr-defined]


def test_a_history_with_few_labels_is_read_fast(made: list[Federation]) -> None:
    """Protects whoever labels one sample in fifty: two or three samples were read at a time."""
    history = rows(2000)
    made.append(federation := Federation())
    federation.samples(history)
    federation.labels(history[::50])
    federation.start()
    federation.start("pofmkl-server")
    steps = 0
    while sum(worker.step(0.0) for worker in federation.workers):
        steps += 1
    assert steps < 250
    assert len(federation.by_sample()) == 2000
    assert federation.figure("labels") == 40
