"""What readers of the predictions learn of single parties' embeddings."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import logit
from vafl.makers import Alignment, make_coordinator

from streamfl.contract.role import Received, Record, Send
from streamfl.encoding.wire import VERSION, encode_array
from streamfl.vafl.functions.heads import LOGISTIC, Head, NetworkHead, SumHead
from streamfl.vafl.functions.networks import DenseNetwork
from streamfl.vafl.messages import Embedding, Prediction

PARTIES, ENTITIES = ("bank", "shop"), 1000
HEADS: dict[str, Head] = {"sum": SumHead(), "linear network": NetworkHead(DenseNetwork([2, 1]))}


def predicted(head: Head, embeddings: NDArray[np.float32], **alignment: Any) -> list[NDArray[np.float64]]:
    """The log-odds of every prediction of each entity, whose parties show it one after the other. embeddings:
    (entities, 2)."""
    role = make_coordinator(
        parties=PARTIES, head=head, loss=LOGISTIC, alignment=Alignment(**alignment), dtype=np.float32
    )
    role.open(0)
    batch = []
    for number, row in enumerate(embeddings):
        for party, value in zip(PARTIES, row, strict=True):
            message = Embedding(VERSION, 0, f"{number}", 1, number + 1, 0, encode_array(value[np.newaxis]))
            batch.append(
                Received(f"embeddings/{party}", message, Record("x", 0, 0, f"{number}".encode(), b""))
            )
    found = defaultdict(list)
    for send in role.receive(batch, 0.0):
        assert isinstance(send, Send)
        one = msgspec.json.decode(send.value, type=Prediction)
        found[int(one.entity)].append(logit(one.prediction))
    return [np.array(found[number]) for number in range(len(embeddings))]


@pytest.mark.parametrize("kind", HEADS)
def test_two_revisions_tell_an_embedding(kind: str) -> None:
    """Protects the warning beside the rights from being forgotten: the log-odds of revision 1 less those of
    revision 0 are one party's embedding, less its mean, and revision 0 is the other's.
    """
    embeddings = np.random.default_rng(1).normal(size=(ENTITIES, 2)).astype(np.float32)
    revisions = predicted(HEADS[kind], embeddings)
    assert {len(one) for one in revisions} == {2}
    first, second = np.array(revisions).T
    of_shop = abs(np.corrcoef(second - first, embeddings[:, 1])[0, 1])
    of_bank = abs(np.corrcoef(first, embeddings[:, 0])[0, 1])
    print(
        f"{kind}: revision 1 less revision 0 with the shop's embedding {of_shop:.4f}, revision 0 with the "
        f"bank's {of_bank:.4f}"
    )
    assert min(of_shop, of_bank) > 0.99


def test_what_is_not_revised_tells_the_first_embedding_unless_all_are_waited_for() -> None:
    """Protects the remedy: without revisions there is one prediction. With a quorum of one it is one party's
    embedding alone, so the quorum has to be all of them, and then it is their sum.
    """
    embeddings = np.random.default_rng(1).normal(size=(ENTITIES, 2)).astype(np.float32)
    found = {}
    for quorum in (1, 2):
        only = predicted(HEADS["sum"], embeddings, revise=False, quorum=quorum)
        assert {len(one) for one in only} == {1}
        found[quorum] = [
            abs(np.corrcoef(np.concatenate(only), embeddings[:, party])[0, 1]) for party in (0, 1)
        ]
    print(
        f"one prediction, with the bank's and the shop's embedding: quorum 1 {found[1]}, quorum 2 {found[2]}"
    )
    assert found[1][0] > 0.99
    assert found[1][1] < 0.1
    # Two of equal spread: each is the half of their sum's variance.
    assert found[2] == pytest.approx([np.sqrt(0.5)] * 2, abs=0.08)
    assert predicted(HEADS["sum"], embeddings[:20], revise=True, quorum=2)[0].shape == (1,)
