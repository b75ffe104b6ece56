"""The laws of a role on the server of POF-MKL with each of its steps, over target rows with wrong ones among
them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from largest_settings import written
from pofmkl.laws import test_role_laws as pofmkl_laws
from pofmkl.makers import new_server, staleness

from streamfl.contract.role import BadRecord, Received, Record, Rejection, StateChange
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.pofmkl.learning.gradient_steps import AdaGradStep, StochasticGradientStep
from streamfl.pofmkl.learning.recursive_least_squares import RecursiveLeastSquares
from streamfl.pofmkl.learning.server_steps import AveragedStep, ServerStep
from streamfl.pofmkl.messages import Update, decode_model
from streamfl.pofmkl.server.role import PofmklServer
from streamfl.testing.role_laws import Extreme, RoleLaws, Subject

KERNELS, FEATURES, CLIENTS, FINGERPRINT, TIMEOUT = 3, 2, 3, 77, 30.0
ROW_LENGTH = 2 * FEATURES

# Blocks and snapshots so short that a few rounds cross them.
STEPS: dict[str, Callable[[int], ServerStep]] = {
    "averaged": lambda kernels: AveragedStep(CLIENTS),
    "least-squares": lambda kernels: RecursiveLeastSquares(
        kernels, ROW_LENGTH, leak=1e-2, dtype=np.float64, block=3, blocks_per_snapshot=2
    ),
    "gradient": lambda kernels: StochasticGradientStep(0.5),
    "adagrad": lambda kernels: AdaGradStep(kernels, ROW_LENGTH, 0.2),
}


def server(step: str, lockstep: bool, shards: int) -> PofmklServer:
    return new_server(
        clients=CLIENTS,
        kernels=KERNELS,
        features=FEATURES,
        dimension=2,
        step=STEPS[step],
        fingerprints=(FINGERPRINT,),
        federation={"shards": shards},
        learning={"staleness": staleness(lockstep), "round_timeout_seconds": TIMEOUT, "precision": "float64"},
    )


def update(index: int, sequence: int, version: int, shard: int, shards: int, at: float = 0.0) -> Received:
    """Target rows of one sample, of norms up to 3 and now and then 0."""
    rng = np.random.default_rng([index, sequence, shard])
    owned = np.arange(shard, KERNELS, shards)
    kernels = tuple(int(kernel) for kernel in owned[rng.random(len(owned)) < 0.8])
    features = rng.standard_normal((len(kernels), ROW_LENGTH))
    label = np.clip(2 * rng.standard_normal(), -3, 3) * (rng.random() < 0.9)
    rows = label * features / np.linalg.norm(features, axis=1, keepdims=True)
    message = Update(
        VERSION, FINGERPRINT, 2, f"client-{index}", 1, sequence, version, 1, kernels, encode_array(rows)
    )
    key = message.client.encode()
    return Received("updates", message, Record("updates", shard, 0, key, b"", timestamp=at))


def wrong(**changes: Any) -> Received:
    """A good update with something in it changed."""
    sent = update(1, 1000, 0, 0, 2)
    return Received("updates", msgspec.structs.replace(sent.message, **changes), sent.record)


def of_norm(norm: float) -> Received:
    return wrong(kernels=(0,), steps=encode_array(np.full((1, ROW_LENGTH), norm / np.sqrt(ROW_LENGTH))))


def wrong_updates(step: str) -> list[tuple[Received, str]]:
    refused = [
        (of_norm(np.nan), "not_finite"),
        (of_norm(1e200), "not_finite"),
        (wrong(steps=bytes(8)), "shape"),
    ]
    if step != "averaged":
        refused += [(of_norm(3.1), "too_large"), (of_norm(1e17), "too_large")]
    return refused


def close(one: bytes, other: bytes) -> bool:
    return len(one) == len(other) and np.allclose(
        np.frombuffer(one), np.frombuffer(other), rtol=1e-8, atol=1e-10
    )


def same(channel: str, key: bytes | None, one: bytes, other: bytes) -> bool:
    """Equal but for rounding, and for what a slot says of the rows that were taken together."""
    if channel == "model":
        left, right = (msgspec.structs.asdict(decode_model(key, value)) for value in (one, other))
        return close(left.pop("parameters", b""), right.pop("parameters", b"")) and left == right
    if key is not None and key.startswith(b"step/"):
        left_values, right_values = msgspec.msgpack.decode(one), msgspec.msgpack.decode(other)
        if key.startswith(b"step/slot/"):
            del left_values[2], right_values[2]
        return left_values[:-1] == right_values[:-1] and close(left_values[-1], right_values[-1])
    if key == b"published":
        # Digests are of numbers that differ by rounding, and turns and copies are by the commit.
        return bool(msgspec.msgpack.decode(one)[:3] == msgspec.msgpack.decode(other)[:3])
    return len(one) == len(other) if key is not None and key.startswith(b"copy/") else one == other


def anybody(step: str, shards: int) -> Callable[[Extreme], list[tuple[str, Record]]]:
    """Two clients' rows of the first kernel of each shard, as large as the step takes them."""
    largest = 3.0 if step != "averaged" else np.inf

    def records(extreme: Extreme) -> list[tuple[str, Record]]:
        number = float(np.clip(extreme.number, -largest, largest)) / np.sqrt(ROW_LENGTH)
        row = encode_array(np.full(ROW_LENGTH, number))
        return [
            written(
                name.encode(),
                [VERSION, FINGERPRINT, 2, name, extreme.whole, extreme.whole, 0, extreme.whole, [shard], row],
                "updates",
                shard,
            )
            for name in (extreme.name, "b")
            for shard in range(shards)
        ]

    return records


def subject(step: str, lockstep: bool, shards: int) -> Subject:
    """What is restored goes on to the last bit: ``same_restored`` stays equality."""
    return Subject(
        make=lambda: server(step, lockstep, shards),
        traffic=pofmkl_laws.server_traffic(update, shards, rounds=6, others=4),
        anybody=anybody(step, shards),
        decode=pofmkl_laws.SERVER_DECODE,
        bad=wrong_updates(step),
        repeatable=["updates"],
        same=same,
    )


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(
            subject(step, lockstep, shards), id=f"{step}-{'lockstep' if lockstep else 'async'}-{shards}"
        )
        for number, step in enumerate(STEPS)
        # Each step has both ways to wait and both numbers of shards, not each with each: it is the time that
        # they take.
        for lockstep, shards in [(True, 1 + number % 2), (False, 2 - number % 2)]
    ],
)
class TestServer(RoleLaws):
    """A model that depends on how rows were polled, on a restart or on a hostile client would show here."""


@pytest.mark.parametrize("lockstep", [True, False])
def test_least_squares_go_on_over_many_snapshots(lockstep: bool) -> None:
    """Protects law 3 where generated traffic is too short: a worker that is replaced after every round,
    beside one that stays."""
    stayed = server("least-squares", lockstep, 1)
    stayed.open(0)
    remembered: dict[tuple[str, bytes], bytes] = {}
    for version in range(30):
        moved = server("least-squares", lockstep, 1)
        moved.open(0)
        for (channel, key), value in remembered.items():
            moved.restore(StateChange(channel, 0, key, value))
        batch = [
            update(index, version + 1, version if lockstep else 0, 0, 1, 1000.0 + version)
            for index in range(CLIENTS)
        ]
        assert moved.receive(batch, 1000.0 + version) == stayed.receive(batch, 1000.0 + version) == []
        changes = list(stayed.changed_state())
        assert list(moved.changed_state()) == changes
        for change in changes:
            remembered.pop((change.channel, change.key), None)
            if change.value is not None:
                remembered[change.channel, change.key] = change.value
    assert sum(key.startswith(b"step/snapshot/") for _, key in remembered) == KERNELS


def test_a_row_of_the_largest_label_is_accepted_whatever_its_rounding() -> None:
    """Protects honest clients with extreme labels in single precision; a state that no step wrote is refused
    all the same."""
    step = StochasticGradientStep(0.5)
    role = new_server(clients=2, kernels=1, features=100, dimension=1, step=lambda kernels: step)
    role.open(0)
    for sequence in range(1, 200):
        features = np.random.default_rng(sequence).standard_normal(200).astype(np.float32)
        row = np.float32(3) * (features / np.linalg.norm(features))
        message = Update(VERSION, 0, 1, "a", 1, sequence, 0, 1, (0,), encode_array(row))
        assert role.receive([Received("updates", message, Record("updates", 0, 0, b"a", b""))], 0.0) == []
    too_long = msgspec.structs.replace(message, sequence=1000, steps=encode_array(np.float32(1.01) * row))
    (refused,) = role.receive([Received("updates", too_long, Record("updates", 0, 0, b"a", b""))], 0.0)
    assert isinstance(refused, Rejection)
    assert refused.error.reason == "too_large"
    with pytest.raises(BadRecord, match="malformed"):
        role.restore(StateChange("state", 0, b"step/slot/0/1", b""))
