"""The first training begins with as many entities as were asked for, and says what it waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import BEGIN, ClosedLoop
from quasi_newton.laws.test_closed_loop import federation
from quasi_newton.laws.test_retraining import EVERY, SECOND, WHOLE, batches_of, go_on, grow, parties

from streamfl.quasi_newton.messages import Answer, FirstAnswer, content_of, read_content
from streamfl.quasi_newton.tools.standing import coordinator_standing, party_standing
from streamfl.quasi_newton.training.training_progress import FAILED, TRAINED

ROWS = 350
# As in the defaults: as many entities as a batch has, of which a tenth is held out.
TIGHT: dict[str, Any] = {
    "learning": {"batch": ROWS, "epochs": 2},
    "alignment": {"entities": ROWS, "held_out": 0.1},
    "retraining": {"every_seconds": EVERY, "entities": 50},
}


def begun(hosts: int, **sections: dict[str, Any]) -> ClosedLoop:
    loop = federation(hosts, **{**TIGHT, **sections})
    grow(loop, 0, ROWS, missing=0)
    loop.settle()
    return loop


def test_held_out_entities_delay_no_training() -> None:
    """Protects the defaults: with 1,000 entities known a training waited for about 110 more, for a tenth is
    held out.

    Every party computes the same batch from what it is told; weights are those of the arithmetic alone over
    that batch."""
    loop = begun(2)
    assert [loop.party(name).progress.phase for name in parties(loop)] == [TRAINED] * 3
    guest = loop.party("g")
    learnt = [name for row in range(ROWS) if not guest.is_held_out(name := f"customer {row}")]
    assert 0.8 * ROWS < len(learnt) < ROWS
    assert [sorted(own) for own in batches_of(loop)] == [sorted(learnt)] * 3
    trace = loop.direct()
    for number, name in enumerate(parties(loop)):
        assert np.array_equal(loop.party(name).iterates.own.weights, trace.weights[number][-1])


def test_later_batches_have_as_many_rows_as_the_first() -> None:
    """Protects labels and agreement: batches stay as they were divided, through restarts and another
    training."""
    loop = begun(1, learning={"batch": ROWS, "epochs": 2, "min_batch": 64})
    first = batches_of(loop)
    size = len(first[0])
    for name in ("h1", "g", "c"):
        loop.restart(name)
    grow(loop, ROWS, WHOLE, missing=0)
    # Too few for another batch of as many rows: they wait.
    go_on(loop)
    assert loop.party("g").progress.run == 2
    assert batches_of(loop) == first
    loop.write_table(WHOLE + size, 3, 1, 0, WHOLE, WHOLE + size)
    go_on(loop)
    for name in parties(loop):
        loop.restart(name)
        assert (loop.party(name).rows.batches.size, loop.party(name).rows.batches.count) == (size, 2)
    second = batches_of(loop)
    assert second[0][:size] == first[0]
    assert second[0] == second[1]
    assert len(set(second[0])) == 2 * size


def test_a_host_that_needs_more_rows_is_heard() -> None:
    """Protects labels: with many columns a small batch would show them, and the host says so before the batch
    is fixed for life."""
    bins: dict[str, Any] = {"preprocessing": {"method": "quantile-bins"}}
    loop = ClosedLoop(
        {name: settings_of(name, 1, **TIGHT, **(bins if name == "h1" else {})) for name in ("g", "h1", "c")}
    )
    grow(loop, 0, ROWS, missing=0)
    loop.settle()
    assert [loop.party(name).progress.phase for name in parties(loop)] == [FAILED] * 2
    assert "too few for a batch of 350" in str([member.role.trouble for member in loop.members.values()])
    assert batches_of(loop) == [[], []]
    grow(loop, ROWS, SECOND, missing=0)
    loop.settle()
    assert loop.party("g").progress.run > 1
    assert loop.party("g").rows.batches.size == ROWS


def test_an_answer_of_an_earlier_release_asks_for_whole_batches() -> None:
    """Protects federations whose members are updated one after the other: who does not say what it needs gets
    whole batches."""
    assert read_content(content_of(Answer(b"own", b"twice")), FirstAnswer) == FirstAnswer(b"own", b"twice", 0)


def test_what_is_waited_for_is_said() -> None:
    """Protects the operator: nobody could see why nothing is learnt, nor how far it is."""
    loop = federation(1, **TIGHT)
    grow(loop, 0, 40, missing=0)
    loop.settle()
    figures = loop.figures("g")
    assert (figures["known_entities"], figures["missing_entities"]) == (40, 310)
    assert (
        loop.members["g"].role.backlog
        == "knows 40 of 350 entities with columns and a label (alignment.entities)"
    )
    assert loop.members["h1"].role.backlog == "knows 40 of 350 entities with columns (alignment.entities)"
    assert (
        loop.members["c"].role.backlog == "0 of 2 parties are ready for the first training: waits for g, h1"
    )
    for name, standing in (("g", party_standing), ("h1", party_standing), ("c", coordinator_standing)):
        place: Any = loop.members[name]
        told = standing(place.settings, None, {}, place.role)  # type: ignore[arg-type, operator]
        assert [one.text for one in told if one.respect == "waiting"] == [place.role.backlog]
    # The host has all, the guest lacks labels.
    loop.write_table(ROWS, 3, 1, 0, 40)
    loop.members["g"].unread.clear()
    loop.step("h1")
    assert "begins 5 s after that, or after the last of a history" in str(loop.members["h1"].role.backlog)
    loop.now += 10.0
    loop.settle()
    assert "waits for the coordinator, and for parties" in str(loop.members["h1"].role.backlog)
    assert loop.members["c"].role.backlog == "1 of 2 parties are ready for the first training: waits for g"
    loop.restart("g")
    assert "knows 40 of 350" in str(loop.members["g"].role.backlog)
    grow(loop, 40, ROWS + 10, missing=0)
    loop.settle()
    assert [member.role.backlog for member in loop.members.values()] == [None] * 3
    assert loop.figures("g")["missing_entities"] == 0


def test_a_stream_that_never_pauses_is_learnt_from() -> None:
    """Protects everybody with a live stream: one entity a second for ever, and no training began, for a pause
    was waited for.

    The first one begins 5 seconds after enough are known; so does one after a failure, and one on the
    schedule begins in time."""
    sections: dict[str, Any] = {
        "learning": {"batch": 100, "epochs": 2, "min_batch": 64},
        "alignment": {"entities": 100, "settle_seconds": 5.0, "held_out": 0.1},
        "retraining": {"every_seconds": 60.0, "entities": 20},
    }
    loop = federation(1, **sections)
    begins: list[float] = []
    for row in range(WHOLE - 200):
        grow(loop, row, row + 1, missing=0)
        for _ in range(40):
            if not sum([loop.step(name) for name in loop.members]):
                break
        if loop.party("g").progress.run > len(begins):
            begins.append(loop.now)
            if len(begins) == 1:
                # The first one comes to nothing.
                loop.party("g").fail("on purpose")
                loop.commit("g")
        loop.now += 1.0
        if row % 50 == 3:
            for name in loop.members:
                loop.restart(name)
    # The hundredth entity came at 99.
    assert begins[0] - BEGIN == 99 + 5
    assert 0 < begins[1] - begins[0] <= 2 * 5 + 1
    assert len(begins) >= 4
    assert [loop.party(name).progress.phase for name in parties(loop)] == [TRAINED] * 2
