"""The law of runs: how the messages of a step are cut into runs changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from streamfl.contract.batch import Batch, Run, runs_of
from streamfl.contract.role import Received, receive_at_once
from streamfl.testing.subjects import RoleRun, Subject, Traffic, answers

__all__ = ["law_runs"]


def law_runs(subject: Subject, traffic: Traffic, data: st.DataObject) -> None:
    """9. A role that gets each step's messages as one list, and one that gets them in any runs, give the same
    answers, state, notices and figures, bit for bit and in the same order; also after both were restored.

    data: draws the cuts, and after how many steps both are restored.
    """
    listed, cut = RoleRun(subject, traffic), RoleRun(subject, traffic)
    restored_at = data.draw(st.integers(0, len(traffic.batches)))
    for number, (now, batch) in enumerate(traffic.batches):
        if number == restored_at and number:
            before = traffic.batches[:number]
            listed, cut = (run.restored(before[-1][0], before) for run in (listed, cut))
        parts = Batch(list(_parts(subject, batch, data)))
        assert _told(listed, now, batch) == _told(cut, now, parts), (
            f"step {number} gives something else if it comes as {list(map(type, parts.parts))}"
        )


def _parts(subject: Subject, batch: Sequence[Received], data: st.DataObject) -> Iterator[Sequence[Received]]:
    """The batch in runs and lists of any length."""
    for run in runs_of(batch):
        rows = list(run)
        while rows:
            size = data.draw(st.integers(1, len(rows)))
            part, rows = rows[:size], rows[size:]
            if data.draw(st.booleans()):
                together = subject.together.get(run.channel, list)
                messages = together([one.message for one in part])
                yield Run(run.channel, messages, [one.record for one in part])
            else:
                yield part


def _told(run: RoleRun, now: float, batch: Sequence[Received]) -> object:
    """All that shows what a role made of a batch."""
    role = run.role
    replies = answers(receive_at_once(role, batch, now))
    changes = list(role.changed_state())
    run.changes += changes
    figures = [(one.name, one.labels, repr(one.at(now).value)) for one in role.measure()]
    notices, full = list(role.notices()), list(role.full)
    return replies, changes, figures, notices, role.wake_at, full, dict(role.waiting), role.trouble
