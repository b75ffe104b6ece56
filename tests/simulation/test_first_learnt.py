"""How long a stream waits until anything is learnt, with the default settings."""

from __future__ import annotations

import pytest

from benchmarks.first_learnt import SYSTEMS, seconds_to_learn

# At one entity a second. The first two systems have to learn within a minute; the others wait for a table of
# 1,000.
MOST = {"VAFL": 60.0, "FDSKL": 60.0, "quasi-Newton": 1_040.0, "DP Frank-Wolfe": 1_010.0}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_slow_stream_is_learnt_from_soon(system: str) -> None:
    """Protects users with one entity a second: three waits one after the other once took 17 minutes."""
    seconds, labels = seconds_to_learn(system, 1.0)
    assert 0 < seconds <= MOST[system]
    assert labels >= seconds - 40
