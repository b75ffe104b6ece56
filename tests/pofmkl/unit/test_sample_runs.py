"""Samples that are taken together give what they give one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pofmkl.makers import new_client

from streamfl.contract.batch import Batch
from streamfl.contract.role import Received, Record, Rejection, Send
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.records.samples import Sample

DIMENSION, EXPIRY = 2, 640.0
FREQUENCIES = np.random.default_rng(4).standard_normal((3, 4, DIMENSION))

# The client's number, the label, and the seconds since the sample before; None: the record has no time.
SAMPLES = st.tuples(
    st.integers(0, 4),
    st.one_of(st.none(), st.floats(-0.5, 1.5)),
    st.one_of(st.none(), st.sampled_from([0.0, 0.5, 4.0, 11.0, 700.0])),
)
# How far the clock goes between two steps; it may be set back.
STEPS = st.lists(
    st.tuples(st.sampled_from([-20.0, 0.0, 1.0, 6.0, 800.0]), st.lists(SAMPLES, max_size=12)), max_size=6
)
# The third sample of the second step moves the time that was reached, and no rhythm.
TIME_GOES_ON = [(0.0, [(0, 0.5, 0.0)]), (0.0, [(0, 0.5, 4.0)] * 3)]
# A rhythm is changed by an earlier clock, beside a new client. Then a record comes that was written long
# before.
CLOCK_IS_SET_BACK = [
    (0.0, [(0, 0.5, 0.0)]),
    (0.0, [(0, 0.5, 0.0)]),
    (-20.0, [(1, 0.5, 0.0), (0, 0.5, 700.0)]),
    (10.0, [(0, 0.5, -699.0)]),
]
LEARNING: list[dict[str, Any]] = [
    {},
    {"staleness": "lockstep"},
    {"staleness": "bounded", "max_staleness": 2},
    {"catch_up_samples": 4},
]


def client(learning: dict[str, Any]) -> PofmklClient:
    learner = PaperLearner(
        features=FeatureMap(FREQUENCIES), learning_rate=0.5, regularisation=0.01, loss=SQUARE
    )
    # The fourth client finds no seat before another is idle.
    made = new_client(learner, clients=3, federation={"client_expiry_seconds": EXPIRY}, learning=learning)
    for partition in range(2):
        made.open(partition)
    return made


def told(role: PofmklClient, batch: Sequence[Received], now: float) -> object:
    replies = [
        (reply.channel, reply.key, reply.value, reply.partition, reply.headers)
        if isinstance(reply, Send)
        else (reply.received, str(reply.error))
        for reply in role.receive(batch, now)
        if isinstance(reply, (Send, Rejection))
    ]
    state = [(change.partition, change.key, change.value) for change in role.changed_state()]
    figures = [(figure.name, figure.labels, figure.at(now).value) for figure in role.measure()]
    return replies, state, figures, list(role.notices()), role.wake_at, role.full, role.waiting, role.trouble


@pytest.mark.parametrize("learning", LEARNING, ids=str)
@given(steps=STEPS, cut=st.integers(1, 5))
@example(steps=TIME_GOES_ON, cut=5)
@example(steps=CLOCK_IS_SET_BACK, cut=5)
def test_samples_in_a_row_are_taken_as_one_by_one(learning: dict[str, Any], steps: Any, cut: int) -> None:
    """How a poll is cut is chance. Whatever follows from it would not be the same after a crash."""
    together, by_cuts, singly = client(learning), client(learning), client(learning)
    singly._samples = None
    offset, now, written = 0, 10_000.0, 9_000.0
    for passed, drawn in steps:
        now += passed
        batch = []
        for number, label, later in drawn:
            written += later or 0.0
            name, partition = f"c{number}", number % 2
            record = Record(
                "samples", partition, offset, name.encode(), b"", (), 0.0 if later is None else written
            )
            batch.append(
                Received("samples", Sample(name, f"s{offset}", (0.1 * number, 0.01 * offset), label), record)
            )
            offset += 1
        expected = told(singly, batch, now)
        assert told(together, batch, now) == expected
        cuts = Batch([batch[start : start + cut] for start in range(0, len(batch), cut)])
        assert told(by_cuts, cuts, now) == expected
        expected = told(singly, [], now)
        assert told(together, [], now) == told(by_cuts, [], now) == expected
