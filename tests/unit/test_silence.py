"""How long a member waits for an answer before it says that a peer has fallen silent."""

from __future__ import annotations

from streamfl.silence import Silence


def test_a_clock_that_was_ahead_makes_nobody_wait_until_its_time_comes_again() -> None:
    """Protects the alarm from a clock that is set right: what was asked in the future counts as asked now."""
    silence = Silence(patience=10.0)
    silence.asked(5000.0)
    silence.look(100.0)
    assert silence.wake_at == 110.0
    silence.asked(109.0)
    silence.look(110.0)
    assert silence.overdue
