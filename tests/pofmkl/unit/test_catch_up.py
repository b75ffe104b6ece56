"""Clients that are behind learn in step with the model; live ones never wait; and nobody waits for ever."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from pofmkl.makers import MemoryFederation, new_client

from streamfl.contract.role import Measurement, Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.kernels import SQUARE
from streamfl.pofmkl.client.catch_up import LABELS_A_GRANT, PAUSE_SECONDS
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.default_learner import DefaultLearner
from streamfl.pofmkl.learning.views import ViewedFeatures
from streamfl.pofmkl.messages import AWAITED, MARKER_KEY, Prediction, ShardVersion
from streamfl.records.labels import Label
from streamfl.records.samples import Sample
from streamfl.runtime.backlog import Backlog
from streamfl.runtime.bus import Session

N, PATIENCE = 3, 20.0


def role(
    samples: int = N,
    bytes_per_second: float | None = None,
    shards: int = 1,
    kernels: int | None = 2,
    labels: dict[str, Any] | None = None,
) -> PofmklClient:
    features = ViewedFeatures(("standardised", "centred"), (0.7, 2.8), 4, 2, seed=3)
    made = new_client(
        DefaultLearner(features=features, loss=SQUARE, seed=3, experts=("running-mean",)),
        federation={"shards": shards},
        learning={"catch_up_samples": samples, "catch_up_patience_seconds": PATIENCE},
        uplink={"budget_bytes_per_second": bytes_per_second}
        if bytes_per_second
        else {"kernels_per_upload": kernels},
        labels=labels,
    )
    made.open(0)
    return made


def readings(name: str, count: int, begin: int = 0) -> list[Received]:
    draws = np.random.default_rng(begin)
    found = []
    for number in range(begin, begin + count):
        x = tuple(draws.normal(size=2).tolist())
        found.append(
            Received(
                "samples",
                Sample(name, str(number), x, x[0]),
                Record("samples", 0, number, name.encode(), b""),
            )
        )
    return found


def model(version: int, shard: int = 0) -> Received:
    message = ShardVersion(VERSION, 0, 2, shard, version, version)
    return Received("model", message, Record("model", shard, version, MARKER_KEY, b""))


def predicted(replies: Iterable[Send | Rejection]) -> list[int]:
    """The samples that were predicted, by their number, in order."""
    return [
        int(json.loads(reply.value)["sample"])
        for reply in replies
        if isinstance(reply, Send) and reply.channel == "predictions"
    ]


def state_of(changes: Sequence[StateChange]) -> list[StateChange]:
    latest: dict[bytes, StateChange] = {}
    for change in changes:
        latest.pop(change.key, None)
        if change.value is not None:
            latest[change.key] = change
    return list(latest.values())


def figure(made: PofmklClient, name: str) -> float:
    found: dict[str, Measurement] = {one.name: one for one in made.measure()}
    return found[name].value


def answer(made: PofmklClient) -> Received:
    """The version that holds all updates."""
    return model(int(figure(made, "updates")))


def test_a_backlog_in_hand_is_learnt_in_step_and_in_order() -> None:
    """Protects whoever has history: without this all of it is predicted by the model as it is before the
    server answered once."""
    made = role()
    assert predicted(made.receive(readings("a", 5), 1.0)) == [0]
    assert predicted(made.receive([], 2.0)) == []
    assert predicted(made.receive([model(1)], 3.0)) == [1]
    # What comes meanwhile lies behind it.
    assert predicted(made.receive(readings("a", 1, begin=5), 4.0)) == []
    assert [predicted(made.receive([model(version)], 5.0)) for version in (2, 3, 4, 5)] == [
        [2],
        [3],
        [4],
        [5],
    ]


def test_labels_that_were_read_before_their_samples_count_as_backlog() -> None:
    """Kafka gives no order between topics: all labels may be read first. Their samples then bring as many
    pairs, which must not be learnt on one version."""
    made = role(labels={})
    samples = readings("a", 10)
    labels = [
        Received("labels", Label("a", one.message.id, 1.0), Record("labels", 0, number, b"a", b""))
        for number, one in enumerate(samples)
    ]
    assert not made.receive(labels, 1.0)
    assert predicted(made.receive(samples, 2.0)) == list(range(10))
    snapshot = made.snapshot()[0, "a"]
    assert (snapshot.labels, snapshot.waiting) == (1, 9)
    made.receive([model(1)], 3.0)
    assert made.snapshot()[0, "a"].labels == 2


class Known:
    """A session, of which only unread records are asked: by input whose end is known."""

    def __init__(self, **records: int) -> None:
        self._records = records

    def unread(self) -> dict[tuple[str, int], int]:
        return {(topic, 0): count for topic, count in self._records.items()}

    def lag(self) -> dict[tuple[str, int], int]:
        """The cluster does not answer."""
        return {}


def test_an_input_whose_end_is_known_later_has_no_new_records() -> None:
    """Protects a history with labels on a topic of their own. Client libraries know a topic's end once they
    fetched from it. The records of the second topic looked as if they had just come, and a client may learn
    what came since at once: that was its whole history, on version 0."""
    made, topics = role(labels={}), {"samples": "samples", "labels": "labels"}
    backlog = Backlog(made, 500)
    samples = readings("a", 40)
    labels = [
        Received("labels", Label("a", one.message.id, 1.0), Record("labels", 0, number, b"a", b""))
        for number, one in enumerate(samples)
    ]
    backlog.tell(cast(Session, Known(samples=0)), topics, [0])
    made.receive(samples, 1.0)
    backlog.tell(cast(Session, Known(samples=0, labels=20)), topics, [0])
    made.receive(labels[:20], 2.0)
    backlog.tell(cast(Session, Known(samples=0, labels=0)), topics, [0])
    made.receive(labels[20:], 3.0)
    for version in range(1, 4):
        made.receive([model(version)], 3.0 + version)
    assert made.snapshot()[0, "a"].labels == 4
    assert not figure(made, "catch_up_extra_labels")


def test_what_a_client_may_learn_on_a_version_grows_up_to_the_setting() -> None:
    """Protects speed: a model that has seen much changes little, so that a backlog of thousands need not go
    one by one."""
    made = role()
    sizes = [len(predicted(made.receive(readings("a", 60), 1.0)))]
    sizes += [len(predicted(made.receive([answer(made)], 1.0))) for _ in range(1, 32)]
    assert sizes[: 2 * LABELS_A_GRANT] == [1] * LABELS_A_GRANT + [2] * (LABELS_A_GRANT // 2) + [N] * (
        LABELS_A_GRANT // 2
    )


def test_live_records_are_never_held_up() -> None:
    """Protects live streams from a server that is slow or away: they do not wait for it, however long it
    is."""
    made = role()
    for number in range(40):
        made.unread({0: {"samples": 0}})
        assert predicted(made.receive(readings("a", 1, begin=number), float(number))) == [number]
    made.unread({0: {"samples": 0}})
    assert predicted(made.receive(readings("a", N, begin=100), 50.0)) == [100, 101, 102], (
        "as many at once as it may learn"
    )


def test_what_lies_unread_in_the_topic_counts_as_backlog() -> None:
    """Protects a thousand clients with a few records a poll each: none has much in hand, and all of it would
    go at once."""
    made = role()
    made.unread({0: {"samples": 1_000}})
    assert predicted(made.receive(readings("a", 1), 1.0)) == [0]
    made.unread({0: {"samples": 999}})
    assert predicted(made.receive(readings("a", 1, begin=1), 1.0)) == [], "its update is not in the model"
    made.unread({0: {"samples": 998}})
    # A neighbour does not wait for it.
    assert predicted(made.receive(readings("b", 1, begin=2), 1.0)) == [2]


def test_a_backlog_is_told_once_its_clients_are_known() -> None:
    """Protects a demo and a first start from a warning: the first samples of many clients are not the backlog
    of one."""
    made = role()
    made.unread({0: {"samples": 40}})
    made.receive([], 1.0)
    assert list(made.notices()) == []
    made.unread({0: {"samples": 0}})
    made.receive([one for name in map(str, range(40)) for one in readings(name, 1)], 1.0)
    assert list(made.notices()) == []
    made.unread({0: {"samples": 1_000}})
    made.receive(readings("0", 1), 2.0)
    assert [one.reason for one in made.notices()] == ["behind"]


def test_a_client_goes_on_when_every_shard_that_heard_it_has_advanced() -> None:
    """Protects accuracy where the model is in shards: any shard's version used to renew what a client may
    learn."""
    made = role(shards=2, kernels=4)
    first = made.receive(readings("a", 5), 1.0)
    assert sorted(
        reply.partition or 0 for reply in first if isinstance(reply, Send) and reply.channel == "updates"
    ) == [0, 1]
    assert predicted(made.receive([model(1, shard=0)], 2.0)) == []
    assert predicted(made.receive([model(1, shard=1)], 3.0)) == [1]


def test_a_version_without_its_updates_is_no_answer() -> None:
    """Protects history: whoever went on with a version of others' updates would be one version behind from
    then on."""
    made = role()
    made.receive([*readings("a", 1), *readings("b", 5)], 1.0)
    assert predicted(made.receive([model(1)], 2.0)) == [], "a's is in it, and b's is not"
    assert predicted(made.receive([model(2)], 2.1)) == [1]
    assert predicted(made.receive([model(3)], 2.2)) == [2]
    # A server that begins anew counts from the beginning.
    assert predicted(made.receive([model(1)], 3.0)) == [3]


def test_an_update_that_is_in_no_version_is_waited_for_no_longer_than_a_moment() -> None:
    """Protects whoever learns beside a client whose updates the server refuses: they are counted here, and
    never there."""
    made = role()
    made.receive([*readings("a", 1), *readings("b", 5)], 1.0)
    assert predicted(made.receive([model(1)], 2.0)) == []
    assert made.wake_at == 2.0 + PAUSE_SECONDS
    assert predicted(made.receive([], 2.1)) == []
    assert predicted(made.receive([], 2.0 + PAUSE_SECONDS)) == [1]
    assert predicted(made.receive([model(2)], 3.0)) == [2], "what is missing is not waited for again"


def test_a_client_that_is_faster_than_the_model_keeps_up() -> None:
    """Protects a fast live stream: what it may learn grows with what comes, or its lag would grow without
    end."""
    made, in_hand = role(), []
    number = 0
    for version in range(1, 60):
        made.unread({0: {"samples": 0}})
        made.receive(
            [*readings("a", 20, begin=number), *([answer(made)] if version > 1 else [])], float(version)
        )
        number += 20
        in_hand.append(made.waiting.get("samples", 0))
    assert max(in_hand[10:]) <= 60, f"the backlog of a stream of 20 records a version: {in_hand}"
    assert figure(made, "catch_up_extra_labels") > 500


def test_patience_with_a_silent_server_is_spent_once() -> None:
    """Protects a backlog from a server that never answers: the clients learn alone, and whoever restarts does
    not wait again."""
    made = role()
    made.receive(readings("a", 8), 100.0)
    made.receive([], 101.0)
    assert made.wake_at == 100.0 + PATIENCE / 10, "then it takes steps of its own"
    changes = list(made.changed_state())
    restarted = role()
    for change in state_of(changes):
        restarted.restore(change)
    for one in (made, restarted):
        assert predicted(one.receive([], 100.0 + PATIENCE - 1)) == []
        assert predicted(one.receive([], 100.0 + PATIENCE)) == [1, 2, 3, 4, 5, 6, 7]
        assert "alone" in {notice.reason for notice in one.notices()}
        assert figure(one, "alone") == 1
    again = role()
    for change in state_of([*changes, *made.changed_state()]):
        again.restore(change)
    assert predicted(again.receive(readings("b", 6, begin=20), 500.0)) == [20, 21, 22, 23, 24, 25], (
        "it is alone still"
    )
    # A version ends it: what is in hand is learnt in step again.
    again.receive([model(1)], 501.0)
    assert figure(again, "alone") == 0
    assert len(predicted(again.receive(readings("c", 9, begin=40), 502.0))) == 1


def test_a_model_that_was_found_is_no_sign_of_life() -> None:
    """Protects the patience from a restart: the version that the silence began with is read again, and is not
    a new one."""
    made = role()
    made.receive([model(7), *readings("a", 8)], 100.0)
    made.receive([], 100.0 + PATIENCE)
    restarted = role()
    for change in state_of(list(made.changed_state())):
        restarted.restore(change)
    restarted.receive([model(7)], 200.0)
    assert figure(restarted, "alone") == 1
    restarted.receive([model(8)], 201.0)
    assert figure(restarted, "alone") == 0


def test_a_client_without_bytes_learns_on() -> None:
    """Protects speed under a byte budget: what cannot be sent is in no model, so that nothing is waited
    for."""
    made = role(bytes_per_second=200.0)
    replies = made.receive(readings("a", 50), 1.0)
    sent = [reply for reply in replies if isinstance(reply, Send) and reply.channel == "updates"]
    assert 1 <= len(sent) < 5
    assert len(predicted(replies)) < 50, "the first update is waited for"
    assert len(predicted(made.receive([model(1)], 1.0))) > 40


def test_updates_say_who_waits_for_them() -> None:
    """Protects the round trip: a server that does not know would hold records back for its commit
    interval."""
    made = role()
    (live,) = [one for one in made.receive(readings("a", 1), 1.0) if cast(Send, one).channel == "updates"]
    (behind,) = [
        one for one in made.receive(readings("b", 9, begin=10), 1.0) if cast(Send, one).channel == "updates"
    ]
    assert (cast(Send, live).headers, cast(Send, behind).headers) == ((), AWAITED)


def test_no_more_is_read_than_there_is_work_for() -> None:
    """Protects the changelog: whatever waits in hand is written to it; and the memory, in front of a year of
    history."""
    made = role(samples=2)
    assert (made.most_records or 10_000) < 100, "nothing is known yet"
    number = 0
    for version in range(1, 30):
        made.unread({0: {"samples": 100_000 - number}})
        most = made.most_records if not made.full else 0
        assert most is not None
        batch = [readings(f"c{(number + place) % 4}", 1, begin=number + place)[0] for place in range(most)]
        made.receive([*([answer(made)] if version > 1 else []), *batch], float(version))
        number += most
        assert made.waiting.get("samples", 0) <= 128
    made.unread({0: {"samples": 0}})
    made.receive([], 100.0)
    assert made.most_records is None


def test_sorted_history_is_read_further_ahead() -> None:
    """Protects history that lies client by client: with a short view each client would catch up alone, one
    after the other."""
    made = role(samples=2)
    topic = [reading for name in range(10) for reading in readings(f"c{name}", 200, begin=200 * name)]
    taken, clients = 0, set()
    for version in range(1, 400):
        made.unread({0: {"samples": len(topic) - taken}})
        room = made.most_records or 4000
        most = 0 if made.full else min(room, len(topic) - taken)
        replies = made.receive(
            [*([answer(made)] if version > 1 else []), *topic[taken : taken + most]], float(version)
        )
        taken += most
        clients |= {len(predicted(replies))}
    assert max(clients) > 10, "most of the clients learn at once in the end"


# ---- workers


def federation(**learning: Any) -> dict[str, Any]:
    return {
        "federation": {"name": "f", "clients": 8, "seed": 5, "features": ["u", "v"]},
        "samples": {
            "topic": "readings",
            "client": "device",
            "label": "y",
            "features": ["u", "v"],
            "label_range": [-5.0, 5.0],
        },
        "kernels": {"bandwidths": [0.7, 2.8]},
        "learning": {"features_per_kernel": 20, **learning},
        "experts": {"local": ["running-mean"]},
        "drift": {"detector": "none"},
        "bus": {"commit_interval_ms": 0},
    }


class Plant(MemoryFederation):
    """A federation whose topic of samples has two partitions."""

    def __init__(self, **learning: Any) -> None:
        super().__init__(federation(**learning))

    def write_rounds(self, rounds: range) -> None:
        draws = np.random.default_rng(rounds.start)
        for number in rounds:
            for device in range(8):
                u, v = draws.normal(size=2).tolist()
                row = {"device": f"d{device}", "n": number, "u": u, "v": v, "y": float(np.sin(u) + v)}
                self.write("readings", [(f"d{device}", row)])

    def go(self, steps: int) -> None:
        for _ in range(steps):
            for worker in self.workers:
                worker.step(0.0)

    @property
    def predicted(self) -> list[Prediction]:
        return [
            msgspec.json.decode(record.value or b"", type=Prediction)
            for record in self.bus.read("f.predictions")
        ]


def squared_error(predictions: Sequence[Prediction]) -> float:
    return float(np.mean([(one.prediction - (one.label or 0.0)) ** 2 for one in predictions]))


def test_history_costs_no_accuracy() -> None:
    """Protects the promise of `simulate`: history in a topic is learnt about as well as the same records when
    they come live."""
    live = Plant()
    live.start("pofmkl-server")
    live.start("pofmkl-client")
    live.go(4)
    for number in range(60):
        live.write_rounds(range(number, number + 1))
        live.go(3)
    behind = Plant()
    for number in range(60):
        behind.write_rounds(range(number, number + 1))
    behind.start("pofmkl-client")
    behind.go(30)
    assert len(behind.predicted) == 8, "one of each client, while nobody has answered"
    behind.start("pofmkl-server")
    behind.go(400)
    assert len(live.predicted) == len(behind.predicted) == 480
    by_version = Counter(one.model_version for one in behind.predicted)
    assert by_version[0] <= 16
    assert squared_error(behind.predicted) < 1.1 * squared_error(live.predicted)
    at_once = Plant(catch_up_samples=0)
    for number in range(60):
        at_once.write_rounds(range(number, number + 1))
    at_once.start("pofmkl-client")
    at_once.start("pofmkl-server")
    at_once.go(100)
    assert squared_error(at_once.predicted) > 1.5 * squared_error(behind.predicted), (
        "the data does not tell them apart"
    )


def test_a_federation_without_a_server_learns_all_the_same() -> None:
    """Protects clients from a server that never comes, or goes: each learns by itself, and joins the others
    when it is back."""
    plant = Plant(catch_up_patience_seconds=10.0)
    client = plant.start("pofmkl-client")
    for number in range(60):
        plant.write_rounds(range(number, number + 1))
        plant.go(2)
        plant.clock.now += 1.0
    alone = plant.predicted
    assert len(alone) == 480
    labels = np.array([one.label or 0.0 for one in alone])
    assert squared_error(alone[240:]) < 0.5 * labels.var(), "it does not learn without a server"
    own_steps = cast(PofmklClient, client.role).learner.own_steps
    assert own_steps is not None
    assert len(own_steps) == 8
    plant.start("pofmkl-server")
    plant.go(20)
    assert len(own_steps) == 0
    plant.write_rounds(range(60, 61))
    plant.go(4)
    versions = Counter(one.model_version for one in plant.predicted)
    assert versions == {0: 480, 480: 8}, "all updates of the silence are in the model, once"
