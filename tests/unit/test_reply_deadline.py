"""How long a member waits for an answer before it reports a peer as silent."""

from __future__ import annotations

from streamfl.roles.reply_deadline import ReplyDeadline


def test_a_clock_that_was_ahead_makes_nobody_wait_until_its_time_comes_again() -> None:
    """Protects the alarm after the clock is set right: a request with a time in the future counts as made
    now."""
    deadline = ReplyDeadline(patience=10.0)
    deadline.asked(5000.0)
    deadline.look(100.0)
    assert deadline.wake_at == 110.0
    deadline.asked(109.0)
    deadline.look(110.0)
    assert deadline.overdue
