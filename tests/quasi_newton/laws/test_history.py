"""Topics that hold a whole run of another federation of the same name."""

from __future__ import annotations

import pytest
from quasi_newton.federations import Secrets
from quasi_newton.laws.test_closed_loop import federation
from quasi_newton.laws.test_eavesdroppers import LEARNING, ROWS
from quasi_newton.laws.test_retraining import parties

from streamfl.quasi_newton import messages
from streamfl.quasi_newton.training.training_progress import TRAINED


@pytest.mark.parametrize(("same", "rows"), [(False, ROWS), (False, ROWS - 60), (True, ROWS)])
def test_a_whole_run_of_another_federation_stops_none_for_good(
    monkeypatch: pytest.MonkeyPatch, secrets: Secrets, same: bool, rows: int
) -> None:
    """Protects a federation whose coordinator is led through a training by what another run's parties said.
    The parties waited for it in that training for ever; and parts of long messages, whose numbers repeat
    from run to run, were passed over as known. same: the data are those of the other run. With fewer rows a
    host answers points of the other run, which the guest has to tell."""
    monkeypatch.setattr(messages, "FRAGMENT_BYTES", 300)
    learning = {**LEARNING, "epochs": 1}
    other = federation(1, secrets, learning=learning)
    other.write_table(ROWS, 3, 1)
    other.settle()
    loop = federation(1, secrets, learning=learning)
    for _, topic, value in other.committed:
        if topic.startswith("f.") and not topic.endswith(("predictions", "model")):
            loop.write(topic, None, value)
    loop.settle(refused=True)
    assert loop.members["c"].role.task(0).run.number == 1
    first = 0 if same else ROWS
    for begin in (first, first + rows):
        loop.write_table(begin + rows, 3, 1, first=begin, whole=3 * ROWS)
        loop.now += 1000
        loop.settle(refused=True)
    assert [loop.party(one).progress.run for one in parties(loop)] == [2, 2]
    assert [loop.party(one).progress.phase for one in parties(loop)] == [TRAINED] * 2
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3
    assert not any("messages in parts" in member.role.waiting for member in loop.members.values())
