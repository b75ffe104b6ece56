"""Whether a pause is unusual, compared with the usual ones."""

from __future__ import annotations

import math

import pytest

from streamfl.contract.measurement import Measurement
from streamfl.roles.recent import Recent
from streamfl.roles.rhythm import LEAST, TIMES, UNKNOWN, Rhythm

DAY = 86_400.0


def rhythm_of(*times: float, away_until: float = 0.0) -> Rhythm:
    """Records at these times. A worker that was away until a time reads the earlier ones then."""
    rhythm = Rhythm()
    for when in times:
        rhythm.came(when, max(when, away_until))
    return rhythm


@pytest.mark.parametrize("pause", [1.0, 60.0, 3600.0, DAY])
def test_a_pause_is_unusual_after_three_of_the_usual_ones(pause: float) -> None:
    """Protects daily writers from being called silent after an hour, and writers that send each second from
    being overlooked."""
    rhythm = rhythm_of(*(number * pause for number in range(100)))
    assert rhythm.overdue_at == pytest.approx(99 * pause + TIMES * max(pause, LEAST), abs=10)


def test_a_burst_says_nothing_of_the_pause_that_follows() -> None:
    """Protects a stream with one batch a day from an alert on its first evening and on later ones."""
    burst = [number / 100 for number in range(100)]
    assert rhythm_of(*burst).overdue_at == pytest.approx(TIMES * UNKNOWN, abs=1)
    days = [day * DAY + when for day in range(8) for when in burst]
    assert (rhythm_of(*days).overdue_at or 0) - days[-1] == pytest.approx(3 * DAY, rel=0.01)


def test_an_outage_is_no_rhythm_for_ever() -> None:
    """Protects from a feed's single long outage that would hide all later ones."""
    before, after = range(0, 36_000, 60), range(36_000 + 7200, 36_000 + 7200 + 30 * 7200, 60)
    rhythm = rhythm_of(*map(float, before), *map(float, after))
    assert (rhythm.overdue_at or 0) - max(after) == pytest.approx(TIMES * 60, rel=0.1)


def test_a_worker_that_was_away_takes_its_absence_for_nobodys() -> None:
    """Protects the usual pause from restarts: it follows the times at which records were written."""
    whole = [float(number * 10) for number in range(1000)]
    assert rhythm_of(*whole, away_until=6000.0).longest == rhythm_of(*whole).longest == 10.0


def test_a_clock_that_was_ahead_leaves_no_pause() -> None:
    """Protects a client from a wait until an hour that never was."""
    rhythm = rhythm_of(*(float(number) for number in range(0, 1000, 10)))
    rhythm.came(5e8, 5e8)
    assert rhythm.set_back(1000.0)
    assert rhythm.longest <= 1000.0
    assert (rhythm.overdue_at or 0) <= 1000.0 + TIMES * UNKNOWN
    assert not rhythm.set_back(1000.0)


def test_a_window_says_how_things_stand_only_while_more_comes() -> None:
    """Protects the dashboard from last week's value: it is NaN once the next one is overdue."""
    recent: Recent[float] = Recent()
    for second in range(600):
        recent.extend([1.0], float(second))
    figure = Measurement("rmse_windowed", "gauge", "", 1.0, until=recent.until)
    assert figure.at(630.0).known
    assert not figure.at(700.0).known
    recent.extend([], 800.0)
    assert recent.until < 700.0
    recent.extend([1.0], 900.0)
    assert recent.until > 900.0
    assert Recent[float]().until == 0.0
    assert Measurement("rows", "gauge", "", 1.0).at(math.inf).known
