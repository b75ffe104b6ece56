"""The laws of a role (streamfl.role) on the client and the server of POF-MKL, over generated traffic with wrong messages in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client import Learning, PofmklClient, Uplink
from streamfl.pofmkl.messages import UPDATE, KernelParameters, Prediction, ShardVersion, Update, decode_model
from streamfl.pofmkl.server import PofmklServer
from streamfl.role import PeerError, Received, Record, Rejection, Role, Send, StateChange
from streamfl.samples import Sample
from streamfl.wire import VERSION, encode_array

KERNELS, FEATURES, CLIENTS, FINGERPRINT, TIMEOUT = 5, 4, 3, 77, 30.0
DIMENSION = 2
FREQUENCIES = np.random.default_rng(4).standard_normal((KERNELS, FEATURES, DIMENSION))
Event = tuple[float, list[Received]]
State = dict[tuple[str, int, bytes], bytes | None]
MODES = ["lockstep", "bounded", "async", "budget", "lockstep-budget"]


def client(mode: str, shards: int, waiting_limit: int = 1000) -> PofmklClient:
    lockstep = mode.startswith("lockstep")
    ahead = 1 if lockstep else 3 if mode == "bounded" else None
    rate = 400.0 if mode.endswith("budget") else None
    role = PofmklClient(
        features=FeatureMap(FREQUENCIES),
        learning=Learning(0.3, 1e-2, 0.5, SQUARE, lockstep=lockstep, samples_per_version=ahead, upload_interval=1.0),
        uplink=Uplink(2 if rate is None else None, rate),
        seed=1,
        clients=CLIENTS,
        shards=shards,
        fingerprint=FINGERPRINT,
        waiting_limit=waiting_limit,
    )
    role.open(0)
    return role


def server(lockstep: bool, shards: int) -> PofmklServer:
    role = PofmklServer(
        clients=CLIENTS,
        kernels=KERNELS,
        features=FEATURES,
        shards=shards,
        lockstep=lockstep,
        round_timeout=TIMEOUT,
        fingerprint=FINGERPRINT,
        dtype=np.float64,
    )
    for shard in range(shards):
        role.open(shard)
    return role


@dataclass
class Run:
    """A role, everything it answered and everything it asked to remember."""

    role: Role
    replies: list[Send | Rejection]
    state: State

    @classmethod
    def of(cls, role: Role, events: Sequence[Event] = ()) -> Run:
        return cls(role, [], {}).play(events)

    def play(self, events: Sequence[Event]) -> Run:
        for now, batch in events:
            self.replies += self.role.receive(batch, now)
            for change in self.role.changed_state():
                place = (change.channel, change.partition, change.key)
                self.state.pop(place, None)
                self.state[place] = change.value
        return self

    def restored(self, role: Role) -> Role:
        for (channel, partition, key), value in self.state.items():
            if value is not None:
                role.restore(StateChange(channel, partition, key, value))
        return role

    @property
    def live(self) -> State:
        return {place: value for place, value in self.state.items() if value is not None}

    @property
    def sends(self) -> list[Send]:
        return [reply for reply in self.replies if isinstance(reply, Send)]

    @property
    def answers(self) -> list[tuple[Any, ...]]:
        """The replies in their order, comparable: two errors are never equal by themselves."""
        return [(reply,) if isinstance(reply, Send) else (reply.received, str(reply.error)) for reply in self.replies]

    @property
    def reasons(self) -> list[tuple[Received, str]]:
        return [(reply.received, reply.error.reason) for reply in self.replies if isinstance(reply, Rejection)]


def model_version(version: int, shards: int) -> list[Received]:
    messages: list[Received] = []
    for shard in range(shards):
        for kernel in range(shard, KERNELS, shards):
            row = np.random.default_rng([version, kernel]).standard_normal(2 * FEATURES)
            messages.append(arrived("model", shard, KernelParameters(VERSION, kernel, encode_array(row))))
        messages.append(arrived("model", shard, ShardVersion(VERSION, FINGERPRINT, DIMENSION, shard, version, version)))
    return messages


def arrived(channel: str, partition: int, message: Any, key: bytes | None = b"") -> Received:
    return Received(channel, message, Record(channel, partition, 0, key, b""))


@st.composite
def client_events(draw: st.DrawFn, shards: int) -> list[Event]:
    """Batches of samples, some of them unlabelled, with a new model in front of some and quiet times between."""
    now, version = 1000.0, 0
    events: list[Event] = []
    for number in range(draw(st.integers(1, 12))):
        now += draw(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]))
        batch: list[Received] = []
        if draw(st.booleans()):
            version += 1
            batch += model_version(version, shards)
        for index in range(draw(st.integers(0, 5))):
            features = (draw(st.floats(-1, 1)), draw(st.floats(-1, 1)))
            label = draw(st.one_of(st.none(), st.floats(0, 1), st.floats(0, 1)))
            name = f"client-{draw(st.integers(0, CLIENTS - 1))}"
            batch.append(arrived("samples", 0, Sample(name, f"{number}-{index}", features, label), name.encode()))
        events.append((now, batch))
    return events


@st.composite
def server_events(draw: st.DrawFn, shards: int) -> list[Event]:
    """Rounds in which clients answer in any order, twice, late or not at all, and times after which a round is over."""
    now = 1000.0
    events: list[Event] = []
    sequences = dict.fromkeys(range(CLIENTS), 0)
    for version in range(draw(st.integers(1, 5))):
        batch: list[Received] = []
        for index in draw(st.lists(st.integers(0, CLIENTS - 1), max_size=5)) + draw(st.permutations(range(CLIENTS))):
            sequences[index] += draw(st.sampled_from([0, 1, 1, 1]))
            for shard in range(shards):
                batch.append(update(index, sequences[index], max(0, version - draw(st.integers(0, 1))), shard, shards))
            if draw(st.booleans()):
                events.append((now, batch))
                batch = []
                now += draw(st.sampled_from([0.0, 1.0, TIMEOUT]))
        events.append((now, batch))
    return events


def update(index: int, sequence: int, version: int, shard: int, shards: int) -> Received:
    rng = np.random.default_rng([index, sequence, shard])
    owned = np.arange(shard, KERNELS, shards)
    kernels = tuple(int(kernel) for kernel in owned[rng.random(len(owned)) < 0.6])
    steps = encode_array(rng.standard_normal((len(kernels), 2 * FEATURES)))
    name = f"client-{index}"
    message = Update(VERSION, FINGERPRINT, DIMENSION, name, 1, sequence, version, 1, kernels, steps)
    return arrived("updates", shard, message, name.encode())


def one_by_one(events: Sequence[Event]) -> list[Event]:
    return [(now, part) for now, batch in events for part in ([[message] for message in batch] or [[]])]


def samples_one_by_one(events: Sequence[Event]) -> list[Event]:
    """The model's records stay together: a version is one thing, and how far the table was read is no part of the input."""
    parts: list[Event] = []
    for now, batch in events:
        model = [message for message in batch if message.channel == "model"]
        samples = [message for message in batch if message.channel == "samples"]
        parts += [(now, model), *((now, [sample]) for sample in samples)]
    return parts


def assert_same_state(found: State, expected: State) -> None:
    """Equal keys; equal values, to rounding where they are parameters."""
    assert found.keys() == expected.keys()
    for place, value in expected.items():
        other = found[place]
        assert value is not None
        assert other is not None
        if place[0] == "model":
            message, same = decode_model(place[2], other), decode_model(place[2], value)
            if isinstance(message, KernelParameters) and isinstance(same, KernelParameters):
                np.testing.assert_allclose(
                    np.frombuffer(message.parameters), np.frombuffer(same.parameters), rtol=1e-12, atol=1e-14
                )
            else:
                assert message == same
        elif place[2].startswith(b"weights/"):
            np.testing.assert_allclose(np.frombuffer(other), np.frombuffer(value), rtol=1e-12, atol=1e-14)
        elif not place[2].startswith((b"client/", b"window/")):
            assert other == value


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_client_laws(mode: str, shards: int, data: st.DataObject) -> None:
    """Protects laws 1, 2, 3 and 5 of the client: lost, doubled or different uploads after a restart would all show here."""
    events = data.draw(client_events(shards))
    first = Run.of(client(mode, shards), events)
    # 1
    second = Run.of(client(mode, shards), events)
    assert second.answers == first.answers
    assert list(second.state.items()) == list(first.state.items())
    # 2
    apart = Run.of(client(mode, shards), samples_one_by_one(events))
    assert_same_state(apart.live, first.live)
    assert summary(apart) == summary(first)
    # 3
    cut = data.draw(st.integers(0, len(events)))
    before = Run.of(client(mode, shards), events[:cut])
    role = before.restored(client(mode, shards))
    models = [message for _, batch in events[:cut] for message in batch if message.channel == "model"]
    caught_up = role.receive(models, events[max(cut - 1, 0)][0])
    assert not caught_up
    after = Run(role, [], dict(before.state)).play(events[cut:])
    assert_same_sends([*before.sends, *after.sends], first.sends)
    assert before.reasons + after.reasons == first.reasons
    assert_same_state(renumbered(after.live), renumbered(first.live))
    # 5
    repeated = [(now, [*[m for m in batch if m.channel == "model"], *batch]) for now, batch in events]
    assert Run.of(client(mode, shards), repeated).answers == first.answers


def renumbered(state: State) -> State:
    """A restored client counts its waiting samples from the first that is left: only their order has a meaning."""
    result: State = {}
    counts: dict[bytes, int] = {}
    for channel, partition, key in sorted(state):
        value = state[channel, partition, key]
        if key.startswith(b"waiting/"):
            name = key[len(b"waiting/") + 8 :]
            counts[name] = counts.get(name, 0) + 1
            result[channel, partition, b"waiting/%d/" % counts[name] + name] = value
        else:
            result[channel, partition, key] = value
    return result


def assert_same_sends(found: list[Send], expected: list[Send]) -> None:
    """The same messages in the same order under each key; between keys the order is free, and numbers are equal to rounding."""

    def by_key(sends: list[Send]) -> dict[Any, list[bytes]]:
        places: dict[Any, list[bytes]] = {}
        for send in sends:
            places.setdefault((send.channel, send.key, send.partition), []).append(send.value)
        return places

    one, other = by_key(found), by_key(expected)
    assert one.keys() == other.keys()
    for place, values in other.items():
        assert len(one[place]) == len(values)
        for mine, value in zip(one[place], values, strict=True):
            if place[0] == "updates":
                update, same = UPDATE.decode(mine), UPDATE.decode(value)
                assert replace_update(update, steps=b"") == replace_update(same, steps=b"")
                np.testing.assert_allclose(np.frombuffer(update.steps), np.frombuffer(same.steps), rtol=1e-9, atol=1e-12)
            else:
                prediction, twin = (msgspec.json.decode(text, type=Prediction) for text in (mine, value))
                assert prediction.prediction == pytest.approx(twin.prediction, rel=1e-9, abs=1e-12)
                assert msgspec.structs.replace(prediction, prediction=0.0) == msgspec.structs.replace(twin, prediction=0.0)


def summary(run: Run) -> tuple[list[Any], list[Any]]:
    """What was sent: the numbers of a batch may differ by rounding, and the order of two clients in it by who was taken first."""
    updates = [UPDATE.decode(send.value) for send in run.sends if send.channel == "updates"]
    return (
        sorted((u.client, u.sequence, u.model_version, u.samples, u.kernels) for u in updates),
        sorted(str(send.key) for send in run.sends if send.channel == "predictions"),
    )


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("lockstep", [True, False])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_server_laws(lockstep: bool, shards: int, data: st.DataObject) -> None:
    """Protects laws 1, 2, 3 and 5 of the server: a model that depends on how updates were polled or on a restart shows here."""
    events = data.draw(server_events(shards))
    first = Run.of(server(lockstep, shards), events)
    # 1
    second = Run.of(server(lockstep, shards), events)
    assert second.answers == first.answers
    assert list(second.state.items()) == list(first.state.items())
    # 2
    apart = Run.of(server(lockstep, shards), one_by_one(events))
    assert_same_state(apart.live, first.live)
    assert apart.reasons == first.reasons
    # 3
    cut = data.draw(st.integers(0, len(events)))
    before = Run.of(server(lockstep, shards), events[:cut])
    after = Run(before.restored(server(lockstep, shards)), [], dict(before.state)).play(events[cut:])
    assert before.answers + after.answers == first.answers
    assert after.live == first.live
    # 5
    accepted = [(now, [m for m in batch if (m, "malformed") not in first.reasons]) for now, batch in events]
    doubled = [(now, [message for message in batch for _ in range(2)]) for now, batch in accepted]
    assert Run.of(server(lockstep, shards), doubled).live == Run.of(server(lockstep, shards), accepted).live


WRONG: dict[str, Callable[[Update], Update]] = {
    "kernel": lambda u: replace_update(u, kernels=(KERNELS,), steps=bytes(16 * FEATURES)),
    "shape": lambda u: replace_update(u, steps=u.steps + bytes(8)),
    "not_finite": lambda u: replace_update(u, kernels=(0,), steps=encode_array(np.full((1, 2 * FEATURES), np.nan))),
    "forged": lambda u: replace_update(u, client="somebody-else"),
    "configuration": lambda u: replace_update(u, fingerprint=FINGERPRINT + 1),
    "malformed": lambda u: replace_update(u, model_version=10_000),
}


def replace_update(original: Update, **changes: Any) -> Update:
    fields = {name: getattr(original, name) for name in original.__struct_fields__}
    return Update(**(fields | changes))


@pytest.mark.parametrize("reason", WRONG)
@pytest.mark.parametrize("lockstep", [True, False])
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_wrong_update_is_refused_alone(lockstep: bool, reason: str, data: st.DataObject) -> None:
    """Protects law 4: one broken or hostile client must not change the model nor take its neighbours' updates with it."""
    events = data.draw(server_events(1))
    clean = Run.of(server(lockstep, 1), events)
    at = data.draw(st.integers(0, len(events) - 1))
    sender = update(data.draw(st.integers(0, CLIENTS - 1)), 1000, 0, 0, 1)
    wrong = replace(sender, message=WRONG[reason](sender.message))
    now, batch = events[at]
    place = data.draw(st.integers(0, len(batch)))
    spoilt = [*events[:at], (now, [*batch[:place], wrong, *batch[place:]]), *events[at + 1 :]]
    run = Run.of(server(lockstep, 1), spoilt)
    assert [found for message, found in run.reasons if message is wrong] == [reason]
    assert [pair for pair in run.reasons if pair[0] is not wrong] == clean.reasons
    assert run.live == clean.live


@pytest.mark.parametrize("mode", MODES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_a_wrong_model_record_is_refused_alone(mode: str, data: st.DataObject) -> None:
    """Protects law 4 of the client: what does not fit the federation never reaches its parameters."""
    events = data.draw(client_events(1))
    clean = Run.of(client(mode, 1), events)
    row = encode_array(np.ones(2 * FEATURES))
    reason, message = data.draw(
        st.sampled_from(
            [
                ("kernel", KernelParameters(VERSION, KERNELS, row)),
                ("kernel", KernelParameters(VERSION, -1, row)),
                ("shape", KernelParameters(VERSION, 0, row[:-8])),
                ("not_finite", KernelParameters(VERSION, 0, encode_array(np.full(2 * FEATURES, np.inf)))),
                ("configuration", ShardVersion(VERSION, FINGERPRINT + 1, DIMENSION, 0, 9, 9)),
            ]
        )
    )
    wrong = arrived("model", 0, message)
    run = Run.of(client(mode, 1), [(now, [wrong, *batch]) for now, batch in events])
    assert run.reasons == [(wrong, reason)] * len(events)
    assert run.sends == clean.sends
    assert run.live == clean.live


def test_another_version_of_the_protocol_is_named() -> None:
    """Protects mixed releases: their updates must be told apart before anything else of them is read."""
    value = UPDATE.encode(replace_update(update(0, 1, 0, 0, 1).message, version=VERSION + 1))
    with pytest.raises(PeerError, match="version"):
        UPDATE.decode(value)


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_bounded(mode: str) -> None:
    """Protects law 6: a client too many is refused, a partition with too much waiting asks for no more."""
    role = client(mode, 1, waiting_limit=10)
    names = [f"client-{index}" for index in range(CLIENTS + 1)]
    samples = [arrived("samples", 0, Sample(name, str(n), (0.1, 0.2), 0.5), name.encode()) for n in range(10) for name in names]
    run = Run.of(role, [(1000.0, samples)])
    assert run.reasons == [(sample, "too_many_clients") for sample in samples if sample.message.client == names[-1]]
    assert bool(role.full) == (mode in ("lockstep", "bounded", "lockstep-budget"))
    crowd = [update(index, 1, 0, 0, 1) for index in range(50)]
    heard = Run.of(server(mode.startswith("lockstep"), 1), [(1000.0, crowd)])
    assert len([key for _, _, key in heard.live if key.startswith(b"client/")]) == CLIENTS
    assert [reason for _, reason in heard.reasons] == ["too_many_clients"] * (50 - CLIENTS)
