"""A client's byte budget, judged by the bytes that it really sends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pofmkl.makers import new_client

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array, encoded_size
from streamfl.identity import SEAL_BYTES
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.bandwidth import UpdateCost
from streamfl.pofmkl.client.role import StepTrace
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.pofmkl.messages import AWAITED, UPDATE, KernelParameters, ShardVersion, Update
from streamfl.records.samples import Sample

KERNELS, FEATURES = 6, 8
FREQUENCIES = np.random.default_rng(1).standard_normal((KERNELS, FEATURES, 2))
NAME = "client-1"
ROW_BYTES = 2 * FEATURES * 8

SEALED = (("seal", bytes(33)),)
"""The header of a sealed update: a byte of form, two names of keys, a code."""

TIMES = st.lists(st.tuples(st.floats(0.0, 2.5), st.integers(0, 3), st.booleans()), min_size=5, max_size=40)
"""Seconds since the last event, the samples that come, and whether the model changes."""


class Run:
    """A client driven over events; keeps when which bytes left it and what it learnt."""

    def __init__(
        self, rate: float, staleness: int | None, lockstep: bool, shards: int, seal_bytes: int = 0
    ) -> None:
        self.steps: list[StepTrace] = []
        self.sent: list[tuple[float, int]] = []
        self.updates: list[Update] = []
        self.shards = shards
        self.version = 0
        self.now = 1_700_000_000.0
        self.seal_bytes = seal_bytes
        self.cost = UpdateCost(NAME, ROW_BYTES, shards, lockstep, seal_bytes)
        self.depth = max(rate, float(self.cost.bytes_for(1)))
        bounded = {"staleness": "bounded", "max_staleness": staleness}
        self.client = new_client(
            PaperLearner(
                features=FeatureMap(FREQUENCIES), learning_rate=0.1, regularisation=1e-3, loss=SQUARE
            ),
            clients=1,
            federation={"seed": 3, "shards": shards},
            learning={"staleness": "lockstep"} if lockstep else {} if staleness is None else bounded,
            uplink={"budget_bytes_per_second": rate},
            encode=lambda prediction: b"",
            seal_bytes=seal_bytes,
        )
        self.client.trace = self.steps.append
        self.client.open(0)

    def play(self, events: list[tuple[float, int, bool]]) -> None:
        for number, (seconds, samples, model_changes) in enumerate(events):
            self.now += seconds
            batch: list[Received] = []
            if model_changes:
                self.version += 1
                for shard in range(self.shards):
                    parameters = KernelParameters(
                        VERSION, shard, encode_array(np.full(2 * FEATURES, 0.01 * self.version))
                    )
                    marker = ShardVersion(VERSION, 0, 2, shard, self.version, self.version)
                    batch += [self.received("model", shard, message) for message in (parameters, marker)]
            for index in range(samples):
                batch.append(
                    self.received("samples", 0, Sample(NAME, f"{number}-{index}", (0.1 * number, -0.2), 0.5))
                )
            self.take(batch)

    def received(self, channel: str, partition: int, message: Any) -> Received:
        return Received(channel, message, Record(channel, partition, 0, NAME.encode(), b""))

    def take(self, batch: list[Received]) -> None:
        for send in self.client.receive(batch, self.now):
            assert isinstance(send, Send)
            if send.channel == "updates":
                # As it leaves: a seal is one header.
                headers = (("seal", bytes(self.seal_bytes - len("seal") - 4)),) if self.seal_bytes else ()
                self.sent.append((self.now, encoded_size(send.key, send.value, headers)))
                self.updates.append(UPDATE.decode(send.value))

    def measured(self, name: str) -> float:
        return sum(figure.value for figure in self.client.measure() if figure.name == name)

    def assert_never_overdrawn(self, rate: float) -> None:
        """A second bucket, on the bytes that left at the time they left."""
        level, at = self.depth, 1_700_000_000.0
        for when, size in self.sent:
            level = min(self.depth, level + rate * (when - at)) - size
            at = when
            assert level >= -1e-3


@pytest.mark.parametrize(
    ("staleness", "lockstep", "shards"),
    [(None, False, 2), (3, False, 1), (1, True, 2)],
)
@given(events=TIMES, rate=st.floats(60.0, 3000.0), seal_bytes=st.sampled_from([0, SEAL_BYTES]))
@settings(max_examples=60, deadline=None)
def test_no_span_of_time_holds_more_bytes_than_the_bucket(
    staleness: int | None,
    lockstep: bool,
    shards: int,
    events: list[tuple[float, int, bool]],
    rate: float,
    seal_bytes: int,
) -> None:
    """Protects the promise to the user, on encoded bytes with key, seal and framing, at whatever times
    samples and models come."""
    run = Run(rate, staleness, lockstep, shards, seal_bytes)
    run.play(events)
    run.assert_never_overdrawn(rate)
    assert run.measured("update_bytes") == sum(size for _, size in run.sent)
    assert run.measured("update_bytes") <= run.measured("update_budget_bytes") + 1e-3


@given(events=TIMES, rate=st.floats(60.0, 600.0))
@settings(max_examples=100, deadline=None)
def test_what_the_budget_forbids_is_dropped_and_counted(
    events: list[tuple[float, int, bool]], rate: float
) -> None:
    """Protects unbiasedness: labels of a skipped upload must not travel with a later one, and the operator
    must see the skips."""
    run = Run(rate, None, False, 1)
    run.play(events)
    run.now += 5.0
    run.take([])
    allowed = [step for step in run.steps if step.sent.any()]
    assert sum(update.samples for update in run.updates) == len(allowed)
    begun = run.client.snapshot()[0, NAME].uploads_begun if run.steps else 0
    assert run.measured("skipped_updates") == begun - len(run.updates)
    assert (run.measured("skipped_updates") > 0) == (len(allowed) < len(run.steps))


def test_nothing_is_sent_late() -> None:
    """Protects the budget's meaning: bytes that were not there when an upload began never make it leave
    afterwards."""
    run = Run(100.0, None, False, 1)
    # The first upload empties the bucket; the second second's labels find too little, and ten quiet seconds
    # fill it.
    run.play(
        [
            (0.0, 1, False),
            (1.0, 0, False),
            (0.0, 2, False),
            (0.9, 3, False),
            (10.0, 0, False),
            (0.0, 4, False),
            (1.0, 0, False),
        ]
    )
    assert [update.samples for update in run.updates] == [1, 4]
    assert run.measured("skipped_updates") == 1


def test_kernels_follow_from_the_budget() -> None:
    """Protects M = floor(budget / cost), at most N: a richer client sends more kernels, and never more than
    there are."""
    sent = []
    for rate in (300.0, 500.0, 700.0, 5000.0):
        run = Run(rate, 1, True, 1)
        run.play([(0.0, 1, False)])
        (update,) = run.updates
        sent.append(len(update.kernels))
        most = max(count for count in range(KERNELS + 1) if run.cost.bytes_for(count) <= run.depth)
        assert len(update.kernels) in (most, KERNELS % most or most)
    assert sent == sorted(sent)
    assert sent[0] < sent[-1] == KERNELS


@given(
    client=st.text(min_size=1, max_size=40),
    kernels=st.lists(st.integers(0, 70_000), unique=True, max_size=60),
    shards=st.integers(1, 4),
    numbers=st.tuples(*[st.integers(0, 2**53)] * 4),
    row_bytes=st.sampled_from([8, 800, 1600]),
    notify_all=st.booleans(),
    sealed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_cost_is_an_upper_bound_and_a_close_one(
    client: str,
    kernels: list[int],
    shards: int,
    numbers: tuple[int, int, int, int],
    row_bytes: int,
    notify_all: bool,
    sealed: bool,
) -> None:
    """Protects the bucket from an encoding larger than was reserved, and the user from a budget that is half
    wasted."""
    size = 0
    messages = 0
    for shard in range(shards):
        chosen = tuple(sorted(kernel for kernel in kernels if kernel % shards == shard))
        if chosen or notify_all:
            epoch, sequence, version, samples = numbers
            update = Update(
                VERSION,
                2**53,
                16,
                client,
                epoch,
                sequence,
                version,
                samples,
                chosen,
                bytes(row_bytes * len(chosen)),
            )
            size += encoded_size(client.encode(), UPDATE.encode(update), SEALED if sealed else ())
            messages += 1
    cost = UpdateCost(client, row_bytes, shards, notify_all, SEAL_BYTES if sealed else 0)
    reserved = cost.bytes_for(len(kernels))
    assert size <= reserved
    if messages == min(shards, len(kernels)) or notify_all:
        # A message may or may not say that its sender waits.
        slack = 60 + encoded_size(None, None, AWAITED)
        assert reserved - size <= slack * messages + 5 * len(kernels)


@given(budget=st.floats(0.0, 20_000.0), shards=st.integers(1, 4), notify_all=st.booleans())
def test_the_most_kernels_are_found(budget: float, shards: int, notify_all: bool) -> None:
    """Protects the search for M against being off by one at its ends."""
    cost = UpdateCost(NAME, ROW_BYTES, shards, notify_all)
    fitting = [count for count in range(1, 52) if cost.bytes_for(count) <= budget]
    assert cost.kernels_within(budget, 51) == max(fitting, default=0)


SETTINGS = st.sampled_from([None, None, None, 0.0, 3600.0, -3600.0])
"""How far ahead the clock is set, if it is set."""


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 300.0), SETTINGS), max_size=40))
def test_a_clock_that_jumps_adds_one_bucket_at_most(steps: list[tuple[float, float, float | None]]) -> None:
    """Protects the promise of bytes a second: whoever's clock is ahead and set right sends a bucket more, not
    an hour's.

    And it protects the client: by the seconds that passed since the clock was set right, its bucket is full
    again.
    """
    name = "a"
    role = Run(100.0, 3, False, 1).client
    rate, clock = 100.0, 0.0
    bucket = role._registry.register((0, name), 1_000_000.0).bucket
    assert bucket is not None
    real = taken = ahead = jumps = 0.0
    for seconds, amount, setting in steps:
        real += seconds
        if setting is not None:
            jumps += setting > ahead
            ahead = setting
        clock = 1_000_000.0 + real + ahead
        # The tick that a worker gives where the clock was set back.
        role.receive([], clock)
        assert bucket.filled_at <= clock
        if bucket.take(amount, clock):
            taken += amount
        assert taken <= bucket.depth * (1 + jumps) + rate * real + 1e-3
    assert bucket.available(clock + bucket.depth / rate + 1e-3) >= bucket.depth - 1e-3
