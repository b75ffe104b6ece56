"""Processes in virtual time: a killed process does nothing more, and an error ends the run."""

from __future__ import annotations

import pytest

from streamfl.testing.faults.schedule import Killed, Scheduler


def test_a_killed_process_does_nothing_more() -> None:
    """Protects the meaning of a crash: the process's next actions do not happen, and others go on."""
    scheduler = Scheduler(7)
    done: list[tuple[str, float]] = []

    def body(name: str, seconds: float) -> None:
        for _ in range(3):
            scheduler.sleep(seconds)
            done.append((name, round(scheduler.now - 1000.0, 1)))

    victim = scheduler.spawn("victim", lambda: body("victim", 1.0))
    scheduler.spawn("other", lambda: body("other", 2.0))
    scheduler.run(1001.5)
    victim.kill()
    scheduler.run(1010.0)
    scheduler.close()
    assert done == [("victim", 1.0), ("other", 2.0), ("other", 4.0), ("other", 6.0)]


def test_what_a_process_raises_is_raised_by_the_run() -> None:
    """Protects against silence: an unexpected error in a process fails the run, unlike a kill."""

    def fails() -> None:
        scheduler.sleep(1.0)
        raise ValueError("no such thing")

    def dies() -> None:
        raise Killed

    scheduler = Scheduler(7)
    scheduler.spawn("dying", dies)
    scheduler.run(1005.0)
    scheduler.spawn("failing", fails)
    with pytest.raises(ValueError, match="no such thing"):
        scheduler.run(1010.0)
    scheduler.close()
