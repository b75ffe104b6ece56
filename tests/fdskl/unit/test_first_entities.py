"""When a party has seen enough entities to standardise its columns by, and what of that is lost with half a
commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from fdskl.makers import life_of, lives, make_worker, settings_of

from streamfl.contract.role import Received, Record, Rejection, Send, StateChange
from streamfl.encoding.wire import VERSION
from streamfl.fdskl.messages import INCARNATION, PHASES, ROUND, FeatureRange, Incarnation, Round
from streamfl.fdskl.party.role import FdsklParty
from streamfl.records.labels import Label
from streamfl.records.samples import Sample

WANTED, BEGIN, REPLY = 20, 1000.0, 0.7
ROWS = np.exp(2 * np.random.default_rng(4).normal(size=(60, 2)))
KNOWN = np.ones(len(ROWS), np.bool_)
State = dict[bytes, bytes]


def worker(party: str, number: int = 0, state: State | None = None, **sections: dict[str, Any]) -> FdsklParty:
    """One life of a party of two."""
    settings = settings_of(
        party, 2, standardisation={"first_entities": WANTED, "transform": "auto"}, **sections
    )
    role = make_worker(settings, lives(int(party[1:]), number))
    role.open(0)
    for key, value in (state or {}).items():
        role.restore(StateChange("state", 0, key, value))
    return role


def record(channel: str, message: Any, value: bytes = b"", key: str = "") -> Received:
    return Received(channel, message, Record(channel, 0, 0, key.encode(), value, (), BEGIN))


def samples(first: int, count: int) -> list[Received]:
    names = [f"e{number}" for number in range(first, first + count)]
    rows = ROWS[first : first + count].tolist()
    return [
        record("samples", Sample(name, "s", tuple(row), None), key=name)
        for name, row in zip(names, rows, strict=True)
    ]


def life_of_p0(role: FdsklParty) -> Received:
    life = life_of(0, 50)
    message = Incarnation(VERSION, role.settings.fingerprint, "p0", life.number, life.public, 1, 0)
    return record("incarnations", message, INCARNATION.encode(message))


def asked(role: FdsklParty, life: int = 0, number: int = 0) -> Received:
    """A round about an entity that is known."""
    numbers = [life_of(0, 50).number, life_of(1, life).number]
    message = Round(
        VERSION, role.settings.fingerprint, "p0", numbers, number, PHASES, 1.0, [FeatureRange(0, 3)], ["e0"]
    )
    return record("rounds", message, ROUND.encode(message))


def sends(replies: Sequence[Send | Rejection], kind: str) -> int:
    assert not any(isinstance(one, Rejection) for one in replies), replies
    return sum(isinstance(one, Send) and one.channel.startswith(kind) for one in replies)


def remember(role: FdsklParty, state: State) -> None:
    for change in role.changed_state():
        state.pop(change.key, None)
        if change.value is not None:
            state[change.key] = change.value


def applied(role: FdsklParty) -> list[list[float]]:
    found: list[list[float]] = role.partition(0).standardisation.apply(ROWS, KNOWN).tolist()
    return found


def test_a_round_waits_for_so_many_entities() -> None:
    """Protects a model's scale from the first few entities: what is frozen stays for ever."""
    role = worker("p1")
    role.receive([life_of_p0(role), *samples(0, WANTED - 1), asked(role)], BEGIN)
    role.changed_state()
    assert sends(role.receive(samples(WANTED - 1, 1), BEGIN + 0.1), "sums") == 1
    assert role.partition(0).standardisation.seen == WANTED


def test_a_round_waits_no_longer_where_no_more_come() -> None:
    """Protects small tables and quiet streams, where so many never come; and busy ones from an answer before
    that is clear."""
    role = worker("p1")
    role.receive([life_of_p0(role), *samples(0, 5), asked(role)], BEGIN)
    role.receive(samples(5, 1), BEGIN + 0.5)
    # A round is not waited with any longer than for columns.
    assert role.wake_at == pytest.approx(BEGIN + REPLY)
    assert sends(role.receive([], BEGIN + REPLY - 0.01), "sums") == 0
    assert not role.partition(0).standardisation.frozen
    assert sends(role.receive([], BEGIN + REPLY), "sums") == 0
    assert role.partition(0).standardisation.frozen
    assert role.wake_at is not None
    assert role.wake_at <= BEGIN + REPLY
    assert sends(role.receive([], BEGIN + REPLY), "sums") == 1


def test_a_round_that_comes_after_a_long_silence_is_answered_soon() -> None:
    """Protects whoever learns from a finished table from waiting at every party once more."""
    role = worker("p1")
    role.receive([life_of_p0(role), *samples(0, 5)], BEGIN)
    assert role.wake_at is not None
    assert role.wake_at > BEGIN + 5
    role.receive([asked(role)], BEGIN + 5)
    assert role.wake_at == BEGIN + 5
    assert sends(role.receive([], BEGIN + 5), "sums") == 0
    assert sends(role.receive([], BEGIN + 5), "sums") == 1


def test_the_first_iteration_waits_for_entities() -> None:
    """Protects the first model from a scale of the few entities whose labels came first, and small tables
    from waiting for ever."""
    role = worker("p0")
    own = life_of(1, 9)
    message = Incarnation(VERSION, role.settings.fingerprint, "p1", own.number, own.public, 1, 0)
    began = record("incarnations", message, INCARNATION.encode(message))
    labels = [
        record("labels", Label(f"e{number}", f"e{number}", number % 2.0), key=f"e{number}")
        for number in range(4)
    ]
    # The other party is heard of later, so that nobody is asked before who knows these entities.
    role.receive([*samples(0, 4), *labels], BEGIN)
    role.receive([], BEGIN + 0.1)
    assert role.active_partition(0).labelled.labels == 4
    assert dict(role.waiting) == {"iterations": 1}
    assert [
        one.text for one in role.notices() if one.reason == "first_entities" and "there are 4" in one.text
    ]
    # While samples come there may be more; but a stream of one a minute would take a day to bring them.
    for step in range(1, 7):
        role.receive(samples(3 + step, 1), BEGIN + step / 10)
        role.receive([], BEGIN + step / 10)
        assert not role.partition(0).standardisation.frozen
    # Labels count from the tick on in which their entities were predicted.
    assert role.wake_at == pytest.approx(BEGIN + 0.1 + REPLY, abs=1e-6)
    assert sends(role.receive([], BEGIN + REPLY + 0.09), "rounds") == 0
    assert sends(role.receive([began], BEGIN + REPLY + 0.09), "rounds") == 0
    assert sends(role.receive([], BEGIN + REPLY + 0.11), "rounds") == 1
    assert role.partition(0).standardisation.seen == 10
    busy = worker("p0")
    busy.receive([*samples(0, 4), *labels], BEGIN)
    busy.receive([], BEGIN + 0.1)
    assert sends(busy.receive([began, *samples(4, WANTED)], BEGIN + 0.2), "rounds") == 1
    assert busy.partition(0).standardisation.seen == WANTED


def test_no_answer_outlives_what_it_was_computed_with() -> None:
    """Protects a model from features of two scales. With at_least_once a commit may be done in part: what is
    sent is out, and what is remembered is not. So wherever that happens, whoever goes on has the scale of
    every answer that got out.
    """
    for early, more in ((5, []), (5, samples(5, 3)), (WANTED - 2, samples(WANTED - 2, 10)), (WANTED, [])):
        later = early + len(more)
        first = worker("p1")
        steps: list[tuple[float, list[Received]]] = [
            (0.0, [life_of_p0(first), *samples(0, early)]),
            (0.1, [asked(first), *more]),
            *((at, []) for at in (REPLY + 0.1, REPLY + 0.1, REPLY + 0.2)),
            (REPLY + 0.3, samples(later, 10)),
        ]
        answers = 0
        for lost in range(len(steps)):
            role, state, out = worker("p1"), State(), []
            for number, (after, batch) in enumerate(steps[: lost + 1]):
                if sends(role.receive(batch, BEGIN + after), "sums"):
                    out.append(applied(role))
                if number < lost:
                    remember(role, state)
            answers += len(out)
            # What was read in that step is read again, together with what has come meanwhile.
            again = [one for _, batch in steps[lost:] for one in batch if one.channel == "samples"]
            other = worker("p1", 5, state)
            other.receive(
                [life_of_p0(other), *again, *samples(later + 10, 20), asked(other, 5, 1)], BEGIN + 50
            )
            for _ in range(3):
                other.receive([], BEGIN + 60)
            assert other.partition(0).standardisation.frozen
            for one in out:
                assert one == applied(other), f"{early} entities, half of step {lost}"
        assert answers > 0
