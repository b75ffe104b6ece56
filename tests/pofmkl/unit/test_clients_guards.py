"""What a worker of clients does not let others decide: its seats, what it publishes, and how far it trusts
the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from streamfl.contract.role import ConfigurationError, Received, Record, Rejection, Role, Send, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.messages import (
    MARKER_KEY,
    UPDATE,
    KernelParameters,
    Prediction,
    ShardVersion,
    decode_model,
    kernel_key,
)
from streamfl.pofmkl.roles import ROLES
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.pofmkl.state import SILENCE
from streamfl.records.labels import Label
from streamfl.records.samples import Sample, SampleReader

DAY = 86_400.0
FEATURES = ["t1", "t2"]
ASYNC: dict[str, Any] = {"learning": {"staleness": "async"}}
State = dict[bytes, bytes]


def settings(kind: str = "pofmkl-client", **sections: dict[str, Any]) -> PofmklSettings:
    return PofmklSettings.model_validate(
        {
            "federation": {"name": "f", "clients": 2, "features": FEATURES, **sections.get("federation", {})},
            "role": {"kind": kind},
            "samples": {"topic": "readings", "label": "y", **sections.get("samples", {})},
            "learning": {"features_per_kernel": 2, **sections.get("learning", {})},
            "uplink": {"kernels_per_upload": 2},
            **({"labels": sections["labels"]} if "labels" in sections else {}),
        }
    )


def client(**sections: dict[str, Any]) -> PofmklClient:
    role: PofmklClient = ROLES["pofmkl-client"].build(settings("pofmkl-client", **sections))
    role.open(0)
    return role


def sample(name: str, number: int, at: float = 1000.0, label: float | None = 0.5) -> Received:
    message = Sample(name, f"{name}-{number}", (0.1 * number, 0.2), label)
    return Received("samples", message, Record("samples", 0, number, name.encode(), b"", timestamp=at))


def model(
    role: PofmklClient, version: int, updates: int | None = None, *, value: float | None = None
) -> list[Received]:
    """A version of the model, with kernel 0 of that value if one is given."""
    marker = ShardVersion(VERSION, role.fingerprint, 2, 0, version, version if updates is None else updates)
    found = [Received("model", marker, Record("model", 0, version, MARKER_KEY, b""))]
    if value is not None:
        row = encode_array(np.full(role.learner.row_length, value, np.float32))
        found.insert(
            0,
            Received(
                "model", KernelParameters(VERSION, 0, row), Record("model", 0, version, kernel_key(0), b"")
            ),
        )
    return found


def predictions(replies: Sequence[Send | Rejection]) -> list[float]:
    sent = [one.value for one in replies if isinstance(one, Send) and one.channel == "predictions"]
    return [msgspec.json.decode(value, type=Prediction).prediction for value in sent]


def reasons(replies: Sequence[Send | Rejection]) -> list[str]:
    return [reply.error.reason for reply in replies if isinstance(reply, Rejection)]


def remember(role: PofmklClient, state: State) -> None:
    for change in role.changed_state():
        state.pop(change.key, None)
        if change.value is not None:
            state[change.key] = change.value


def figure(role: Role, name: str) -> float:
    return next(one.value for one in role.measure() if one.name == name)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_idle_clients_make_room_and_nothing_is_left_of_them(preset: str) -> None:
    """Protects newcomers from names that came once, and the changelog from what was theirs."""
    role, state = client(learning={"preset": preset}), State()
    role.receive([sample("typo", 1), sample("a", 1)], 1000.0)
    # What was gathered is sent before anybody counts as idle.
    role.receive([], 2000.0)
    remember(role, state)
    at = 1000.0 + DAY
    assert reasons(role.receive([sample("b", 1, at - DAY / 8)], at)) == ["too_many_clients"]
    assert reasons(role.receive([sample("a", 2, at), sample("b", 2, at), sample("c", 1, at)], at)) == [
        "too_many_clients"
    ]
    remember(role, state)
    assert not [key for key in state if b"typo" in key]
    assert (figure(role, "clients"), figure(role, "expired_clients")) == (2, 1)
    again = client(learning={"preset": preset})
    for key, value in state.items():
        again.restore(StateChange("state", 0, key, value))
    assert reasons(again.receive([sample("c", 2, at + 1)], at + 1)) == ["too_many_clients"]


def test_nobody_is_idle_because_the_worker_was_away() -> None:
    """Protects clients whose samples lie unread: by the samples' own time it is seen who fell silent, not by
    the clock."""
    role = client()
    role.receive([sample("a", 1), sample("b", 1)], 1000.0)
    a_week_later = 1000.0 + 7 * DAY
    assert reasons(role.receive([sample("c", 1, 1001.0), sample("b", 2, 1002.0)], a_week_later)) == [
        "too_many_clients"
    ]


def test_clients_of_the_first_releases_are_not_idle_at_once() -> None:
    """Protects an upgrade: when a client was last seen was not remembered, so it counts from now."""
    role, state = client(), State()
    role.receive([sample("a", 1), sample("b", 1)], 1000.0)
    remember(role, state)
    again = client()
    for key, value in state.items():
        if key.startswith(b"client/"):
            value = msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:10])
        again.restore(StateChange("state", 0, key, value))
    assert reasons(again.receive([sample("c", 1, 5000.0)], 5000.0)) == ["too_many_clients"]
    assert reasons(again.receive([sample("c", 1, 5000.0 + 1.1 * DAY)], 5000.0 + 1.1 * DAY)) == []


def test_a_client_that_is_forgotten_begins_anew() -> None:
    """Protects what forgetting promises: samples that waited, labels and state go; it comes back as another
    life."""
    role, state = client(learning={"staleness": "lockstep"}), State()
    role.receive([sample("a", 1), sample("a", 2), sample("a", 3), sample("b", 1)], 1000.0)
    remember(role, state)
    assert figure(role, "waiting_samples") == 2
    assert role.forget("a")
    assert not role.forget("a")
    replies = role.receive([sample("a", 4, 2000.0)], 2000.0)
    remember(role, state)
    assert figure(role, "waiting_samples") == 0
    assert not [key for key in state if key.startswith(b"waiting/")]
    # The mean of no label: it is new.
    assert predictions(replies) == [0.0]
    (sent,) = [
        UPDATE.decode(one.value) for one in replies if isinstance(one, Send) and one.channel == "updates"
    ]
    assert (sent.epoch, sent.sequence) == (int(2000.0 * 1e6), 1)
    assert b"client/a" in state


def test_what_waits_for_a_label_is_forgotten_with_its_client() -> None:
    """Protects the join's room: samples and labels of a client that is gone take none."""
    labels_apart = {"topic": "labels", "sample_id": "id", "label": "y"}
    role, state = client(samples={"label": None, "sample_id": "id"}, labels=labels_apart), State()
    labels = [
        Received("labels", Label("a", f"a-{n}", 0.5), Record("labels", 0, n, b"a", b"", timestamp=1000.0))
        for n in (2, 9)
    ]
    role.receive([sample("a", 1, label=None), sample("a", 2, label=None), *labels], 1000.0)
    remember(role, state)
    assert [key for key in state if key.startswith(b"join/")]
    role.forget("a")
    remember(role, state)
    assert state.keys() == {SILENCE.prefix}, "of the partition, and of no client"


def test_predictions_stay_near_the_labels_whatever_the_model_says() -> None:
    """Protects who acts on predictions: beyond one label range outside of label_range nothing is published,
    and it is said."""
    role = client(learning={"preset": "paper"})
    role.receive(model(role, 1, value=1e5), 1000.0)
    role.receive([sample("a", 1)], 1000.0)
    for number in range(2, 10):
        (made,) = predictions(role.receive([sample("a", number, label=None)], 1000.0))
        assert -1.0 <= made <= 2.0
    assert figure(role, "bounded_predictions") > 0
    assert [notice.reason for notice in role.notices()] == ["bounded_predictions"]
    assert list(role.notices()) == []


def test_the_default_preset_predicts_within_its_clients_labels_and_counts_none_of_it() -> None:
    """Protects a worker from red, and its figures: with any model predictions follow the client's labels, so
    nothing is useless."""
    role = client(learning={"staleness": "async"})
    for number in range(1, 10):
        role.receive([sample("a", number, label=number / 10)], 1000.0)
    row = encode_array(np.full(role.learner.row_length, 1e5, np.float32))
    kernels = [KernelParameters(VERSION, kernel, row) for kernel in range(len(role.model.parameters))]
    spoilt = [Received("model", one, Record("model", 0, 1, kernel_key(one.kernel), b"")) for one in kernels]
    role.receive([*spoilt, *model(role, 1)], 1000.0)
    for number in range(10, 70):
        (made,) = predictions(role.receive([sample("a", number, label=None)], 1000.0))
        assert -1.0 <= made <= 2.0
    assert figure(role, "bounded_predictions") == 0
    assert list(role.notices()) == []
    assert role.trouble is None


def test_a_client_whose_predictions_are_useless_is_not_ready() -> None:
    """Protects who acts on predictions from a model that somebody's update spoilt: it turns red, and green
    when they are right."""
    role = client(learning={"preset": "paper"})
    *_, marker = model(role, 1)
    row = encode_array(np.full(role.learner.row_length, 1e5, np.float32))
    kernels = [KernelParameters(VERSION, kernel, row) for kernel in range(len(role.model.parameters))]
    spoilt = [Received("model", one, Record("model", 0, 1, kernel_key(one.kernel), b"")) for one in kernels]
    role.receive([*spoilt, marker], 1000.0)
    role.receive([sample("a", 1000)], 1000.0)
    for number in range(60):
        role.receive([sample("a", number, label=None)], 1000.0)
    assert role.trouble is not None
    assert "samples.label_range" in role.trouble
    *_, marker = model(role, 2)
    zeros = bytes(len(row))
    mended = [KernelParameters(VERSION, kernel, zeros) for kernel in range(len(role.model.parameters))]
    records = [Received("model", one, Record("model", 0, 2, kernel_key(one.kernel), b"")) for one in mended]
    role.receive([*records, marker], 1000.0)
    for number in range(60, 160):
        role.receive([sample("a", number, label=None)], 1000.0)
    assert role.trouble is None


@pytest.mark.parametrize("forged", [4, 6, 10**6])
def test_no_forged_version_stops_a_federation_in_lockstep(forged: int) -> None:
    """Protects rounds: whatever version one record of the model names, lower, next or far ahead, they go on,
    and all is learnt."""
    sections = {"federation": {"clients": 1}, "learning": {"staleness": "lockstep"}}
    role = client(**sections)
    server: PofmklServer = ROLES["pofmkl-server"].build(settings("pofmkl-server", **sections))
    server.open(0)
    updates: list[Received] = []
    models: list[Received] = []
    predicted = 0
    for number in range(20):
        at = 1000.0 + number
        if number == 5:
            models += model(role, forged, value=0.5)
        batch, models = [*models, sample("a", number, at)], []
        for _ in range(10):
            replies = role.receive(batch, at)
            predicted += len(predictions(replies))
            record = Record("updates", 0, 0, b"a", b"", timestamp=at)
            sent = [one.value for one in replies if isinstance(one, Send) and one.channel == "updates"]
            updates = [Received("updates", UPDATE.decode(value), record) for value in sent]
            if updates:
                server.receive(updates, at)
            changes = [change for change in server.changed_state() if change.channel == "model"]
            batch = [
                Received("model", decode_model(one.key, one.value), Record("model", 0, 0, one.key, b""))
                for one in changes
            ]
            if not batch:
                break
    assert (predicted, figure(role, "waiting_samples"), role.trouble) == (20, 0, None)
    applied = next(one.value for one in server.measure() if one.name == "updates_applied")
    assert applied >= 18
    assert role.model.versions == (
        next(int(one.value) for one in server.measure() if one.name == "model_version"),
    )


def test_a_server_in_rounds_is_told_from_one_without() -> None:
    """Protects asynchronous clients of a server in lockstep: most of what they send comes late, and the key
    is named."""
    role = client()
    role.receive(model(role, 3, 9), 1000.0)
    assert "learning.staleness" in str(role.trouble)
    role.receive(model(role, 10, 10), 1000.0)
    assert role.trouble is None
    lockstep = client(learning={"staleness": "lockstep"})
    lockstep.receive(model(lockstep, 3, 9), 1000.0)
    assert lockstep.trouble is None


def test_another_order_of_features_is_refused_with_the_key() -> None:
    """Protects the sum: t1 of one member must not be added to t2 of another, and whoever mixed them up: the
    key is named."""
    role, other = client(), client(federation={"features": ["t2", "t1"]})
    assert role.fingerprint != other.fingerprint
    (refused,) = reasons(role.receive(model(other, 1), 1000.0))
    assert refused == "configuration"
    assert "federation.features" in str(role.trouble)


def test_samples_consist_of_the_federations_features() -> None:
    """Protects users from saying it twice: names left out are the federation's, other names map to them in
    its order."""
    own = settings().samples
    assert own is not None
    assert own.features == FEATURES
    listed = settings(federation={"features": 3}, samples={"features": "x"}).samples
    assert listed is not None
    assert SampleReader(listed).dimension == 3
    mapped = settings(samples={"features": ["temperature", "pressure"]})
    role: Any = ROLES["pofmkl-client"].build(mapped)
    assert role.fingerprint == client().fingerprint


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"samples": {"features": ["t2", "t1"]}}, "samples.features = .*another order"),
        (
            {"samples": {"features": ["t1", "t2", "t3"]}},
            "samples.features gives 3 inputs, federation.features says 2",
        ),
        (
            {"samples": {"features": "x", "dimension": 5}},
            "samples.dimension gives 5 inputs, federation.features says 2",
        ),
        ({"federation": {"features": []}}, "at least one name"),
        ({"federation": {"features": ["t", "t"]}}, "none twice"),
        ({"federation": {"features": 0}}, "a number from 1"),
    ],
)
def test_features_that_contradict_are_refused(sections: dict[str, Any], expected: str) -> None:
    """Protects learning from inputs that mean something else at each member."""
    with pytest.raises((ConfigurationError, ValueError), match=expected):
        settings(**sections)


def updates(replies: Sequence[Send | Rejection], at: float) -> list[Received]:
    """What was sent to the server, as it lies in the topic."""
    sent = [one for one in replies if isinstance(one, Send) and one.channel == "updates"]
    return [
        Received(
            "updates", UPDATE.decode(one.value), Record("updates", 0, place, one.key, one.value, timestamp=at)
        )
        for place, one in enumerate(sent)
    ]


@pytest.mark.parametrize(("ticks", "restart"), [(True, False), (False, True)])
def test_a_client_is_heard_again_once_its_clock_was_set_right(ticks: bool, restart: bool) -> None:
    """Protects a client whose clock was two days ahead: its updates were refused for ever. Nothing is counted
    twice."""
    role, state = client(**ASYNC), State()
    server = ROLES["pofmkl-server"].build(settings("pofmkl-server", **ASYNC))
    server.open(0)
    now = 1e9
    refused = updates(role.receive([sample("a", 1)], now + 2 * DAY), now)
    assert len(refused) == 1
    assert reasons(server.receive(refused, now)) == ["implausible"]
    remember(role, state)
    if restart:
        role = client(**ASYNC)
        for key, value in state.items():
            role.restore(StateChange("state", 0, key, value))
    # A restarted worker with much to read gives no tick before it has read it.
    if ticks:
        role.receive([], now)
    sent = updates(role.receive([sample("a", 2)], now), now)
    remember(role, state)
    again = client(**ASYNC)
    for key, value in state.items():
        again.restore(StateChange("state", 0, key, value))
    sent += updates(again.receive([sample("a", 3)], now + 5), now)
    assert [one.message.sequence for one in sent] == [2, 3]
    assert len({one.message.epoch for one in sent}) == 1
    assert reasons(server.receive(sent, now)) == []
    assert (figure(server, "updates_applied"), figure(server, "superseded_updates")) == (2, 0)
    server.receive(sent, now)
    assert figure(server, "updates_applied") == 2


def test_a_clock_that_is_a_little_ahead_changes_no_epoch() -> None:
    """Protects the log from two voices of one client, and its updates from being taken for others, at every
    small correction."""
    role = client(**ASYNC)
    first = updates(role.receive([sample("a", 1)], 5000.0), 5000.0)
    role.receive([], 1000.0)
    second = updates(role.receive([sample("a", 2)], 1000.0), 1000.0)
    assert [one.message.epoch for one in first + second] == [int(5000.0 * 1e6)] * 2


def test_names_of_a_partition_that_fell_silent_make_room() -> None:
    """Protects everybody else: two mistyped names in one partition kept all seats, for time stood still
    there."""
    role, state = client(federation={"client_expiry_seconds": 5.0}), State()
    role.open(1)
    role.receive([sample("typo", 1), sample("tpyo", 1)], 1000.0)
    role.receive([], 1002.0)

    def elsewhere(name: str, number: int, at: float) -> Received:
        one = sample(name, number, at)
        return replace(one, record=replace(one.record, partition=1))

    assert reasons(role.receive([elsewhere("a", 1, 1004.0)], 1004.0)) == ["too_many_clients"]
    honest = [elsewhere("a", 2, 1006.0), elsewhere("b", 1, 1006.0)]
    assert reasons(role.receive(honest, 1006.0)) == []
    remember(role, state)
    assert sorted(key for key in state if key.startswith(b"client/")) == [b"client/a", b"client/b"]
    assert reasons(role.receive([sample("typo", 2, 1007.0)], 1007.0)) == ["too_many_clients"]
