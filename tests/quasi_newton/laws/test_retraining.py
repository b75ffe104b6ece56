"""Trainings that follow one another: what stays for life, what goes on from before, and when another one
begins."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from quasi_newton.federations import Secrets, settings_of
from quasi_newton.laws.closed_loop import ClosedLoop, refused
from quasi_newton.laws.test_closed_loop import federation, outcome

from streamfl.quasi_newton.messages import Aligned, Blinded, Message, content_of, place_of
from streamfl.quasi_newton.rows.alignment import set_digest
from streamfl.quasi_newton.training.host import HostTask
from streamfl.quasi_newton.training.training_progress import ALIGNING, FAILED, TRAINED

pytestmark = pytest.mark.long

WHOLE, FIRST, SECOND = 600, 350, 560
EVERY = 1000.0
AGAIN: dict[str, Any] = {"retraining": {"every_seconds": EVERY}, "learning": {"epochs": 2}}


def grow(loop: ClosedLoop, first: int, rows: int, missing: int = 7) -> None:
    """More entities come to every party."""
    loop.write_table(rows, 3, len(loop.members) - 2, missing, first, WHOLE)


def parties(loop: ClosedLoop) -> list[str]:
    return [name for name in loop.members if name != "c"]


def begun(hosts: int, secrets: Secrets | None = None, **sections: dict[str, Any]) -> ClosedLoop:
    """Trained once."""
    loop = federation(hosts, secrets, **{**AGAIN, **sections})
    grow(loop, 0, FIRST)
    loop.settle()
    assert [loop.party(name).progress.phase for name in parties(loop)] == [TRAINED] * (hosts + 1)
    return loop


def go_on(loop: ClosedLoop) -> None:
    """What comes is taken, and the time for another training comes."""
    loop.settle()
    loop.now += EVERY
    loop.settle()


def batches_of(loop: ClosedLoop) -> list[list[str]]:
    """By party, names in the order of the rows."""
    return [list(loop.party(name).learnt) for name in parties(loop)]


def models(loop: ClosedLoop) -> dict[str, Any]:
    found = {name: loop.party(name).trained for name in parties(loop)}
    return {name: model.weights for name, model in found.items() if model is not None}


def weights_of(loop: ClosedLoop, name: str) -> Any:
    model = loop.party(name).trained
    assert model is not None
    return model.weights


def points_asked(loop: ClosedLoop, run: int) -> list[int]:
    """How many points the guest sent in a run, by message."""
    guest, found = loop.party("g"), []
    for sender, topic, value in loop.writes:
        if sender == "g" and topic.endswith(".residuals"):
            message: Message = guest.given.codec.decode(value)
            if message.kind == "blinded" and message.run == run:
                content = guest.given.links[topic.split(".")[1]].open(
                    message.content, topic, place_of(message)
                )
                found.append(len(msgspec.msgpack.decode(content, type=Blinded).points) // 32)
    return found


def test_another_training_goes_on_from_the_last_model() -> None:
    """Protects labels and time: old batches stay as they are and new ones come behind them, from the weights
    of the last model."""
    loop = begun(2)
    before, starts = batches_of(loop), models(loop)
    prepared = {name: loop.party(name).rows.preparation for name in parties(loop)}
    kept_rows = {name: loop.party(name).rows.inputs() for name in parties(loop)}
    signs = loop.party("g").rows.signs
    # Columns and labels that change later would make another equation of the same batch.
    for name in before[0]:
        loop.write("h1-samples", name, msgspec.json.encode({"x0": 9.0, "x1": 9.0, "x2": 9.0}))
        loop.write("labels", name, b'{"y": 1}')
    grow(loop, FIRST, SECOND)
    go_on(loop)
    assert np.array_equal(loop.party("g").rows.signs[:300], signs)
    after = batches_of(loop)
    assert all(one == after[0] for one in after)
    assert [len(one) for one in (before[0], after[0])] == [300, 500]
    assert after[0][:300] == before[0]
    # Only entities that are in no batch are asked for: who knows what was common is not told again.
    assert points_asked(loop, 2) == [FIRST - 7 - 300 + SECOND - FIRST] * 2
    for name in parties(loop):
        party = loop.party(name)
        model, old = party.trained, prepared[name]
        assert model is not None
        assert old is not None
        assert (model.version, model.preparation.encode()) == (2, old.encode())
        assert np.array_equal(party.rows.inputs()[:300], kept_rows[name])
    trace = loop.direct(starts)
    for number, name in enumerate(parties(loop)):
        assert np.array_equal(weights_of(loop, name), trace.model[number])
    assert [member.role.counts.trainings for member in loop.members.values()] == [2] * 4


def test_nothing_begins_without_something_new() -> None:
    """Protects the members' time: no other training for the same entities, for too few, before its time, or
    where it is off."""
    loop = begun(1)
    go_on(loop)
    assert loop.party("g").progress.run == 1
    grow(loop, FIRST, FIRST + 99, missing=0)
    go_on(loop)
    assert loop.party("g").progress.run == 1
    grow(loop, FIRST + 99, FIRST + 100, missing=0)
    loop.settle()
    assert loop.party("g").progress.run == 2
    grow(loop, FIRST + 100, WHOLE, missing=0)
    loop.settle()
    assert loop.party("g").progress.run == 2
    once = begun(1, retraining={})
    grow(once, FIRST, WHOLE)
    go_on(once)
    assert once.party("g").progress.run == 1


def test_what_is_new_may_fill_no_batch() -> None:
    """Protects the schedule: new entities that the host lacks fill nothing, and the old batches are learnt
    from again."""
    loop = begun(1)
    starts = models(loop)
    columns = {f"x{number}": 0.5 for number in range(3)}
    for number in range(100):
        loop.write("g-samples", f"stranger {number}", msgspec.json.encode(columns))
        loop.write("labels", f"stranger {number}", b'{"y": 1}')
    go_on(loop)
    assert [len(one) for one in batches_of(loop)] == [300, 300]
    trace = loop.direct(starts)
    assert all(
        np.array_equal(weights_of(loop, name), trace.model[number])
        for number, name in enumerate(parties(loop))
    )
    assert loop.party("g").progress.run == 2


def test_what_comes_twice_changes_nothing(secrets: Secrets) -> None:
    """Protects batches and models: every record twice, over two trainings, is the same; nobody answers twice
    or is refused, and nothing is decrypted twice."""
    once = {"learning": {"epochs": 1}}
    usual, loop = begun(1, secrets, **once), federation(1, secrets, **{**AGAIN, **once})
    loop.copies = 2
    grow(loop, 0, FIRST)
    loop.settle(1)
    for one in (usual, loop):
        grow(one, FIRST, SECOND)
        go_on(one)
    assert batches_of(loop) == batches_of(usual)
    assert outcome(loop) == outcome(usual)
    assert set(loop.writes) == set(usual.writes)
    assert len(loop.writes) == len(set(loop.writes))
    counts = [one.members["c"].role.counts for one in (loop, usual)]
    assert counts[0].decryptions == counts[1].decryptions > 0
    assert counts[0].repeated_messages > 0


def test_a_clock_that_was_ahead_does_not_put_a_training_off() -> None:
    """Protects the schedule: an end that is remembered from a clock ahead of ours is the end of now."""
    loop = begun(1)
    guest = loop.party("g")
    grow(loop, FIRST, SECOND)
    loop.settle()
    guest.set_back(loop.now - 500.0)
    assert guest.readiness.due_at == loop.now - 500.0 + EVERY
    loop.commit("g")
    loop.restart("g")
    assert loop.party("g").readiness.due_at == loop.now - 500.0 + EVERY


def test_a_question_of_a_run_that_came_to_nothing_is_no_hindrance() -> None:
    """Protects the next training: a host that failed before it could answer answers the next question, which
    comes early too."""
    loop = begun(1)
    grow(loop, FIRST, SECOND)
    loop.settle()
    loop.now += EVERY
    host = loop.members["h1"]
    for name in ("c", "g") * 20:
        if any(topic == "f.h1.residuals" for topic, _ in host.unread):
            break
        loop.step(name)
    task = loop.party("h1")
    assert isinstance(task, HostTask)
    task._asked.write((1).to_bytes(8, "big") + bytes(32))
    host.unread.reverse()
    loop.step("h1", 1)
    assert task.progress.run == 1
    loop.settle()
    assert [len(one) for one in batches_of(loop)] == [500, 500]


def test_new_batches_that_are_none_are_refused() -> None:
    """Protects a host from a guest that divides entities otherwise: each is refused for its reason, and
    changes nothing."""
    loop = begun(1)
    grow(loop, FIRST, SECOND)
    loop.settle()
    loop.now += EVERY
    host, topic = loop.members["h1"], "f.h1.residuals"
    decode = host.inputs[topic][1]
    for name in ("h1", "c", "g") * 100:
        if host.unread and host.unread[0][0] == topic and decode(host.unread[0][1]).kind == "aligned":
            break
        loop.step(name, 1)
    record = host.unread[0][1]
    message: Message = decode(record)
    party = loop.party("h1")
    link = party.given.links["g"]
    places = np.frombuffer(
        msgspec.msgpack.decode(link.open(message.content, topic, place_of(message)), type=Aligned).places,
        "<u4",
    )
    assert len(places) == 200
    names = party.rows.candidates
    all_of_it = [f"{place // 100} {names[at]}" for place, at in enumerate(places)]
    others = (places[:-1], np.append(places[:-1], places[0]), np.append(places[:-1], len(names)))
    wrong = []
    for own, digest in (
        *((one, None) for one in (*others, places[::-1], places[:100], places[:0])),
        # As if no batch was kept from before: all of them could be others then.
        (places, set_digest(all_of_it, party.exchange.session(""))),
    ):
        changed = msgspec.structs.replace(message, alignment=digest or message.alignment)
        content = content_of(Aligned(np.asarray(own, "<u4").tobytes()))
        sealed = link.seal(content, topic, place_of(changed))
        wrong.append(("alignment", msgspec.structs.replace(changed, content=sealed)))
    assert len(list(refused(host, record, wrong, loop.now))) == 7
    loop.settle()
    assert [len(one) for one in batches_of(loop)] == [500, 500]


def test_the_oldest_batch_gives_way_as_a_whole() -> None:
    """Protects memory, and labels: nobody who was in a batch comes into another, at either party, after a
    restart either."""
    loop = begun(1, alignment={"limit": 400})
    first = batches_of(loop)[0]
    grow(loop, FIRST, SECOND)
    go_on(loop)
    kept = batches_of(loop)
    assert kept[0] == kept[1]
    assert (len(kept[0]), kept[0][:200]) == (400, first[100:300])
    assert [loop.members[name].role.counts.expired_batches for name in ("g", "h1", "c")] == [1, 1, 0]
    for name in parties(loop):
        loop.restart(name)
        party = loop.party(name)
        assert len(party.learnt) == 400
        assert all(gone in party.learnt for gone in first[:100])
        assert "nobody" not in party.learnt
        assert sum(key.startswith(b"batch/0/") for key in loop.members[name].state) == 0
    for number, name in enumerate(first[:100]):
        for party in ("g", "h1"):
            loop.write(
                f"{party}-samples", name, msgspec.json.encode({"x0": float(number), "x1": 0.0, "x2": 1.0})
            )
        loop.write("labels", name, b'{"y": 0}')
    loop.settle()
    assert set(first[:100]).isdisjoint(loop.party("g").table.candidates())
    assert set(first[:100]).isdisjoint(loop.party("h1").table.candidates())


def test_keyed_hashes_are_of_both_or_of_none(secrets: Secrets) -> None:
    """Protects the option: only the two parties can make their hashes, and who compares otherwise is
    refused."""
    hashed: dict[str, Any] = {**AGAIN, "alignment": {"method": "keyed-hash"}}
    mixed = ClosedLoop(
        {
            name: settings_of(name, 2, secrets, **(AGAIN if name == "h1" else hashed))
            for name in ("g", "h1", "h2", "c")
        }
    )
    links = mixed.party("g").given.links
    assert len({links["h1"].alignment_key, links["h2"].alignment_key}) == 2
    grow(mixed, 0, FIRST)
    mixed.settle(refused=True)
    assert any("alignment" in text for text in mixed.rejections())


def test_topics_are_read_in_any_order_and_members_end_at_any_time() -> None:
    """Protects what a place in one topic says of another: over two trainings, with kills, it is the same
    models and batches."""
    random = np.random.default_rng(0)
    sections = {"alignment": {"limit": 400}}
    usual = begun(2, **sections)
    grow(usual, FIRST, SECOND)
    go_on(usual)
    loop = federation(2, **AGAIN, **sections)
    for first, rows, wait in ((0, FIRST, 5.0), (FIRST, SECOND, EVERY)):
        grow(loop, first, rows)
        rest = 0
        while rest < 3:
            busy = [
                name
                for name, member in loop.members.items()
                if member.unread or ((at := member.role.wake_at) is not None and at <= loop.now)
            ]
            if not busy:
                rest, loop.now = rest + 1, loop.now + wait
                continue
            name = str(random.choice(busy))
            unread = loop.members[name].unread
            topics = sorted({topic for topic, _ in unread})
            chosen = str(random.choice(topics)) if topics else ""
            ordered = sorted(unread, key=lambda one: one[0] != chosen)
            unread.clear()
            unread.extend(ordered)
            most = (
                sum(topic == chosen for topic, _ in ordered) if chosen.endswith(("samples", "labels")) else 1
            )
            if random.random() < 0.1:
                loop.step(name, most, lost=True)
            else:
                loop.step(name, most)
    assert [loop.party(name).progress.run for name in parties(loop)] == [2] * 3
    assert batches_of(loop) == batches_of(usual)
    assert outcome(loop) == outcome(usual)
    assert loop.rejections() == []


def test_a_training_that_failed_is_tried_again_with_something_new() -> None:
    """Protects the federation from standing still for ever, and from trying the same for ever."""
    sections: dict[str, Any] = {"learning": {"batch": 340, "min_batch": 340}, "alignment": {"entities": 340}}
    loop = federation(1, **sections)
    grow(loop, 0, FIRST)
    loop.settle()
    assert all(loop.party(name).progress.phase == FAILED for name in parties(loop))
    loop.now += 10 * EVERY
    loop.settle()
    loop.restart("g")
    loop.settle()
    assert loop.party("g").progress.run == 1
    grow(loop, FIRST, FIRST + 20, missing=0)
    loop.settle()
    assert [loop.party(name).progress.phase for name in parties(loop)] == [TRAINED] * 2
    assert loop.party("g").progress.run == 2
    assert [member.role.trouble for member in loop.members.values()] == [None] * 3


@pytest.mark.parametrize(("rows", "missing"), [(FIRST, 7), (300, 0)])
def test_a_training_that_failed_is_tried_again_with_other_settings(rows: int, missing: int) -> None:
    """Protects the operator: what the log tells to change may be changed, and is tried with the same entities
    at once.

    Also where all entities are in batches, so that the parties have none to compare.
    """
    fast: dict[str, Any] = {"output_bound": 16.0, "learning_rate": 40.0, "largest_step": 40.0, "epochs": 4}
    loop = federation(1, learning=fast)
    grow(loop, 0, rows, missing)
    loop.settle()
    assert "beyond the bound" in str([member.role.trouble for member in loop.members.values()])
    before = batches_of(loop)
    assert len(before[0]) == 300
    for name in ("c", "h1", "g"):
        loop.members[name].settings = settings_of(
            name, 1, learning={**fast, "learning_rate": 0.4, "largest_step": 0.1}
        )
        loop.restart(name)
    loop.settle()
    assert [loop.party(name).progress.phase for name in parties(loop)] == [TRAINED] * 2
    assert batches_of(loop) == before
    loop.now += 10 * EVERY
    loop.settle()
    assert loop.party("g").progress.run == 2


@pytest.mark.parametrize("order", ["failure first", "beginning first"])
def test_batches_are_the_same_though_a_run_failed_before_all_knew_them(order: str) -> None:
    """Protects labels: a host that hears of the failure first learns the batches all the same. Others may
    have learnt from them.

    order: what the host reads first: the failure; the next beginning, too.
    """
    loop = federation(2, learning={"min_support": 60}, preprocessing={"method": "quantile-bins"})
    grow(loop, 0, FIRST)
    second = loop.members["h2"]

    def hold_back() -> bool:
        """Whether the batches of run 1 have come to h2, which reads other topics before."""
        held = [one for one in second.unread if one[0] == "f.h2.residuals"]
        decode = second.inputs["f.h2.residuals"][1]
        if not any(decode(record).kind == "aligned" for _, record in held):
            return False
        rest = [one for one in second.unread if one[0] != "f.h2.residuals"]
        second.unread.clear()
        second.unread.extend([*rest, *held])
        progress = loop.party("h2").progress
        return bool(rest) or (
            progress.run == 1 and (order == "beginning first" or progress.phase == ALIGNING)
        )

    def turn() -> bool:
        moved = False
        for name in loop.members:
            if name == "h2" and hold_back():
                rest = sum(topic != "f.h2.residuals" for topic, _ in second.unread)
                moved |= bool(rest) and loop.step("h2", rest)
                moved |= bool(not rest) and loop.step("h2", 0)
            else:
                moved |= loop.step(name)
        return bool(moved)

    grown = False
    for _ in range(200):
        if not turn():
            loop.now += 5.0
            if loop.party("g").progress.phase == FAILED and not grown:
                grow(loop, FIRST, FIRST + 20, missing=0)
                grown = True
    assert loop.party("g").progress.run == 2
    assert [len(one) for one in batches_of(loop)] == [300] * 3
    assert batches_of(loop)[0] == batches_of(loop)[1] == batches_of(loop)[2]
    assert loop.rejections() == []
