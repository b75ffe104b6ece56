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


@pytest.mark.parametrize("seconds", [0, 2, 10])
@pytest.mark.parametrize("pause", [60, 600, 7200, DAY])
def test_a_history_that_was_loaded_at_once_hides_no_stop(seconds: float, pause: float) -> None:
    """Protects the alert about a client whose labels stop soon after its history: the pause between the
    history and the first live record is no usual one."""
    history = [seconds * number / 100 for number in range(101)]
    live = [seconds + pause + number for number in range(400)]
    rhythm = rhythm_of(*history, *live)
    assert (rhythm.overdue_at or 0) - live[-1] < 300


def test_a_history_of_old_records_hides_no_stop() -> None:
    """Protects the same alert where the history has its own times, and ended days before the first live
    record."""
    history = [number * 3600.0 for number in range(700)]
    begun = history[-1] + 10 * DAY
    live = [begun + 60 + number for number in range(400)]
    rhythm = rhythm_of(*history, *live, away_until=begun)
    assert (rhythm.overdue_at or 0) - live[-1] < TIMES * 3600


def test_batches_are_no_stop_once_they_came_again() -> None:
    """Protects streams with a batch in each hour from an alert in each hour: a pause that is far longer than
    the first batch counts until records have come for longer than that batch took."""
    times = [hour * 3600.0 + second for hour in range(48) for second in range(0, 300, 10)]
    rhythm, told = Rhythm(), []
    for when in times:
        if (overdue_at := rhythm.overdue_at) is not None and when >= overdue_at:
            told.append(when)
        rhythm.came(when, when)
    assert told == [3600.0]


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
