"""What a stream waits for before anything is learnt, with the default settings."""

from __future__ import annotations

import pytest

from benchmarks.first_learnt import SYSTEMS, seconds_to_learn

# At one entity a second. The first two are to have learnt within a minute; the others wait for a table of 1,000.
MOST = {"VAFL": 60.0, "FDSKL": 60.0, "quasi-Newton": 1_150.0, "DP Frank-Wolfe": 1_010.0}


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_slow_stream_is_learnt_from_soon(system: str) -> None:
    """Protects users with one entity a second: three walls one behind the other made one wait for 17 minutes."""
    seconds, labels = seconds_to_learn(system, 1.0)
    assert 0 < seconds <= MOST[system]
    assert labels >= seconds - 40


def test_quasi_newton_begins_on_a_stream_without_end_where_it_need_not_settle() -> None:
    """Protects what the page says to whoever has such a stream."""
    make, topic = SYSTEMS["quasi-Newton"]
    members = make()
    for name, settings in members.items():
        alignment = settings.alignment.model_copy(update={"settle_seconds": 0.0})  # type: ignore[attr-defined]
        members[name] = settings.model_copy(update={"alignment": alignment})
    SYSTEMS["at once"] = (lambda: members, topic)
    try:
        seconds, labels = seconds_to_learn("at once", 10.0)
    finally:
        del SYSTEMS["at once"]
    assert labels < 1_100
    assert seconds < 110.0
