"""`streamfl run` of POF-MKL while the end of one of its transactions comes late: nothing is lost, nothing is
doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from end_txn_proxy import EndTxnProxy
from pofmkl.late_end_txn.cases import Case, cluster, run

pytestmark = pytest.mark.broker

CASES = (Case("kafka", kill="answered"), Case("kafka+librdkafka"))


@pytest.fixture(name="one_node", scope="module")
def _one_node() -> Iterator[tuple[EndTxnProxy, str]]:
    with cluster(1) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_sample_is_predicted_once_whenever_an_end_arrives(
    one_node: tuple[EndTxnProxy, str], case: Case, tmp_path: Path
) -> None:
    """Protects the promise to users: `streamfl run` loses and doubles nothing, and its changelog counts every
    label once, when the end of one of its transactions arrives amid another; one worker is killed at that
    moment. Without the mend hundreds are lost or doubled. ``python -m pofmkl.late_end_txn`` tries the same on
    several brokers.
    """
    outcome = run(case, *one_node, tmp_path, samples=2_000)
    assert outcome.good, outcome
