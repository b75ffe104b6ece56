"""The laws of a role on guest and host that score: traffic is what they heard since a training, cut into
batches in any way."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import msgspec
import pytest
from quasi_newton.federations import settings_of
from quasi_newton.laws.closed_loop import ClosedLoop
from quasi_newton.laws.scoring import parties, predictions, write_entity
from quasi_newton.laws.test_role_laws import traffic, users

from streamfl.contract.role import Received, StateChange
from streamfl.quasi_newton.messages import Message
from streamfl.quasi_newton.roles import ROLES
from streamfl.roles.partitioned_role import PartitionedRole
from streamfl.testing.role_laws import RoleLaws, Subject

CHANNELS = {"g": "answers/h1", "h1": "questions"}


def settings(name: str) -> Any:
    learning = {"batch": 40, "min_batch": 40, "min_support": 2, "epochs": 1}
    scoring = {"calibration_entities": 5, "quantum": 1 / 8}
    return settings_of(name, 1, columns=1, learning=learning, alignment={"entities": 40}, scoring=scoring)


@cache
def small_training() -> ClosedLoop:
    """A small training from its beginning to its end, for all members."""
    loop = ClosedLoop({one: settings(one) for one in ("g", "h1", "c")})
    loop.write_table(64, 1, 1, missing=2)
    loop.until(lambda: loop.party("g").trained is not None and loop.party("h1").trained is not None)
    assert not loop.members["g"].role.counts.questions
    return loop


@cache
def after_training(name: str) -> dict[bytes, bytes]:
    """What a member remembers at the end of a small training, of entities but the last few."""
    loop = small_training()
    return {
        key: value
        for key, value in loop.members[name].state.items()
        if not key.startswith(b"entity/")
        or key in (b"entity/customer 61", b"entity/customer 62", b"entity/customer 63")
    }


class Trained(PartitionedRole[Any]):
    """A role whose partition opens with a model: what is remembered comes on top of it."""

    name: str

    def open(self, partition: int) -> None:
        super().open(partition)
        for key, value in after_training(self.name).items():
            self.restore(StateChange("state", partition, key, value))


def trained(name: str) -> Trained:
    own = settings(name)
    role = ROLES[own.role.kind].build(own)
    role.__class__ = Trained
    assert isinstance(role, Trained)
    role.name = name
    return role


@cache
def heard(name: str) -> list[tuple[float, list[Received]]]:
    """All that a member hears in two sessions, the second with new entities, and in one that finds
    nothing."""
    loop = ClosedLoop({one: settings(one) for one in ("g", "h1")})
    # The training was over before.
    loop.now += 100.0
    for one, member in loop.members.items():
        member.role = trained(one)
        member.role.open(0)
    for number in range(2):
        write_entity(loop, f"early {number}", {one: [0.5 * number] for one in parties(loop)}, number % 2)
    write_entity(loop, "only one's", {name: [0.0]}, None)
    while len(predictions(loop)) < 5:
        loop.now += 0.0 if sum(loop.step(one) for one in loop.members) else 1.0
    for number in range(3):
        write_entity(loop, f"new {number}", {one: [0.5 * number] for one in parties(loop)}, number % 2)
    for _ in range(100):
        loop.now += 0.0 if sum(loop.step(one) for one in loop.members) else 1.0
    # The first five come again, with a probability.
    assert len(predictions(loop)) == 13
    assert {one["probability"] is None for one in predictions(loop)} == {True, False}
    assert loop.rejections() == []
    return loop.members[name].heard


def bad(name: str) -> list[tuple[Received, str]]:
    """Copies of what is said about scores, each wrong in one way."""
    channel = CHANNELS[name]
    right = next(one for _, batch in heard(name) for one in batch if one.channel == channel)
    message: Message = right.message
    change = msgspec.structs.replace
    wrong = [
        ("configuration", change(message, fingerprint=1)),
        ("malformed", change(message, kind="nonsense")),
        ("implausible", change(message, run=message.run + 5)),
    ]
    return [
        (Received(channel, one, change(right.record, value=msgspec.msgpack.encode(one))), reason)
        for reason, one in wrong
    ]


def subject(name: str) -> Subject:
    own = settings(name)
    kind = ROLES[own.role.kind]
    inputs = kind.channels(own).inputs
    return Subject(
        make=lambda: trained(name),
        traffic=traffic(partial(heard, name)),
        anybody=partial(users, name),
        decode={channel: one.decode for channel, one in inputs.items()},
        bad=bad(name),
        repeatable=list(inputs),
    )


@pytest.mark.parametrize("subject", [subject("g"), subject("h1")], ids=["guest", "host"])
class TestScoringRoles(RoleLaws):
    """Of guest and host with a model, from the training on."""
