"""`streamfl run` of POF-MKL while the end of one of its transactions comes late: nothing is lost, nothing is
doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from end_txn_proxy import EndTxnProxy
from pofmkl.late_end_txn.cases import Case, cluster, run

pytestmark = pytest.mark.broker

CASES = (Case("kafka", slow=True, kill="answered"), Case("kafka+librdkafka", slow=True))


@pytest.fixture(name="three_nodes", scope="module")
def _three_nodes() -> Iterator[tuple[EndTxnProxy, str]]:
    with cluster(3) as found:
        yield found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_sample_is_predicted_once_whenever_an_end_arrives(
    three_nodes: tuple[EndTxnProxy, str], case: Case, tmp_path: Path
) -> None:
    """Protects the promise to users: `streamfl run` loses and doubles nothing, and its changelog counts every
    label once, when the end of one of its transactions arrives amid another. Outputs and changelog go to
    several brokers, of which one has not taken its part then; one worker is killed at that moment. Without
    the mend hundreds are lost or doubled.
    """
    outcome = run(case, *three_nodes, tmp_path, samples=3_000)
    assert outcome.good, outcome
