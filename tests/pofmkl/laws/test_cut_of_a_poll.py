"""A client's sums are the same to the last bit, however its samples are cut into polls."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from pofmkl.makers import new_client

from streamfl.contract.role import Received, Record, Send
from streamfl.kernels import SQUARE, FeatureMap
from streamfl.pofmkl.client.role import PofmklClient
from streamfl.pofmkl.learning.paper_learner import PaperLearner
from streamfl.records.samples import Sample

CLIENTS, NOW = 3, 10_000.0
FREQUENCIES = np.random.default_rng(4).standard_normal((3, 4, 2))
# Sums of round numbers are exact in any order.
LABELS = st.none() | st.integers(1, 1_000).map(math.sin)
# The number of a sample's client, and the sample's label.
SAMPLES = st.lists(st.tuples(st.integers(0, CLIENTS - 1), LABELS), min_size=1, max_size=40)


class RowByRow(FeatureMap):
    """The last bits of a matrix product depend on how many rows it has, so here it has one."""

    def predict(self, inputs: Any, parameters: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([super(RowByRow, self).predict(one[None], parameters) for one in inputs])


def client() -> PofmklClient:
    learner = PaperLearner(
        features=RowByRow(FREQUENCIES), learning_rate=0.5, regularisation=0.01, loss=SQUARE
    )
    made = new_client(learner, clients=CLIENTS, uplink={"kernels_per_upload": 2})
    made.open(0)
    return made


def outcome(polls: list[list[Received]]) -> tuple[dict[str, list[bytes]], dict[bytes, bytes | None]]:
    """The records that were sent, by channel and in order of their value, and what is remembered."""
    role = client()
    sent: dict[str, list[bytes]] = {}
    remembered: dict[bytes, bytes | None] = {}
    for now, poll in [*((NOW, poll) for poll in polls), (NOW + 1_000.0, [])]:
        for reply in role.receive(poll, now):
            assert isinstance(reply, Send)
            sent.setdefault(reply.channel, []).append(reply.value)
        remembered |= {change.key: change.value for change in role.changed_state()}
    return {channel: sorted(values) for channel, values in sent.items()}, remembered


@given(drawn=SAMPLES, cuts=st.sets(st.integers(1, 39)))
def test_a_cut_changes_no_bit(drawn: list[tuple[int, float | None]], cuts: set[int]) -> None:
    """A crash cuts a poll elsewhere. Weights, losses and steps are added sample after sample, as one by one,
    so they must not show it."""
    batch = []
    for offset, (number, label) in enumerate(drawn):
        name = f"c{number}"
        record = Record("samples", 0, offset, name.encode(), b"", (), NOW)
        message = Sample(name, f"s{offset}", (0.1 * number, 0.01 * offset), label)
        batch.append(Received("samples", message, record))
    places = [0, *sorted(cut for cut in cuts if cut < len(batch)), len(batch)]
    polls = [batch[start:end] for start, end in pairwise(places)]
    whole = outcome([batch])
    assert "predictions" in whole[0]
    assert outcome(polls) == whole
    assert outcome([[one] for one in batch]) == whole
